"""A trained client as files that stand alone: its weights, and a card that says all that is needed to use them.

``client-0005.safetensors`` holds tensors under ``backbone/...`` and, where the method keeps more networks with a
client, ``bridge/...`` and the like. ``client-0005.json`` beside it is the card. It is written last and holds the
checksums of the weights and of itself: a client whose card is there is whole.
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
    """Without its suffix: of the card and of the weights."""
    return f"client-{client:04d}"


def write_client(folder: Path, card: ClientCard, tensors: Payload) -> None:
    """Whole or not there, whatever happens in between, and lasting."""
    files.make_folder(folder)
    path = folder / f"{client_name(card.id)}.json"
    if files.is_there(path):  # of a closing visit that is repeated
        files.remove_file(path)
        files.sync_folder(folder)
    sha256 = files.write_tensors(path.with_suffix(".safetensors"), payload.clone(tensors))
    table = dataclasses.asdict(card)
    table["preprocessing"]["words"] = card.preprocessing.describe(card.image_size, card.frames)
    content = {**table, "sha256": sha256}
    files.write_atomic(path, json.dumps({**content, "seal": _seal(content)}, indent=1).encode())


def remove_clients(folder: Path) -> None:
    """All client files of a folder; what is not ours stays."""
    found = sorted(name for name in os.listdir(folder) if NAME.fullmatch(name)) if files.is_folder(folder) else []
    for name in sorted(found, key=lambda name: Path(name).suffix):  # the cards first
        files.remove_file(folder / name)
    if found:
        files.sync_folder(folder)


def list_clients(folder: Path) -> list[Path]:
    """The cards in a folder, in the order of their clients."""
    names = os.listdir(folder) if folder.is_dir() else []
    cards = {int(match[1]): name for name in names if (match := NAME.fullmatch(name)) and match[2] == "json"}
    return [folder / cards[client] for client in sorted(cards)]


def read_client(path: Path) -> tuple[ClientCard, Payload]:
    """The card and the weights of one client, checked; ``path`` is either of its two files."""
    card, sha256 = _read_card(path.with_suffix(".json"))
    return card, _read_weights(path.with_suffix(".safetensors"), sha256)


def read_card(path: Path) -> ClientCard:
    """The card alone."""
    return _read_card(path)[0]


def damaged(what: object, why: str) -> Damaged:
    return Damaged(f"{what}: this client file is damaged ({why}); restore it, or take it from the run again")


def _read_weights(path: Path, sha256: str) -> Payload:
    content = read_bytes(path, memory() // 2, "restore it")
    if hashlib.sha256(content).hexdigest() != sha256:
        raise damaged(path, "its checksum is not the card's")
    try:
        tensors = dict(safetensors.torch.load(content))
    except (safetensors.SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise damaged(path, brief(error)) from None
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise damaged(path, f"'{name[:80]}' holds values that are not finite")
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
    table = JsonTable(entries, path, "the card of a client")
    table.check_format(FORMAT)
    if entries.pop("seal", None) != _seal(entries):
        raise damaged(path, "its checksum differs")
    return parse_card(table), table.text("sha256")


def _seal(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
