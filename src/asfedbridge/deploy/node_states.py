"""A client's private states on its node: one folder per run and client, files written atomically.

The server may return to its last checkpoint and repeat rounds. So a node keeps its states since that checkpoint; each
message names its round, and the node restores the state that belongs to it. The node records the round of the server's
last checkpoint and refuses to go back further unless its operator allows it: otherwise a server that lost its
checkpoint would cause the private states of all rounds since to be deleted.
"""

import json
import logging
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from asfedbridge.core import BadInput, parse_json
from asfedbridge.engines import (
    STATE_NAME,
    ClientHost,
    damaged,
    is_there,
    make_folder,
    read_file,
    read_state,
    remove_file,
    take_lock,
    write_atomic,
)

INDEX, LOCK = "states.json", ".lock"
ASIDE = "aside"  # subfolder for states that a rollback would have deleted
RUN_NAME = re.compile(r"[0-9a-f]{8,64}")
logger = logging.getLogger("flwr")


class Index(NamedTuple):
    committed: int  # the round that continues from the server's last known checkpoint
    states: dict[str, str]  # SHA-256 by name


class NodeStates:
    def __init__(self, root: Path, run: str, client: int, allow_rollback: bool = False) -> None:
        if not RUN_NAME.fullmatch(run):
            raise BadInput(f"run {run[:70]!r}: not a valid name of a folder")
        self.client, self._allow_rollback = client, allow_rollback
        self.folder = root / run / f"client-{client:04d}"
        for folder in (root, self.folder.parent, self.folder):
            if folder != root or not root.is_dir():  # which the operator may have made a symbolic link
                make_folder(folder, 0o700)

    @contextmanager
    def held(self, patience: float = 0.0) -> Iterator[None]:
        """Locks the folder for one turn: an earlier turn may still be running if its server was killed or timed out."""
        deadline = time.monotonic() + patience
        while (lock := take_lock(self.folder / LOCK)) is None:
            if time.monotonic() >= deadline:
                raise BadInput(f"client {self.client} is still busy with an earlier turn")
            time.sleep(0.1)
        with lock:
            yield

    def go_to(self, host: ClientHost, round_index: int, since: int) -> None:
        """Restore the client to its state before this round, unless it is in memory. ``since``: the round after the
        last turn that the server received from it (0: none). A newer state whose reply was lost is equally valid."""
        index = self._read()
        if round_index < index.committed and not self._allow_rollback:
            raise BadInput(
                f"client {self.client} refuses to go back to round {round_index}: the server had a checkpoint of round "
                f"{index.committed}; restore the server's run folder, or set allow-rollback=true in the node config"
            )
        kept = {name: sha256 for name, sha256 in index.states.items() if before_round(name) <= round_index}
        newest = max(kept, key=before_round, default=None)
        if (0 if newest is None else before_round(newest)) < since:
            has = "none" if newest is None else f"only that of round {before_round(newest)}"
            raise BadInput(
                f"client {self.client} has no state for round {round_index}: the server has its uploads up to round "
                f"{since - 1}, {self.folder} holds {has}; restore the folder"
            )
        wanted = {} if newest is None else {newest: kept[newest]}
        if not host.holds(wanted):
            host.restore(wanted)

    def keep(self, host: ClientHost, round_index: int, safe: int, history: int = 0) -> None:
        """Write the state after a turn durably. By itself the server does not return to before round ``safe``; its
        operator can make it go back ``history`` rounds further."""
        # Later states are obsolete once the round has been repeated, and are removed only now: a message for a wrong
        # round must not delete valid states.
        before = self._read()
        if round_index < before.committed:
            self._set_aside(before, round_index)
        earlier = {name: sha256 for name, sha256 in before.states.items() if before_round(name) <= round_index}
        self._write(Index(before.committed, earlier))
        known = earlier | host.save()
        unflushed = [self.folder, *(self.folder / name for name in known if name not in earlier)]
        base = max((before_round(name) for name in known if before_round(name) <= safe - history), default=0)
        committed = safe if round_index < before.committed else max(safe, before.committed)
        kept = {name: sha256 for name, sha256 in known.items() if before_round(name) >= base}
        self._write(Index(committed, kept), unflushed)

    def _set_aside(self, index: Index, round_index: int) -> None:
        newest = max(index.states, key=before_round, default=None)
        if newest is None or before_round(newest) <= round_index:
            return
        place = self.folder / ASIDE
        make_folder(place, 0o700)
        copy = place / f"{index.states[newest][:8]}-{newest}"
        write_atomic(copy, read_state(self.folder / newest))
        logger.warning("client %d goes back to round %d; its last state is kept as %s", self.client, round_index, copy)

    def _read(self) -> Index:
        path = self.folder / INDEX
        if not is_there(path):
            return Index(0, {})
        try:
            told = parse_json(read_file(path))
            found = {str(name): str(sha256) for name, sha256 in told["states"].items()}
            committed = told["committed"]
        except BadInput:
            raise  # not a regular file, or too large
        except (OSError, ValueError, AttributeError, TypeError, KeyError) as error:
            raise damaged(path, type(error).__name__) from None
        if not all(STATE_NAME.fullmatch(name) for name in found):
            raise damaged(path, "it names unknown files")
        if type(committed) is not int or committed < 0:
            raise damaged(path, "committed is not a round")
        return Index(committed, found)

    def _write(self, index: Index, after: Sequence[Path] = ()) -> None:
        if index != self._read():
            write_atomic(self.folder / INDEX, json.dumps(index._asdict(), indent=1).encode(), after)
        for file in self.folder.iterdir():
            if STATE_NAME.fullmatch(file.name) and file.name not in index.states:
                remove_file(file)


def before_round(name: str) -> int:
    """The round that starts from a state."""
    match = STATE_NAME.fullmatch(name)
    assert match
    return int(match[2])
