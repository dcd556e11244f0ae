"""Converts data sets of other libraries to arrays: torch ``Dataset``, Hugging Face ``datasets``, NumPy arrays, tensors.

A data set needs a length, and items that are (image, label) pairs or rows with an image and a label column.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asfedbridge.core.errors import BadInput, describe_error
from asfedbridge.data.dataset import Dataset, assemble, resize
from asfedbridge.data.event_frames import Framing
from asfedbridge.data.memory_map import Mapped, read
from asfedbridge.data.npz import KEYS, class_names, labels, with_clients
from asfedbridge.data.npz_events import KEYS as EVENT_KEYS
from asfedbridge.data.npz_events import frame_arrays

IMAGE_COLUMNS = ("image", "img", "pixel_values", "x")
LABEL_COLUMNS = ("label", "labels", "target", "fine_label", "y")
CLIENT_COLUMN = "client"
CHANNELS = (1, 3, 4)  # an axis of this size is taken for the channel axis
DEEP_MODES = ("I", "F")  # Pillow modes with more than 8 bits; "I;16..." are others


@dataclass(frozen=True)
class Examples:
    x: Tensor  # uint8 [N, C, H, W]
    y: Tensor  # int64 [N]
    client: np.ndarray | None = None  # the column ``client``, if the rows have it
    classes: tuple[str, ...] | None = None  # None if the data set has no class names


def as_arrays(
    dataset: Any, image: str | None = None, label: str | None = None, image_size: int = 0, where: str = "dataset"
) -> tuple[Tensor, Tensor]:
    """Converts a map-style data set, or a pair of arrays (x, y), to images uint8 [N, C, H, W] and labels int64 [N].

    Images are arrays, tensors or PIL images of shape H x W, H x W x C or C x H x W. Pixels are uint8, or floats from
    0 to 1, which are scaled and rounded. If grey and colour images are mixed, all become RGB. ``image`` and ``label``
    name the columns of rows; by default the usual names are tried. ``image_size`` crops the central square of each
    image and resizes it; it is required if sizes differ. Error messages start with ``where``.
    """
    found = read_examples(dataset, image, label, image_size, where)
    return found.x, found.y


def as_dataset(
    name: str,
    found: Any,
    augment: str,
    stored_size: int = 0,
    stored_size_of_any: int = 0,
    framing: Framing | None = None,
    skip_damaged: bool = False,
) -> Dataset:
    """Converts the return value of a function decorated with ``register_data`` to a checked ``Dataset``."""
    if isinstance(found, Dataset):
        return _checked(name, found, stored_size)
    if isinstance(found, Mapping) and set(EVENT_KEYS) <= set(found):
        arrays = {key: _array(value) for key, value in found.items()}
        return frame_arrays(name, name, arrays, stored_size, framing or Framing(), skip_damaged)
    train, test = _halves(name, found, stored_size, stored_size_of_any)
    if {train.x.shape[1], test.x.shape[1]} == {1, 3}:
        train, test = (replace(half, x=half.x.expand(-1, 3, -1, -1)) for half in (train, test))
    given = None if train.classes is None else np.array(train.classes)
    classes = class_names(name, given, train.y, test.y)
    data = assemble(name, (train.x, train.y), (test.x, test.y), classes, augment, 0)
    return with_clients(name, data, train.client, test.client)


def _halves(name: str, found: Any, stored_size: int, stored_size_of_any: int) -> tuple[Examples, Examples]:
    """Training and test examples of a mapping of arrays, a pair, or a mapping with keys "train" and "test"."""
    if isinstance(found, Mapping) and set(KEYS) <= set(found):
        return _named_arrays(name, found, "train", stored_size), _named_arrays(name, found, "test", stored_size)
    if isinstance(found, Mapping) and {"train", "test"} <= set(found):
        found = (found["train"], found["test"])
    if not (isinstance(found, tuple | list) and len(found) == 2):
        what = f"a mapping of {', '.join(map(str, found))}" if isinstance(found, Mapping) else type(found).__name__
        raise BadInput(
            f"{name}: its function returned {what}: return a Dataset, a mapping of {', '.join(KEYS)}, or a pair "
            f"(train, test)"
        )
    train = read_examples(found[0], None, None, stored_size_of_any, f"{name}: train")
    return train, read_examples(found[1], None, None, stored_size_of_any, f"{name}: test")


def _named_arrays(name: str, found: Mapping[str, Any], half: str, size: int) -> Examples:
    examples = _from_arrays(found[f"x_{half}"], found[f"y_{half}"], size, f"{name}: {half}")
    client, classes = found.get(f"client_{half}"), found.get("classes")
    return replace(
        examples,
        client=None if client is None else _array(client),
        classes=None if classes is None else tuple(map(str, classes)),
    )


def read_examples(dataset: Any, image: str | None, label: str | None, image_size: int, where: str) -> Examples:
    if _is_pair_of_arrays(dataset):
        return _from_arrays(dataset[0], dataset[1], image_size, where)
    if isinstance(dataset, Mapping | str) or not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise BadInput(
            f"{where}: {type(dataset).__name__} is not a map-style dataset: give one with a length and items "
            f"(image, label), or a pair of arrays (x, y)"
        )
    count = len(dataset)
    if count == 0:
        raise BadInput(f"{where}: the data set is empty: give at least one example of every class")
    first = _item(dataset, 0, where)
    columns = _columns(first, image, label, where) if isinstance(first, Mapping) else None
    has_client = columns is not None and CLIENT_COLUMN in first
    x: np.ndarray | None = None
    y, clients = [], []
    for number in range(count):
        row, place = first if number == 0 else _item(dataset, number, where), f"{where}: item {number}"
        picture, target = _fields(row, columns, place)
        pixels = _resized(_images(_pixels(picture, place), place, single=True), image_size)[0].numpy()
        if x is None:
            x = np.empty((count, *pixels.shape), np.uint8)
        x = _store(x, number, pixels, place)
        y.append(_label(target, f"{place}: label"))
        if has_client:
            clients.append(_label(row[CLIENT_COLUMN], f"{place}: {CLIENT_COLUMN}"))
    assert x is not None
    return Examples(
        torch.from_numpy(x),
        labels(where, "labels", np.array(y)),
        np.array(clients) if has_client else None,
        _class_names(dataset, columns),
    )


def _item(dataset: Any, number: int, where: str) -> Any:
    try:
        return dataset[number]
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(f"{where}: item {number} cannot be read: {describe_error(error)}") from error


def _from_arrays(x: Any, y: Any, image_size: int, where: str) -> Examples:
    images, given = _images(_array(x), f"{where}: x"), labels(where, "y", _array(y))
    if len(images) != len(given):
        raise BadInput(f"{where}: {len(images)} images but {len(given)} labels: give one label per image")
    return Examples(_resized(images, image_size), given)


def _is_pair_of_arrays(dataset: Any) -> bool:
    return (
        isinstance(dataset, tuple | list)
        and len(dataset) == 2
        and all(isinstance(part, np.ndarray | Tensor) for part in dataset)
        and dataset[0].ndim > 2
    )


def _array(value: Any) -> np.ndarray:
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)


def _columns(row: Mapping[str, Any], image: str | None, label: str | None, where: str) -> tuple[str, str]:
    found = []
    for what, given, usual in (("image", image, IMAGE_COLUMNS), ("label", label, LABEL_COLUMNS)):
        choices = [name for name in ((given,) if given else usual) if name in row]
        if not choices:
            raise BadInput(
                f"{where}: no column {given or ' or '.join(usual)} among {', '.join(map(str, row))}: name the "
                f"{what} column with {what}=NAME, or rename it"
            )
        found.append(choices[0])
    return found[0], found[1]


def _fields(row: Any, columns: tuple[str, str] | None, place: str) -> tuple[Any, Any]:
    if columns and isinstance(row, Mapping) and set(columns) <= set(row):
        return row[columns[0]], row[columns[1]]
    if columns is None and isinstance(row, tuple | list) and len(row) == 2:
        return row[0], row[1]
    what = f"{type(row).__name__} of {len(row)}" if isinstance(row, tuple | list) else type(row).__name__
    raise BadInput(f"{place} is a {what}: expected (image, label)" + (" as in the previous rows" if columns else ""))


def _pixels(picture: Any, place: str) -> np.ndarray:
    """Converts a PIL image, a tensor or nested lists to an array."""
    if hasattr(picture, "convert") and hasattr(picture, "mode"):
        if picture.mode in DEEP_MODES or picture.mode.startswith("I;"):
            raise BadInput(
                f"{place}: pixels of type {picture.mode} are deeper than 8 bits: convert the image to 8 bits"
            )
        return np.asarray(picture.convert("L" if picture.mode in ("1", "L", "LA") else "RGB"))
    if isinstance(picture, np.ndarray | Tensor | list):
        return _array(picture)
    raise BadInput(f"{place}: the image is a {type(picture).__name__}: give an array, a tensor or a PIL image")


def _images(x: np.ndarray, place: str, single: bool = False) -> Tensor:
    """Converts an array with a batch axis, or a single image, to uint8 [N, C, H, W]."""
    if x.ndim not in ((2, 3) if single else (3, 4)):
        shapes = "H x W, H x W x C or C x H x W"
        raise BadInput(f"{place}: the image has shape {x.shape}: expected {shapes}" + ("" if single else " after N"))
    if x.size == 0:
        raise BadInput(f"{place}: the image is empty, shape {x.shape}: give at least one pixel")
    x = _as_bytes(x[None] if single else x, place)
    if x.ndim == 3:
        x = x[:, None]
    elif not _channels_first(x.shape[1:]):
        x = x.transpose(0, 3, 1, 2)
    x = np.ascontiguousarray(x)
    return torch.from_numpy(x if x.flags.writeable else x.copy())


def _channels_first(shape: Sequence[int]) -> bool:
    """True if the first axis of an image is the channel axis. If the sizes in ``CHANNELS`` do not decide, the two equal
    axes are taken for height and width."""
    first, last = shape[0] in CHANNELS, shape[2] in CHANNELS
    return first if first != last else shape[1] == shape[2] and shape[0] != shape[1]


def _as_bytes(x: np.ndarray, place: str) -> np.ndarray:
    if x.dtype == np.uint8:
        return x
    if x.dtype.kind not in "iuf":
        raise BadInput(f"{place}: pixels are {x.dtype}: give uint8 from 0 to 255, or floats from 0 to 1")
    least, most = float(x.min()), float(x.max())
    if x.dtype.kind in "iu":
        if least < 0 or most > 255:
            raise BadInput(f"{place}: pixels are {x.dtype} from {least:g} to {most:g}: give uint8 from 0 to 255")
        return x.astype(np.uint8)
    if not (least >= 0 and most <= 1):  # also NaN
        raise BadInput(
            f"{place}: pixels are {x.dtype} from {least:g} to {most:g}: give floats from 0 to 1, not normalised, or "
            f"uint8"
        )
    return np.rint(x.astype(np.float32) * 255).astype(np.uint8)


def _resized(x: Tensor, image_size: int) -> Tensor:
    return read(resize(x, image_size)) if image_size else x


def _store(x: np.ndarray, number: int, pixels: np.ndarray, place: str) -> np.ndarray:
    """Stores an image. After the first colour image, all images have three channels."""
    if {len(pixels), x.shape[1]} == {1, 3}:
        if x.shape[1] == 1:
            x = np.repeat(x, 3, axis=1)
        else:
            pixels = np.repeat(pixels, 3, axis=0)
    if pixels.shape != x.shape[1:]:
        sizes = f"{'x'.join(map(str, pixels.shape))}, previous images are {'x'.join(map(str, x.shape[1:]))}"
        raise BadInput(f"{place}: the image is {sizes}: give image_size=N to resize all images")
    x[number] = pixels
    return x


def _label(target: Any, place: str) -> int:
    value = _array(target) if isinstance(target, np.ndarray | np.generic | Tensor) else target
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadInput(f"{place}: {repr(value)[:40]} is not an integer: give integers counted from 0")
    return value


def _class_names(dataset: Any, columns: tuple[str, str] | None) -> tuple[str, ...] | None:
    """Class names as stored by torchvision (``classes`` of the set) or Hugging Face (``names`` of the label column)."""
    features = getattr(dataset, "features", None)
    names = getattr(dataset, "classes", None)
    if columns and isinstance(features, Mapping):
        names = getattr(features.get(columns[1]), "names", None)
    return tuple(map(str, names)) if isinstance(names, list | tuple) else None


def _checked(name: str, data: Dataset, image_size: int) -> Dataset:
    """Checks a ``Dataset`` that a user's function made."""
    halves = []
    for half, x, y in (("train", data.x_train, data.y_train), ("test", data.x_test, data.y_test)):
        if not isinstance(x, Mapped) and (x.dtype != torch.uint8 or x.ndim != 4):
            raise BadInput(f"{name}: x_{half} is {x.dtype} of shape {tuple(x.shape)}: give uint8 [N, C, H, W]")
        target = labels(name, f"y_{half}", _array(y))
        if len(x) != len(target):
            raise BadInput(
                f"{name}: x_{half} has {len(x)} images but y_{half} has {len(target)} labels: give one per image"
            )
        halves.append((x, target))
    classes = class_names(name, np.array(data.classes), halves[0][1], halves[1][1])
    for what, values in (("mean", data.mean), ("std", data.std)):
        if len(values) != data.channels:
            raise BadInput(f"{name}: {what} has {len(values)} values for {data.channels} channels: give one for each")
    size = 0 if data.frames > 1 else image_size
    whole = assemble(name, halves[0], halves[1], classes, data.augment, size, (data.mean, data.std))
    kept = {"scaled_to": data.scaled_to, "frames": data.frames, "notes": data.notes}
    clients = (None if own is None else _array(own) for own in (data.client_train, data.client_test))
    return with_clients(name, replace(whole, **kept), *clients)  # type: ignore[arg-type]
