"""The clients of one process: built on demand, a bounded number in memory, the others in files."""

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
Turns = Callable[[ClientInfo, bool], None]  # client, and whether its turn has ended
Reader = Callable[[Client], Payload]  # reads diagnostics from a client, in the client's process
Keep = Callable[[Client, Round, Mapping[str, float]], None]  # saves a trained client, in the client's process
STATE_NAME = re.compile(r"client-(\d+)-round-(\d+)\.safetensors")


def state_name(client: int, next_round: int) -> str:
    """A client has one turn per round, so its state before ``next_round`` is written once and never modified."""
    return f"client-{client:04d}-round-{next_round:06d}.safetensors"


def owner(name: str) -> int | None:
    """The client whose state a file of this name holds."""
    match = STATE_NAME.fullmatch(name)
    return int(match[1]) if match else None


def temporary_folder(whose: object) -> Path:
    """A temporary folder, removed with the object ``whose`` or when Python exits."""
    path = Path(tempfile.mkdtemp(prefix="asfedbridge-"))
    weakref.finalize(whose, shutil.rmtree, path, ignore_errors=True)
    return path


class ClientHost:
    """Keeps at most ``capacity`` clients in memory (0: all); the least recently used client is evicted.

    A client that never trained needs no file: it is rebuilt from the seed. Without ``folder``, states go to a temporary
    folder.
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
        keep: Keep | None = None,
    ) -> None:
        self.method, self.task, self.device, self.progress = method, task, device, progress
        self.infos = {info.id: info for info in infos}
        self.shards = dict(zip(self.infos, shards, strict=True))
        self.capacity = capacity or len(self.infos)
        self._folder, self._reader, self._keep = folder, reader, keep
        self._made = False  # whether this process created the folder
        self._clients: dict[int, Client] = {}  # in memory, least recently used first
        self._changed: dict[int, int] = {}  # client -> next round, of those in memory that are newer than their files
        self._states: dict[int, tuple[str, str]] = {}  # client -> its newest file and SHA-256
        self._saved: frozenset[str] = frozenset()  # files that a checkpoint refers to; they are not removed here
        self._visited = False  # whether clients in memory had a closing visit
        self._evaluated: dict[int, dict[str, tuple[int, Answers]]] = {}  # kept when clients are evicted

    def turn(self, client: int, down: Payload, rnd: Round) -> Upload:
        """Run a client's turn. The closing visit does not change the client's saved state; its result goes to
        ``keep``."""
        found = self._bring(client)
        upload = take_turn(self.method, found, down, rnd)
        if not rnd.closing:
            self._changed[client] = rnd.index + 1
            return upload
        self._visited = True
        if self._keep:
            self._keep(found, rnd, upload.metrics)
        return upload

    def diagnose(self, client: int) -> Payload:
        """Diagnostics of a client after its last turn; the client is unchanged."""
        assert self._reader
        return self._reader(self._bring(client))

    def client(self, client: int) -> Client:
        """The client, for inspection; changes to it are lost when it is evicted."""
        return self._bring(client)

    def state(self, client: int) -> Payload:
        return self._bring(client).state_dict()

    def save(self) -> dict[str, str]:
        """Write the states that changed; return file name and SHA-256 of every client that has trained.

        The files are not flushed: a checkpoint flushes those that it is the first to refer to.
        """
        for client in sorted(self._changed):
            self._write(client)
        states = dict(self._states.values())
        self._saved = frozenset(states)
        return states

    def holds(self, states: Mapping[str, str]) -> bool:
        """Whether the clients in memory are in the states that ``save`` returned, and the files still have these
        checksums. False after a closing visit, which changes clients in memory only."""
        if not states or self._visited or self._changed or dict(self._states.values()) != dict(states):
            return False
        for name, sha256 in states.items():
            files.verify(self.folder / name, sha256)
        return True

    def restore(self, states: Mapping[str, str]) -> None:
        """Return to the states that ``save`` returned. Files are verified now and read when their clients are
        needed."""
        found: dict[int, tuple[str, str]] = {}
        for name, sha256 in states.items():
            client = owner(name)
            if client not in self.infos or client in found:
                raise files.damaged(self.folder / name, "it belongs to no client")
            files.verify(self.folder / name, sha256)
            found[client] = (name, sha256)
        self._clients.clear()
        self._changed.clear()
        self._visited = False
        self._states = found
        self._saved = frozenset(states)

    @property
    def folder(self) -> Path:
        if self._folder is None:
            self._folder = temporary_folder(self)
        return self._folder

    def _bring(self, client: int) -> Client:
        """The client as it was after its last turn, loaded into memory if necessary."""
        found = self._clients.pop(client, None)
        if found is None:
            while len(self._clients) >= self.capacity:  # before another client is built
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
        if not self._made:
            files.make_folder(self.folder)
            self._made = True
        name = state_name(client, self._changed[client])
        old, _ = self._states.get(client, (name, ""))
        sha256 = files.write_tensors(self.folder / name, self._clients[client].tensors(), flush=False)
        self._states[client] = (name, sha256)
        del self._changed[client]
        if old != name and old not in self._saved:
            files.remove_file(self.folder / old)
