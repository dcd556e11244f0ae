"""A client's private states on its node: a folder for each run and client, files that are whole or not there.

The server may fall back to its last checkpoint and play a round again. So a node keeps what it was then and ever since;
a message names the round it is for, and the node goes to the state that belongs to it.
"""

import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from asfedbridge.core import BadInput
from asfedbridge.engines import STATE_NAME, ClientHost, damaged, take_lock, write_atomic

INDEX, LOCK = "states.json", ".lock"
RUN_NAME = re.compile(r"[0-9a-f]{8,64}")


class NodeStates:
    def __init__(self, root: Path, run: str, client: int) -> None:
        if not RUN_NAME.fullmatch(run):
            raise BadInput(f"a run is called {run[:70]!r}: that is no name for a folder")
        self.client = client
        self.folder = root / run / f"client-{client:04d}"
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    @contextmanager
    def held(self, patience: float = 0.0) -> Iterator[None]:
        """By one turn at a time: an earlier one may still be at work when its server was killed or gave it up."""
        deadline = time.monotonic() + patience
        while (lock := take_lock(self.folder / LOCK)) is None:
            if time.monotonic() >= deadline:
                raise BadInput(f"client {self.client} is still busy with an earlier turn")
            time.sleep(0.1)
        with lock:
            yield

    def go_to(self, host: ClientHost, round_index: int, since: int) -> None:
        """Bring the client to what it was before this round. ``since`` is the round after the last turn that the
        server has of it (0: none); a newer state that it got no reply of is as good."""
        kept = {name: sha256 for name, sha256 in self._read().items() if before_round(name) <= round_index}
        newest = max(kept, key=before_round, default=None)
        if newest is None and since == 0:
            return
        if newest is None or before_round(newest) < since:
            has = "none" if newest is None else f"only that of round {before_round(newest)}"
            raise BadInput(
                f"client {self.client} has no state for round {round_index}: the server saw it train up to round "
                f"{since - 1}, {self.folder} holds {has}; restore the folder"
            )
        host.restore({newest: kept[newest]})

    def keep(self, host: ClientHost, round_index: int, safe: int) -> None:
        """Make the state after a turn lasting. The server will not fall back behind round ``safe``."""
        # What came later is void, as the round was played again. But not before now: a message for a round that does
        # not fit must not cost the states that do.
        self._write({name: sha256 for name, sha256 in self._read().items() if before_round(name) <= round_index})
        known = self._read() | host.save()
        base = max((before_round(name) for name in known if before_round(name) <= safe), default=0)
        self._write({name: sha256 for name, sha256 in known.items() if before_round(name) >= base})

    def _read(self) -> dict[str, str]:
        path = self.folder / INDEX
        if not path.exists():
            return {}
        try:
            found = {str(name): str(sha256) for name, sha256 in json.loads(path.read_bytes()).items()}
        except (OSError, ValueError, AttributeError) as error:
            raise damaged(path, type(error).__name__) from None
        if not all(STATE_NAME.fullmatch(name) for name in found):
            raise damaged(path, "it names other files")
        return found

    def _write(self, index: Mapping[str, str]) -> None:
        if index != self._read():
            write_atomic(self.folder / INDEX, json.dumps(index, indent=1).encode())
        for file in self.folder.glob("client-*"):
            if file.name not in index:
                file.unlink()


def before_round(name: str) -> int:
    """The round that a state is the beginning of."""
    match = STATE_NAME.fullmatch(name)
    assert match
    return int(match[2])
