"""Checkpoints: the states of the server and of all clients after a round, written atomically as safetensors and JSON.

``round-000012/`` holds what is needed to run round 12: the server's state and an index that names a file in
``clients/`` for every client that has trained. Client files are written before the index and never modified, so a
checkpoint costs only the clients that trained since the last one. All new files are flushed together (group commit);
then the checkpoint's folder is renamed to its final name, which makes it valid. Only then are older checkpoints
removed, and client files that no remaining checkpoint refers to. Files with other names are never removed.

A snapshot is a checkpoint that is never removed, for inspecting the clients of a run round by round: the same files,
with ``clients/`` inside.
"""

import hashlib
import json
import os
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asfedbridge.core.errors import BadInput, Damaged
from asfedbridge.core.payload import Payload
from asfedbridge.core.reading import parse_json
from asfedbridge.engines import files
from asfedbridge.engines.host import STATE_NAME
from asfedbridge.engines.loop import Engine

FORMAT = 3
INDEX, SERVER, CLIENTS = "checkpoint.json", "server.safetensors", "clients"
ROUND_NAME = re.compile(r"round-(\d{6,7})")
PARTIAL = ".partial"


@dataclass(frozen=True)
class Checkpoint:
    next_round: int
    server: Payload
    seconds: float  # wall time of the run so far
    states: Mapping[str, str]  # file name -> SHA-256, of every client that has trained
    records: str = ""  # SHA-256 of the run's records up to here; empty if the run keeps none


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
    after: Sequence[Path] = (),
    keep: int = 1,
) -> None:
    """Write a checkpoint; reading it requires the same ``identity`` (specification, data, partition).

    An engine whose clients are on this machine keeps their states in ``root / CLIENTS``. With ``aside``, a snapshot is
    written there first, so a run resumed from this checkpoint has it. The files in ``after`` are flushed before the
    checkpoint becomes valid. The newest ``keep`` checkpoints stay.
    """
    files.make_folder(root, flush=False)
    flushed = _last_states(root)
    states = engine.save()
    unflushed = [root.parent, *after]
    if "states" not in identity and states:
        unflushed += [root / CLIENTS, *(root / CLIENTS / name for name in states if name not in flushed)]
    index = {
        "format": FORMAT,
        "next_round": next_round,
        "seconds": seconds,
        "identity": dict(identity),
        "clients": dict(sorted(states.items())),
        "records": records,
    }
    name = f"round-{next_round:06d}"
    targets = [root / name]
    if aside:
        files.make_folder(aside, flush=False)
        unflushed += [aside.parent, *_write(aside / name, server, index, root / CLIENTS)]
        targets.insert(0, aside / name)
    files.flush([*unflushed, *_write(root / name, server, index)])
    for target in targets:
        files.rename_folder(target.with_suffix(PARTIAL), target)
    _tidy(root, keep)


def load(
    root: Path,
    engine: Engine,
    identity: Mapping[str, str],
    *,
    from_round: int | None = None,
    snapshots: Path | None = None,
    keep: int = 1,
) -> Checkpoint | None:
    """Restore the engine's clients from the newest checkpoint and return it; None if there is none yet.

    With ``from_round``, restore the checkpoint before this round. Later checkpoints and ``snapshots`` are removed.
    """
    folders = list_folders(root)
    if from_round is None and not folders:
        return None
    chosen = folders[-1] if from_round is None else find(root, from_round)
    place = folders.index(chosen)
    files.is_folder(root / CLIENTS)
    try:
        found = read(chosen, identity)
        engine.restore(found.states)
    except Damaged as error:
        raise BadInput(f"{error}{_way_back(folders[:place])}") from None
    later = [f for f in list_folders(snapshots) if number(f) > found.next_round] if snapshots else []
    for folder in [*later, *folders[place + 1 :]]:  # removed before the records of their rounds are
        _discard(folder)
    _tidy(root, keep)
    return found


def find(root: Path, from_round: int) -> Path:
    """The checkpoint from which round ``from_round`` continues."""
    folders = {number(folder): folder for folder in list_folders(root)}
    if from_round not in folders:
        there = f"available: {', '.join(map(str, folders))}" if folders else "there are no checkpoints"
        raise BadInput(f"from_round={from_round}: {root} has no checkpoint after {from_round} rounds; {there}")
    return folders[from_round]


def _way_back(older: Sequence[Path]) -> str:
    """Suggests the newest readable checkpoint older than a damaged one."""
    for folder in reversed(older):
        try:
            _read_index(folder / INDEX)
        except BadInput:
            continue
        last = number(folder)
        return f"; or go back to the checkpoint after {last} rounds with resume=True from_round={last}"
    return ""


def list_folders(root: Path) -> list[Path]:
    """Complete checkpoints or snapshots, oldest first."""
    if not files.is_folder(root):
        return []
    found = [root / name for name in os.listdir(root) if ROUND_NAME.fullmatch(name)]
    return sorted((folder for folder in found if files.is_folder(folder)), key=number)


