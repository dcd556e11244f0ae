"""Checkpoints: the server's state and every client's, after a round. Safetensors and JSON, whole or not there.

``round-000012/`` holds what is needed to play round 12: the server's state, and an index that names a file in
``clients/`` for every client that ever trained. Those files are written before the index and never changed, so a
checkpoint costs no more than the clients that were at work. The index makes it valid: it is written beside, flushed,
renamed; only then is removed what it does not name.
"""

import json
import shutil
from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path

from asfedbridge.core.errors import BadInput
from asfedbridge.core.payload import Payload
from asfedbridge.engines import files
from asfedbridge.engines.loop import Engine

FORMAT = 2
INDEX, SERVER, CLIENTS = "checkpoint.json", "server.safetensors", "clients"


@dataclass(frozen=True)
class Checkpoint:
    next_round: int
    server: Payload
    seconds: float  # that the run had taken so far


def save(
    root: Path, next_round: int, server: Payload, engine: Engine, identity: Mapping[str, str], seconds: float = 0.0
) -> None:
    """Write a checkpoint; ``identity`` (specification, data, partition) must be the same when it is read.

    An engine whose clients are on this machine keeps their states in ``root / CLIENTS``.
    """
    root.mkdir(exist_ok=True)
    states = engine.save()
    target = root / f"round-{next_round:06d}"
    partial = target.with_suffix(".partial")
    for folder in (partial, target):
        shutil.rmtree(folder, ignore_errors=True)
    partial.mkdir()
    index = {
        "format": FORMAT,
        "next_round": next_round,
        "seconds": seconds,
        "identity": dict(identity),
        "server": files.write_tensors(partial / SERVER, server),
        "clients": dict(sorted(states.items())),
    }
    files.write_through(partial / INDEX, json.dumps(index, indent=1).encode())
    files.sync_folder(partial)
    partial.rename(target)
    files.sync_folder(root)
    _remove_others(root, target, states)


def load(root: Path, engine: Engine, identity: Mapping[str, str]) -> Checkpoint | None:
    """The newest checkpoint, with every client of the engine brought to it; None if there is none yet."""
    folders = sorted(p for p in root.glob("round-*") if p.suffix != ".partial") if root.is_dir() else []
    if not folders:
        return None
    folder = folders[-1]
    try:
        index = json.loads((folder / INDEX).read_bytes())
        if (found := index["format"]) != FORMAT:
            raise BadInput(f"{folder / INDEX}: format {found} is not {FORMAT}, which this version reads")
        next_round, seconds, sha256 = int(index["next_round"]), float(index["seconds"]), str(index["server"])
        states, belongs = {**index["clients"]}, {**index["identity"]}
    except BadInput:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise files.damaged(folder / INDEX, type(error).__name__) from None
    for what, value in identity.items():
        if belongs.get(what) != value:
            raise BadInput(
                f"{folder}: this checkpoint belongs to another {what} ({str(belongs.get(what))[:12]}, "
                f"not {value[:12]}); give the run's own settings and data, or another --out"
            )
    server = files.read_tensors(folder / SERVER, sha256)
    engine.restore(states)
    _remove_others(root, folder, states)
    return Checkpoint(next_round, server, seconds)


def _remove_others(root: Path, folder: Path, states: Container[str]) -> None:
    """Older checkpoints, states that no checkpoint names any more, and what a crash left half written."""
    for old in root.iterdir():
        if old not in (folder, root / CLIENTS):
            shutil.rmtree(old, ignore_errors=True)
    for file in (root / CLIENTS).glob("*"):
        if file.name not in states:
            file.unlink()
