"""Exports a trained client to torch, ONNX or NIR, with a model card."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from asfedbridge.core.errors import BadInput
from asfedbridge.data.dataset import resize
from asfedbridge.data.memory_map import read
from asfedbridge.export.verification import verify_file
from asfedbridge.export.writer import Export, Subject, find_format, write_export
from asfedbridge.runs.client_card import ClientCard
from asfedbridge.runs.labelled import read_labelled, reader_for

if TYPE_CHECKING:
    from asfedbridge.runs.trained import TrainedClient

EVALUATED = 1000  # images for the accuracy in the model card
VERIFIED = 16  # images for verify


def export_client(
    client: "TrainedClient",
    path: str | Path,
    *,
    format: str | None = None,
    bridge: bool = False,
    verify: bool = False,
    data: Any = None,
    data_root: str | Path | None = None,
) -> Export:
    """See ``TrainedClient.export``."""
    path = Path(path)
    find_format(path, format)
    subject = _subject(client, bridge, data)
    found = _images(client.card, data, data_root, needed=verify)
    images, labels = found if found is not None else (None, None)
    written = write_export(subject, path, images, labels)
    if not verify or images is None:
        return written
    return replace(written, outcomes=verify_file(subject, path, images[:VERIFIED]))


def _subject(client: "TrainedClient", bridge: bool, data: Any) -> Subject:
    card = client.card
    info, network = card.info, client.module
    if bridge:
        if client.bridge is None:
            raise BadInput(f"bridge: the file of {card.label} contains no Bridge; leave bridge out")
        info, network = replace(info, kind="ann", model="bridge", width=1.0, T=1, bits=32), client.bridge
    return Subject(network, info, card.task, card.mean, card.std, _facts(card, info.label, bridge, data))


def _images(card: ClientCard, data: Any, root: str | Path | None, needed: bool) -> tuple[Tensor, Tensor] | None:
    """Test images in the input format of the exported network; None if there are none and they are not ``needed``."""
    try:
        pixels, labels = read_labelled(card, reader_for(card), data if data is not None else card.data, root)
    except BadInput as error:
        if data is None and not needed:
            return None
        raise BadInput(f"{error} (needed for the model card and verify; data=SOURCE gives other images)") from None
    order = torch.linspace(0, len(labels) - 1, min(EVALUATED, len(labels))).round().long()  # files are often sorted
    return read(resize(read(pixels[order]), card.image_size)), labels[order]


def _facts(card: ClientCard, label: str, bridge: bool, data: Any) -> Mapping[str, Any]:
    events = card.frames > 1
    limits = [
        f"It always predicts one of its {len(card.classes)} classes, whatever the image shows.",
        f"It was trained on {card.train} images of one client; other images may differ in classes and lighting.",
        "Logits agree with the trained network to 1e-5; other hardware adds in another order and rounds differently.",
    ]
    if card.kind == "snn" and not bridge:
        limits.append("A neuron within rounding error of its threshold may fire in one runtime but not in another.")
    if card.precision != "fp32":
        limits.append(f"It was trained and evaluated in {card.precision}; the file computes in float32.")
    if card.preprocessing.resize == "enlarged":
        limits.append("Images are rounded to 8 bits after resizing; in training they were not.")
    return {
        "client": {
            "label": label,
            "id": card.id,
            "kind": "ann" if bridge else card.kind,
            "model": "bridge" if bridge else card.model,
            "width": card.width,
            "T": 1 if bridge else card.T,
            "bits": 32 if bridge else card.bits,
            "decay": card.neuron.decay,
            "threshold": card.neuron.threshold,
        },
        "input": {
            "images": f"uint8 [N, {card.channels}, {card.image_size}, {card.image_size}]",
            "frames": f"{card.frames}, folded into the channels" if events else "static images",
            "preprocessing": card.preprocessing.describe(card.image_size, card.frames),
            "mean": list(card.mean),
            "std": list(card.std),
            "normalisation": "inside the network",
            "logits": f"float32 [N, {len(card.classes)}], the mean over time steps",
            "classes": list(card.classes),
        },
        "training": {
            "method": card.method,
            "data": card.data,
            "rounds": card.rounds,
            "training images": card.train,
            "accuracy on its own test images, in percent": None if bridge else card.accuracy,
            "specification": card.specification,
            **{f"version of {name}": version for name, version in card.versions.items()},
        },
        "classes": list(card.classes),
        "data": data if isinstance(data, str) else card.data if data is None else "given data",
        "limits": limits,
    }
