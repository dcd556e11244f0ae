"""Converts labelled images of any source to a trained client's image size and class numbers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asfedbridge.core.errors import BadInput
from asfedbridge.data.dataset import Dataset
from asfedbridge.data.event_frames import Framing
from asfedbridge.data.inputs import Reader
from asfedbridge.data.memory_map import Images, read
from asfedbridge.data.random_crop import RESIZED
from asfedbridge.data.sources.registry import data_root, load
from asfedbridge.runs.client_card import ClientCard

MAX_NAMES = 20  # classes listed in a message


def reader_for(card: ClientCard) -> Reader:
    framing = Framing(card.frames, card.preprocessing.frames_by)
    rescaled = card.preprocessing.resize == "enlarged"
    return Reader(card.channels, card.image_size, rescaled, card.frames, framing, card.data)


def read_labelled(card: ClientCard, reader: Reader, data: Any, root: str | Path | None) -> tuple[Images, Tensor]:
    """8-bit images and labels from the name of a data source, a ``Dataset`` or a pair (images, labels)."""
    if isinstance(data, str):
        data = load_source(reader, data, root)
    if isinstance(data, Dataset):
        return _fit(card, reader, data), renumber(card, data.y_test, data.classes, data.name)
    if not (isinstance(data, tuple) and len(data) == 2):
        raise BadInput(f"data={type(data).__name__}: give the name of a data source, or a pair (images, labels)")
    images, labels = data
    found = [one.pixels for one in reader.read(images)]
    if not found:
        raise BadInput("data: there are no images; give at least one")
    if len({pixels.shape[1:] for pixels in found}) > 1:
        raise BadInput(
            "data: the images have different sizes, but this client scales whole batches; give images of one size"
        )
    pixels = torch.cat(found)
    return pixels, _read_labels(card, labels, len(pixels))


def load_source(reader: Reader, name: str, root: str | Path | None) -> Dataset:
    """Load a data source in the image size of the reader's client."""
    place = data_root(str(root) if root is not None else None)
    return load(name, place, reader.image_size, RESIZED if reader.rescaled else "none", framing=reader.framing)


def renumber(card: ClientCard, labels: Tensor, classes: Sequence[str], name: str) -> Tensor:
    """Convert labels to the client's class numbers by class name."""
    for text in classes:
        if text not in card.classes:
            raise BadInput(
                f"data={name}: its class '{text}' is not one of this client's ({', '.join(card.classes[:MAX_NAMES])}); "
                f"give data with the same classes"
            )
    return torch.tensor([card.classes.index(text) for text in classes])[labels]


def _fit(card: ClientCard, reader: Reader, data: Dataset) -> Images:
    if data.frames != card.frames:
        kinds = f"{data.frames} frames per example, this client takes {card.frames}"
        raise BadInput(f"data={data.name}: {kinds}; give data with as many frames")
    side = min(data.height, data.width) if reader.rescaled else card.image_size
    fits = tuple(data.x_test.shape[1:]) == (card.channels, side, side)
    return data.x_test if fits else reader.fit(read(data.x_test), f"data={data.name}")


def _read_labels(card: ClientCard, labels: Any, count: int) -> Tensor:
    given = labels.tolist() if isinstance(labels, np.ndarray | Tensor) else list(labels)
    known = {text: number for number, text in enumerate(card.classes)}
    found = [known.get(label, -1) if isinstance(label, str) else label for label in given]
    if len(found) != count:
        raise BadInput(f"data: {count} images and {len(found)} labels; give one label for each image")
    for label, number in zip(given, found, strict=True):
        if type(number) is not int or not 0 <= number < len(known):
            raise BadInput(f"data: the label {label!r} is not a class; give 0 to {len(known) - 1}, or their names")
    return torch.tensor(found)