def number(folder: Path) -> int:
    """The round that continues from a checkpoint, by its folder's name."""
    return int(folder.name.removeprefix("round-"))


def read(folder: Path, identity: Mapping[str, str]) -> Checkpoint:
    """Read and check a checkpoint without restoring it."""
    index = _read_index(folder / INDEX)
    try:
        next_round, seconds, sha256 = int(index["next_round"]), float(index["seconds"]), str(index["server"])
        states, belongs = {**index["clients"]}, {**index["identity"]}
    except (ValueError, TypeError) as error:
        raise files.damaged(folder / INDEX, type(error).__name__) from None
    if ROUND_NAME.fullmatch(folder.name) and next_round != number(folder):
        raise files.damaged(folder / INDEX, f"its index is for round {next_round}")
    if belongs.get("states") != identity.get("states"):  # on Flower's nodes, or on this machine
        raise BadInput(
            f"{folder}: the states of its clients are on {_where(belongs)}, not on {_where(identity)}; "
            f"use the engine that the run started with, or another out"
        )
    for what, value in identity.items():
        if belongs.get(what) != value:
            raise BadInput(
                f"{folder}: this checkpoint belongs to another {what} ({str(belongs.get(what))[:12]}, "
                f"not {value[:12]}); resume with the run's own settings and data, or use another out"
            )
    server = files.read_tensors(folder / SERVER, sha256)
    return Checkpoint(next_round, server, seconds, states, str(index["records"]))


def _read_index(file: Path) -> dict[str, Any]:
    """Read an index and verify its checksum."""
    try:
        index = dict(parse_json(files.read_file(file)))
        form, seal = index["format"], index.pop("sha256", None)
    except BadInput:
        raise  # not a regular file
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise files.damaged(file, type(error).__name__) from None
    if form != FORMAT:
        raise BadInput(f"{file}: format {json.dumps(form)[:40]} is not supported; this version reads format {FORMAT}")
    if seal != _seal(index):
        raise files.damaged(file, "its checksum differs")
    return index


def _seal(index: Mapping[str, Any]) -> str:
    """The index's own checksum: a client missing from it would silently restart from its initial state."""
    return hashlib.sha256(json.dumps(index, sort_keys=True).encode()).hexdigest()


def _where(identity: Mapping[str, str]) -> str:
    return "nodes" if identity.get("states") == "nodes" else "this machine"


def _last_states(root: Path) -> Container[str]:
    """The client states of the newest checkpoint: they were flushed before it became valid."""
    folders = list_folders(root)
    try:
        return dict(_read_index(folders[-1] / INDEX)["clients"]) if folders else ()
    except BadInput:
        return ()


def _write(target: Path, server: Payload, index: Mapping[str, Any], clients: Path | None = None) -> list[Path]:
    """Write a partial folder; return what must be flushed before it is renamed to ``target``. A snapshot also links the
    client states in ``clients``."""
    partial = target.with_suffix(PARTIAL)
    for folder in (partial, target):
        if files.is_folder(folder):
            _discard(folder)
    files.make_folder(partial, flush=False)
    if clients:
        files.make_folder(partial / CLIENTS, flush=False)
        for name in index["clients"]:
            files.add_name(clients / name, partial / CLIENTS / name)
    content = {**index, "server": files.write_tensors(partial / SERVER, server, flush=False)}
    sealed = json.dumps({**content, "sha256": _seal(content)}, indent=1).encode()
    files.write_through(partial / INDEX, sealed, flush=False)
    return [partial, partial / SERVER, partial / INDEX, *([partial / CLIENTS] if clients else [])]


def _tidy(root: Path, keep: int) -> None:
    """Remove older checkpoints, client states that no checkpoint refers to, and partial folders left by a crash."""
    folders = list_folders(root)
    halves = [root / name for name in os.listdir(root) if ROUND_NAME.fullmatch(name.removesuffix(PARTIAL))]
    for folder in [*folders[:-keep], *(half for half in halves if half.suffix == PARTIAL)]:
        _discard(folder)
    try:
        named = {name for folder in folders[-keep:] for name in _read_index(folder / INDEX)["clients"]}
    except BadInput:  # a damaged index: keep all states until that checkpoint is removed
        return
    _remove_states(root / CLIENTS, named)


def _discard(folder: Path) -> None:
    """Remove a checkpoint's files. It is renamed first, so a crash leaves nothing that looks like a checkpoint."""
    partial = folder.with_suffix(PARTIAL)
    if folder != partial and not files.is_folder(partial):
        files.rename_folder(folder, partial)
        folder = partial
    files.is_folder(folder)
    for name in (INDEX, SERVER):
        files.remove_file(folder / name)
    _remove_states(folder / CLIENTS)
    files.remove_folder(folder / CLIENTS)
    files.remove_folder(folder)


def _remove_states(folder: Path, but: Container[str] = ()) -> None:
    for name in os.listdir(folder) if files.is_folder(folder) else ():
        if STATE_NAME.fullmatch(name.removesuffix(PARTIAL)) and name not in but:
            files.remove_file(folder / name)
