"""Checkpoints: the server's state and every client's, after a round. Safetensors and JSON, whole or not there.

``checkpoint/round-000012`` holds what is needed to play round 12. It is written as ``.partial``, flushed, renamed;
only then is the one before it removed.
"""

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import safetensors
import safetensors.torch

from asfedbridge.core.errors import BadInput
from asfedbridge.core.payload import Payload
from asfedbridge.engines.files import sync_folder, write_through
from asfedbridge.engines.loop import Engine

FORMAT = 1
INDEX = "checkpoint.json"


@dataclass(frozen=True)
class Checkpoint:
    next_round: int
    server: Payload


def save(root: Path, next_round: int, server: Payload, engine: Engine, identity: Mapping[str, str]) -> None:
    """Write a checkpoint; ``identity`` (specification, data, partition) must be the same when it is read."""
    root.mkdir(exist_ok=True)
    target = root / f"round-{next_round:06d}"
    partial = target.with_suffix(".partial")
    for folder in (partial, target):
        shutil.rmtree(folder, ignore_errors=True)
    partial.mkdir()
    digests = {"server.safetensors": _write(partial / "server.safetensors", server)}
    for client in engine.clients():
        name = f"client-{client.id:04d}.safetensors"
        digests[name] = _write(partial / name, engine.client_state(client.id))
    index = {"format": FORMAT, "next_round": next_round, "identity": dict(identity), "sha256": digests}
    write_through(partial / INDEX, json.dumps(index, indent=1).encode())
    sync_folder(partial)
    partial.rename(target)
    sync_folder(root)
    for old in root.iterdir():
        if old != target:
            shutil.rmtree(old, ignore_errors=True)


def load(root: Path, engine: Engine, identity: Mapping[str, str]) -> Checkpoint | None:
    """The newest checkpoint, with every client of the engine brought to it; None if there is none yet."""
    folders = sorted(p for p in root.glob("round-*") if p.suffix != ".partial") if root.is_dir() else []
    if not folders:
        return None
    folder = folders[-1]
    try:
        index = json.loads((folder / INDEX).read_bytes())
        next_round, digests, found = int(index["next_round"]), dict(index["sha256"]), dict(index["identity"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(folder / INDEX, type(error).__name__) from None
    if index.get("format") != FORMAT:
        raise BadInput(f"{folder / INDEX}: format {index.get('format')} is not {FORMAT}, which this version reads")
    for what, value in identity.items():
        if found.get(what) != value:
            raise BadInput(
                f"{folder}: this checkpoint belongs to another {what} ({str(found.get(what))[:12]}, "
                f"not {value[:12]}); give the run's own settings and data, or another --out"
            )
    server = _read(folder / "server.safetensors", digests)
    for client in engine.clients():
        path = folder / f"client-{client.id:04d}.safetensors"
        try:
            engine.load_client_state(client.id, _read(path, digests))
        except (KeyError, RuntimeError) as error:
            raise _damaged(path, str(error).splitlines()[0]) from None
    return Checkpoint(next_round, server)


def _write(path: Path, payload: Payload) -> str:
    content = safetensors.torch.save(payload)
    write_through(path, content)
    return hashlib.sha256(content).hexdigest()


def _read(path: Path, digests: Mapping[str, str]) -> Payload:
    try:
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != digests.get(path.name):
            raise _damaged(path, "its checksum differs")
        return dict(safetensors.torch.load(content))
    except (OSError, safetensors.SafetensorError) as error:
        raise _damaged(path, type(error).__name__) from None


def _damaged(path: Path, why: str) -> BadInput:
    return BadInput(f"{path}: this checkpoint is damaged ({why}); restore the file, or start again in another --out")
