"""The clients of one process: built when they are at work, a bounded number in memory, the others as files."""

import re
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch

from asfedbridge.core.client import Answers, Client, Shard
from asfedbridge.core.method import Method
from asfedbridge.core.payload import Payload
from asfedbridge.core.task import ClientInfo, Round, Task, Upload
from asfedbridge.engines import files
from asfedbridge.engines.turn import build_client, take_turn

Progress = Callable[[ClientInfo, str, int, int, dict[str, float]], None]  # client, stage, epoch, epochs, losses
Reader = Callable[[Client], Payload]  # what is read from a client that is diagnosed, where it lives
STATE_NAME = re.compile(r"client-(\d+)-round-(\d+)\.safetensors")


def state_name(client: int, next_round: int) -> str:
    """A client has one turn a round, so what it was before ``next_round`` is written once and never changed."""
    return f"client-{client:04d}-round-{next_round:06d}.safetensors"


def owner(name: str) -> int | None:
    """Whose state a file of this name holds."""
    match = STATE_NAME.fullmatch(name)
    return int(match[1]) if match else None


def temporary_folder(whose: object) -> Path:
    """A folder that goes when ``whose`` goes, at the latest when Python ends."""
    path = Path(tempfile.mkdtemp(prefix="asfedbridge-"))
    weakref.finalize(whose, shutil.rmtree, path, ignore_errors=True)
    return path


class ClientHost:
    """Keeps at most ``capacity`` clients in memory (0: all); who was at work longest ago makes room first.

    A client that never trained needs no file: it is built again from the seed. Without a ``folder`` states go to a
    temporary one.
    """

    def __init__(
        self,
        method: Method,
        task: Task,
        infos: Sequence[ClientInfo],
        shards: Sequence[Shard],
        *,
        device: torch.device | str = "cpu",
        progress: Progress | None = None,
        capacity: int = 0,
        folder: Path | None = None,
        reader: Reader | None = None,
    ) -> None:
        self.method, self.task, self.device, self.progress = method, task, device, progress
        self.infos = {info.id: info for info in infos}
        self.shards = dict(zip(self.infos, shards, strict=True))
        self.capacity = capacity or len(self.infos)
        self._folder, self._reader = folder, reader
        self._clients: dict[int, Client] = {}  # in memory, the least recently used first
        self._changed: dict[int, int] = {}  # in memory and newer than its file, by the round that comes next
        self._states: dict[int, tuple[str, str]] = {}  # the newest file of a client: name and SHA-256
        self._unflushed: set[str] = set()  # files that a power cut could still take: no checkpoint refers to them yet
        self._saved: frozenset[str] = frozenset()  # names a checkpoint refers to: not ours to remove
        self._evaluated: dict[int, dict[str, tuple[int, Answers]]] = {}  # a client's cache outlives its stay

    def turn(self, client: int, down: Payload, rnd: Round) -> Upload:
        """The closing visit is the end of a run: what it changes in a client is not kept when that makes room."""
        upload = take_turn(self.method, self._bring(client), down, rnd)
        if not rnd.closing:
            self._changed[client] = rnd.index + 1
        return upload

    def diagnose(self, client: int) -> Payload:
        """The reading of a client as its last turn left it; changes nothing in it."""
        assert self._reader
        return self._reader(self._bring(client))

    def client(self, client: int) -> Client:
        """To look at: what is changed in it here is lost when it makes room."""
        return self._bring(client)

    def state(self, client: int) -> Payload:
        return self._bring(client).state_dict()

    def save(self) -> dict[str, str]:
        """Write what changed; return name and SHA-256 of the file of every client that ever trained."""
        for client in sorted(self._changed):
            self._write(client)
        for name in sorted(self._unflushed):
            files.flush_file(self.folder / name)
        self._unflushed.clear()
        if self._states:
            files.sync_folder(self.folder)  # the names must outlast a power cut as well
        states = dict(self._states.values())
        self._saved = frozenset(states)
        return states

    def restore(self, states: Mapping[str, str]) -> None:
        """Go back to what ``save`` returned. Every file is checked now, and read when its client is at work."""
        found: dict[int, tuple[str, str]] = {}
        for name, sha256 in states.items():
            client = owner(name)
            if client not in self.infos or client in found:
                raise files.damaged(self.folder / name, "it belongs to no client")
            files.verify(self.folder / name, sha256)
            found[client] = (name, sha256)
        self._clients.clear()
        self._changed.clear()
        self._unflushed.clear()
        self._states = found
        self._saved = frozenset(states)

    @property
    def folder(self) -> Path:
        if self._folder is None:
            self._folder = temporary_folder(self)
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._folder

    def _bring(self, client: int) -> Client:
        """The client, in memory, as it was after its last turn."""
        found = self._clients.pop(client, None)
        if found is None:
            while len(self._clients) >= self.capacity:  # before another is built
                self._evict(next(iter(self._clients)))
            found = self._build(client)
        self._clients[client] = found
        return found

    def _build(self, client: int) -> Client:
        info = self.infos[client]
        found = build_client(self.method, self.task, info, self.shards[client], self.device)
        found.evaluated = self._evaluated.setdefault(client, found.evaluated)
        if self.progress:
            found.watch = partial(self.progress, info)
        if client in self._states:
            name, sha256 = self._states[client]
            state = files.read_tensors(self.folder / name, sha256)
            try:
                found.load_state_dict(state)
            except (KeyError, ValueError, RuntimeError) as error:
                raise files.damaged(self.folder / name, str(error).splitlines()[0]) from None
        return found

    def _evict(self, client: int) -> None:
        if client in self._changed:
            self._write(client)
        del self._clients[client]

    def _write(self, client: int) -> None:
        name = state_name(client, self._changed[client])
        old, _ = self._states.get(client, (name, ""))
        sha256 = files.write_tensors(self.folder / name, self._clients[client].state_dict(), flush=False)
        self._states[client] = (name, sha256)
        self._unflushed.add(name)
        del self._changed[client]
        if old != name and old not in self._saved:
            (self.folder / old).unlink()
            self._unflushed.discard(old)
