"""A trained client as two self-contained files: its weights, and a card that describes how to use them.

``client-0005.safetensors`` holds the tensors of the backbone (``backbone/...``) and of any other networks that the
method keeps on a client (``bridge/...``). ``client-0005.json`` is the card. It is written last and contains checksums
of the weights and of itself, so a client file with a card is complete.
"""

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from asfedbridge.core import payload
from asfedbridge.core.errors import BadInput, Damaged, brief
from asfedbridge.core.payload import Payload
from asfedbridge.core.reading import parse_json, read_bytes
from asfedbridge.data.memory import memory
from asfedbridge.engines import files
from asfedbridge.runs.client_card import FORMAT, ClientCard, parse_card
from asfedbridge.runs.json_table import JsonTable

BACKBONE = "backbone"
NAME = re.compile(r"client-(\d{4,})\.(json|safetensors)")
MAX_CARD_BYTES = 2**24


def client_name(client: int) -> str:
    """The name of the card and of the weights, without suffix."""
    return f"client-{client:04d}"


def write_client(folder: Path, card: ClientCard, tensors: Payload) -> None:
    """Write both files durably. After a crash, the client is either complete or has no card."""
    files.make_folder(folder)
    path = folder / f"{client_name(card.id)}.json"
    if files.is_there(path):  # the closing visit is being repeated
        files.remove_file(path)
        files.sync_folder(folder)
    sha256 = files.write_tensors(path.with_suffix(".safetensors"), payload.clone(tensors))
    table = dataclasses.asdict(card)
    table["preprocessing"]["words"] = card.preprocessing.describe(card.image_size, card.frames)
    content = {**table, "sha256": sha256}
    files.write_atomic(path, json.dumps({**content, "seal": _seal(content)}, indent=1).encode())


def remove_clients(folder: Path) -> None:
    """Remove all client files of a folder; other files are kept."""
    found = sorted(name for name in os.listdir(folder) if NAME.fullmatch(name)) if files.is_folder(folder) else []
    for name in sorted(found, key=lambda name: Path(name).suffix):  # cards first
        files.remove_file(folder / name)
    if found:
        files.sync_folder(folder)


def list_clients(folder: Path) -> list[Path]:
    """The cards in a folder, in order of client id."""
    names = os.listdir(folder) if folder.is_dir() else []
    cards = {int(match[1]): name for name in names if (match := NAME.fullmatch(name)) and match[2] == "json"}
    return [folder / cards[client] for client in sorted(cards)]


def read_client(path: Path) -> tuple[ClientCard, Payload]:
    """Read and verify the card and the weights of a client; ``path`` is either of its two files."""
    card, sha256 = _read_card(path.with_suffix(".json"))
    return card, _read_weights(path.with_suffix(".safetensors"), sha256)


def read_card(path: Path) -> ClientCard:
    """Read only the card."""
    return _read_card(path)[0]


def damaged(what: object, why: str) -> Damaged:
    return Damaged(f"{what}: this client file is damaged ({why}); restore it, or copy it from the run again")


def _read_weights(path: Path, sha256: str) -> Payload:
    content = read_bytes(path, memory() // 2, "restore it")
    if hashlib.sha256(content).hexdigest() != sha256:
        raise damaged(path, "its checksum differs from the one in the card")
    try:
        tensors = dict(safetensors.torch.load(content))
    except (safetensors.SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise damaged(path, brief(error)) from None
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise damaged(path, f"'{name[:80]}' holds NaN or infinity")
    return tensors


def _read_card(path: Path) -> tuple[ClientCard, str]:
    try:
        entries = parse_json(read_bytes(path, MAX_CARD_BYTES, "restore it"))
    except BadInput:
        raise
    except ValueError as error:
        raise damaged(path, brief(error)) from None
    if not isinstance(entries, dict):
        raise damaged(path, "not a JSON object")
    table = JsonTable(entries, path, "a client card")
    table.check_format(FORMAT)
    if entries.pop("seal", None) != _seal(entries):
        raise damaged(path, "its checksum differs")
    return parse_card(table), table.text("sha256")


def _seal(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
