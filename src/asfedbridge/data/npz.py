"""Image data sets in one NumPy archive: `npz:PATH` with x_train, y_train, x_test, y_test.

Optional arrays: classes (names), client_train and client_test (the client of each example, for partition=assigned).
"""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from asfedbridge.core.errors import BadInput
from asfedbridge.data.dataset import Dataset, assemble, check_alike, check_pixels
from asfedbridge.data.npz_archive import open_npz

KEYS = ("x_train", "y_train", "x_test", "y_test")
HALVES = ("train", "test")
MAX_CHANNELS = 1024  # event frames have 2 per time step
OPTIONAL = ("classes", "client_train", "client_test")


def load_npz(name: str, path: Path, image_size: int) -> Dataset:
    """Runs all checks that do not need the pixels before it reads them."""
    where = str(path)
    with open_npz(path, KEYS, OPTIONAL) as archive:
        declared = archive.declared
        for half in HALVES:
            x, y = check_images(where, f"x_{half}", declared[f"x_{half}"]), declared[f"y_{half}"]
            check_labels(where, f"y_{half}", y)
            if len(x) != len(y):
                raise BadInput(
                    f"{path}: x_{half} has {len(x)} images but y_{half} has {len(y)} labels: store one label per image"
                )
        if not image_size:
            check_alike(name, *(check_images(where, key, declared[key]).shape for key in ("x_train", "x_test")))
        arrays = {key: archive.read(key) for key in declared if not key.startswith("x_")}
        y_train, y_test = (labels(where, f"y_{half}", arrays[f"y_{half}"]) for half in HALVES)
        classes = class_names(where, arrays.get("classes"), y_train, y_test)
        x_train, x_test = (images(where, f"x_{half}", archive.read(f"x_{half}")) for half in HALVES)
    data = assemble(name, (x_train, y_train), (x_test, y_test), classes, "crop+flip", image_size)
    return with_clients(where, data, arrays.get("client_train"), arrays.get("client_test"))


def images(where: str, key: str, x: np.ndarray) -> Tensor:
    """Views uint8 [N, H, W, C] or [N, H, W] as [N, C, H, W]."""
    return torch.from_numpy(check_images(where, key, x))


def check_images(where: str, key: str, x: np.ndarray) -> np.ndarray:
    """Like ``images``, but returns an array. Checks type and shape, not values."""
    if x.dtype != np.uint8:
        raise BadInput(f"{where}: {key} is {x.dtype}: convert the pixels to uint8 0..255")
    if x.ndim == 3:
        x = x[..., None]
    if x.ndim != 4:
        raise BadInput(f"{where}: {key} has shape {x.shape}: store images as [N, H, W, C] or grey [N, H, W]")
    if x.size == 0:
        raise BadInput(f"{where}: {key} is empty, shape {x.shape}: store at least one image of every class")
    if x.shape[1] < 8 and x.shape[2] == x.shape[3]:
        raise BadInput(f"{where}: {key} has shape {x.shape}, which looks channels-first: transpose it to [N, H, W, C]")
    if x.shape[3] > MAX_CHANNELS:
        raise BadInput(
            f"{where}: {key} has {x.shape[3]} channels: store images as [N, H, W, C], C at most {MAX_CHANNELS}"
        )
    check_pixels(f"{where}: {key}", x.shape[1], x.shape[2])
    return x.transpose(0, 3, 1, 2)


def labels(where: str, key: str, y: np.ndarray) -> Tensor:
    check_labels(where, key, y)
    if y.min() < 0:
        raise BadInput(f"{where}: {key} contains the negative label {y.min()}: count classes from 0")
    if y.max() > np.iinfo(np.int32).max:
        raise BadInput(f"{where}: {key} contains the label {y.max()}: count classes from 0 without gaps")
    return torch.from_numpy(y.astype(np.int64))


def check_labels(where: str, key: str, y: np.ndarray) -> None:
    """Checks type and shape, not values."""
    if y.dtype.kind not in "iu":
        raise BadInput(f"{where}: {key} is {y.dtype}: store labels as integers counted from 0")
    if y.ndim != 1:
        raise BadInput(f"{where}: {key} has shape {y.shape}: store one label per image, shape [N]")
    if y.size == 0:
        raise BadInput(f"{where}: {key} is empty: store at least one example of every class")


def class_names(where: str, given: np.ndarray | None, y_train: Tensor, y_test: Tensor) -> tuple[str, ...]:
    """The given names, or the numbers 0..max. Checks that every class has a training and a test example."""
    highest = max(int(y_train.max()), int(y_test.max()))
    count = highest + 1
    if given is not None:
        if given.ndim != 1 or given.dtype.kind not in "USiu":
            raise BadInput(f"{where}: classes is {given.dtype} of shape {given.shape}: store a list of names")
        count = len(given)
        if highest >= count:
            raise BadInput(
                f"{where}: label {highest} is out of range for the {count} names in classes: store one per label"
            )
    if count < 2:
        raise BadInput(f"{where}: has only {count} class: store at least two")
    for half, y in (("training", y_train), ("test", y_test)):
        # Uses only the labels that occur: an array of `count` entries could fill the memory if one label is huge.
        present = torch.unique(y)
        gaps = torch.nonzero(present != torch.arange(len(present)))
        missing = int(gaps[0]) if len(gaps) else len(present)
        if missing < count:
            raise BadInput(f"{where}: class {missing} of {count} has no {half} example: add one or renumber the labels")
    if given is None:
        return tuple(str(label) for label in range(count))
    names = tuple(n.decode("utf-8", "replace") if isinstance(n, bytes) else str(n) for n in given.tolist())
    for name, count in Counter(names).items():
        if count > 1:
            raise BadInput(f"{where}: classes contains {name[:80]!r} twice: give every class its own name")
    return names


def with_clients(where: str, data: Dataset, train: np.ndarray | None, test: np.ndarray | None) -> Dataset:
    """The data set with the client of each training example and, optionally, of each test example."""
    if train is None:
        if test is not None:
            raise BadInput(f"{where}: client_test without client_train: store the clients of the training examples too")
        return data
    own = _client_ids(where, "client_train", train, len(data.y_train))
    held = None if test is None else _client_ids(where, "client_test", test, len(data.y_test))
    return replace(data, client_train=own, client_test=held)


def _client_ids(where: str, key: str, ids: np.ndarray, count: int) -> Tensor:
    if ids.dtype.kind not in "iu" or ids.shape != (count,):
        what = f"{ids.dtype} of shape {ids.shape}"
        raise BadInput(f"{where}: {key} is {what}: store one integer client id for each of {count} examples")
    if ids.min() < 0 or ids.max() > np.iinfo(np.int32).max:
        raise BadInput(f"{where}: {key} contains {ids.min()} to {ids.max()}: count clients from 0")
    return torch.from_numpy(ids.astype(np.int64))
