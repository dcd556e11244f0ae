"""Checkpoints: the server's state and every client's, after a round. Safetensors and JSON, whole or not there.

``round-000012/`` holds what is needed to play round 12: the server's state, and an index that names a file in
``clients/`` for every client that ever trained. Those files are written before the index and never changed, so a
checkpoint costs no more than the clients that were at work. The index makes it valid: it is written beside, flushed,
renamed; only then is removed what it does not name.
A snapshot is a checkpoint that is kept aside, for whoever wants to look at a run's clients round by round: the same
files, with ``clients/`` inside.
"""

import hashlib
import json
import shutil
from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asfedbridge.core.errors import BadInput
from asfedbridge.core.payload import Payload
from asfedbridge.engines import files
from asfedbridge.engines.loop import Engine

FORMAT, UNSEALED = 3, 2  # the older one, without a checksum of its own and of the records, is read as well
INDEX, SERVER, CLIENTS = "checkpoint.json", "server.safetensors", "clients"
UNSEALED_KEYS = {"format", "next_round", "seconds", "identity", "clients", "server"}


@dataclass(frozen=True)
class Checkpoint:
    next_round: int
    server: Payload
    seconds: float  # that the run had taken so far
    states: Mapping[str, str]  # name and SHA-256 of the file of every client that ever trained
    records: str = ""  # SHA-256 of the run's records up to here; empty: not known


def save(
    root: Path,
    next_round: int,
    server: Payload,
    engine: Engine,
    identity: Mapping[str, str],
    *,
    seconds: float = 0.0,
    aside: Path | None = None,
    records: str = "",
) -> None:
    """Write a checkpoint; ``identity`` (specification, data, partition) must be the same when it is read.

    An engine whose clients are on this machine keeps their states in ``root / CLIENTS``. With ``aside``, a snapshot is
    put there first: a run that goes on from this checkpoint has it.
    """
    root.mkdir(exist_ok=True)
    states = engine.save()
    index = {
        "format": FORMAT,
        "next_round": next_round,
        "seconds": seconds,
        "identity": dict(identity),
        "clients": dict(sorted(states.items())),
        "records": records,
    }
    name = f"round-{next_round:06d}"
    if aside:
        aside.mkdir(exist_ok=True)
        _write(aside / name, server, index, root / CLIENTS)
    _write(root / name, server, index)
    _remove_others(root, root / name, states)


def load(root: Path, engine: Engine, identity: Mapping[str, str]) -> Checkpoint | None:
    """The newest checkpoint, with every client of the engine brought to it; None if there is none yet."""
    folders = list_folders(root)
    if not folders:
        return None
    found = read(folders[-1], identity)
    engine.restore(found.states)
    _remove_others(root, folders[-1], found.states)
    return found


def list_folders(root: Path) -> list[Path]:
    """Whole checkpoints or snapshots, the oldest first."""
    return sorted(p for p in root.glob("round-*") if p.suffix != ".partial")


def read(folder: Path, identity: Mapping[str, str]) -> Checkpoint:
    """What a folder holds; changes nothing."""
    index = _read_index(folder / INDEX)
    try:
        next_round, seconds, sha256 = int(index["next_round"]), float(index["seconds"]), str(index["server"])
        states, belongs = {**index["clients"]}, {**index["identity"]}
    except (ValueError, TypeError) as error:
        raise files.damaged(folder / INDEX, type(error).__name__) from None
    if belongs.get("states") != identity.get("states"):  # on the nodes of a network, or here
        raise BadInput(
            f"{folder}: the states of its clients are on {_where(belongs)}, not on {_where(identity)}; "
            f"use the engine that the run began with, or another out"
        )
    for what, value in identity.items():
        if belongs.get(what) != value:
            raise BadInput(
                f"{folder}: this checkpoint belongs to another {what} ({str(belongs.get(what))[:12]}, "
                f"not {value[:12]}); give the run's own settings and data, or another out"
            )
    server = files.read_tensors(folder / SERVER, sha256)
    return Checkpoint(next_round, server, seconds, states, index.get("records", ""))


def _read_index(file: Path) -> dict[str, Any]:
    """An index, if it is what was written."""
    try:
        index = dict(json.loads(file.read_bytes()))
        form, seal = index["format"], index.pop("sha256", None)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise files.damaged(file, type(error).__name__) from None
    if form not in (FORMAT, UNSEALED):
        raise BadInput(f"{file}: format {json.dumps(form)[:40]} is not {FORMAT}, which this version reads")
    if form == UNSEALED and (seal is not None or index.keys() != UNSEALED_KEYS):
        raise files.damaged(file, "its entries are not those of its format")
    if form == FORMAT and seal != _seal(index):
        raise files.damaged(file, "its checksum differs")
    return index


def _seal(index: Mapping[str, Any]) -> str:
    """The index's own checksum: a client that is missing in it would begin anew, and nobody would notice."""
    return hashlib.sha256(json.dumps(index, sort_keys=True).encode()).hexdigest()


def _where(identity: Mapping[str, str]) -> str:
    return "nodes" if identity.get("states") == "nodes" else "this machine"


def _write(target: Path, server: Payload, index: Mapping[str, Any], clients: Path | None = None) -> None:
    """Write beside, flush, rename. From ``clients`` come the states that the index names, if the folder is to stay."""
    partial = target.with_suffix(".partial")
    for folder in (partial, target):
        shutil.rmtree(folder, ignore_errors=True)
    partial.mkdir()
    if clients:
        (partial / CLIENTS).mkdir()
        for name in index["clients"]:
            _link(clients / name, partial / CLIENTS / name)
        files.sync_folder(partial / CLIENTS)
    content = {**index, "server": files.write_tensors(partial / SERVER, server)}
    files.write_through(partial / INDEX, json.dumps({**content, "sha256": _seal(content)}, indent=1).encode())
    files.sync_folder(partial)
    partial.rename(target)
    files.sync_folder(target.parent)


def _link(file: Path, other: Path) -> None:
    """A second name for a file that is never changed; a copy where there are no such names."""
    try:
        other.hardlink_to(file)
    except OSError:
        shutil.copyfile(file, other)
        files.flush_file(other)


def _remove_others(root: Path, folder: Path, states: Container[str]) -> None:
    """Older checkpoints, states that no checkpoint names any more, and what a crash left half written."""
    for old in root.iterdir():
        if old not in (folder, root / CLIENTS):
            shutil.rmtree(old, ignore_errors=True)
    for file in (root / CLIENTS).glob("*"):
        if file.name not in states:
            file.unlink()
