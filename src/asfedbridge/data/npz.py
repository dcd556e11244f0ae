"""Image sets in one NumPy archive: `npz:PATH` with x_train, y_train, x_test, y_test.

Optional arrays: classes (names), client_train and client_test (the client of each example, for partition=assigned).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from asfedbridge.core.errors import BadInput
from asfedbridge.data.dataset import Dataset, assemble
from asfedbridge.data.memory import check_bytes

KEYS = ("x_train", "y_train", "x_test", "y_test")
OPTIONAL = ("classes", "client_train", "client_test")


def load_npz(name: str, path: Path, image_size: int) -> Dataset:
    arrays, where = read_arrays(path), str(path)
    halves = {}
    for half in ("train", "test"):
        x, y = images(where, f"x_{half}", arrays[f"x_{half}"]), labels(where, f"y_{half}", arrays[f"y_{half}"])
        if len(x) != len(y):
            raise BadInput(
                f"{path}: x_{half} has {len(x)} images but y_{half} {len(y)} labels: store one label per image"
            )
        halves[half] = (x, y)
    classes = class_names(where, arrays.get("classes"), halves["train"][1], halves["test"][1])
    data = assemble(name, halves["train"], halves["test"], classes, "crop+flip", image_size)
    return with_clients(where, data, arrays.get("client_train"), arrays.get("client_test"))


def read_arrays(path: Path, keys: Sequence[str] = KEYS, optional: Sequence[str] = OPTIONAL) -> dict[str, np.ndarray]:
    """The required arrays and those of the optional ones that are there; nothing in the file is ever unpickled."""
    if not path.is_file():
        raise BadInput(f"{path}: no such file: give npz:PATH of an archive written by numpy.savez")
    try:
        # Opened here: np.load leaves a file it opened itself open when the zip directory is broken.
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if isinstance(archive, np.ndarray):
                raise BadInput(f"{path}: a single .npy array: store {', '.join(keys)} with numpy.savez")
            for key in keys:
                if key not in archive.files:
                    found = shown(", ".join(archive.files)) or "nothing"
                    raise BadInput(f"{path}: array {key} is missing (found: {found}): store {', '.join(keys)}")
            names = [key for key in (*keys, *optional) if key in archive.files]
            check_bytes(
                str(path), sum(archive.zip.getinfo(f"{key}.npy").file_size for key in names), "store fewer examples"
            )
            return {key: read_array(path, archive, key) for key in names}
    except BadInput:
        raise
    except Exception as error:  # zip and NumPy have many ways to fail on a damaged file
        raise BadInput(f"{path}: not a readable npz archive ({brief(error)}): copy or write it again") from error


def read_array(path: Path, archive: Mapping[str, np.ndarray], key: str) -> np.ndarray:
    try:
        array = archive[key]
        if not isinstance(array, np.ndarray):  # without NumPy's mark at its beginning: bytes
            raise ValueError("it is no array of NumPy's")
    except Exception as error:
        raise BadInput(f"{path}: array {key} cannot be read ({brief(error)}): write the file again") from error
    return array


def images(where: str, key: str, x: np.ndarray) -> Tensor:
    """uint8 [N, H, W, C] or [N, H, W] as a [N, C, H, W] view."""
    if x.dtype != np.uint8:
        bad = x.dtype.kind == "f" and not np.isfinite(x).all()
        what = f"{x.dtype} with NaN or infinity" if bad else str(x.dtype)
        raise BadInput(f"{where}: {key} is {what}: convert the pixels to uint8 0..255")
    if x.ndim == 3:
        x = x[..., None]
    if x.ndim != 4:
        raise BadInput(f"{where}: {key} has shape {x.shape}: store images as [N, H, W, C] or grey [N, H, W]")
    if x.size == 0:
        raise BadInput(f"{where}: {key} is empty, shape {x.shape}: store at least one image of every class")
    if x.shape[1] < 8 and x.shape[2] == x.shape[3]:
        raise BadInput(f"{where}: {key} has shape {x.shape}, which looks channels-first: transpose it to [N, H, W, C]")
    return torch.from_numpy(x).permute(0, 3, 1, 2)


def labels(where: str, key: str, y: np.ndarray) -> Tensor:
    if y.dtype.kind not in "iu":
        raise BadInput(f"{where}: {key} is {y.dtype}: store labels as integers counted from 0")
    if y.ndim != 1:
        raise BadInput(f"{where}: {key} has shape {y.shape}: store one label per image, shape [N]")
    if y.size == 0:
        raise BadInput(f"{where}: {key} is empty: store at least one example of every class")
    if y.min() < 0:
        raise BadInput(f"{where}: {key} holds the negative label {y.min()}: count classes from 0")
    if y.max() > np.iinfo(np.int32).max:
        raise BadInput(f"{where}: {key} holds the label {y.max()}: count classes from 0 without gaps")
    return torch.from_numpy(y.astype(np.int64))


def class_names(where: str, given: np.ndarray | None, y_train: Tensor, y_test: Tensor) -> tuple[str, ...]:
    """The names given, or the numbers 0..max; every class must have a training and a test example."""
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
        raise BadInput(f"{where}: only {count} class: store at least two")
    for half, y in (("training", y_train), ("test", y_test)):
        # Compared with the labels present, not counted up to `count`: a stray huge label must not fill memory.
        present = torch.unique(y)
        gaps = torch.nonzero(present != torch.arange(len(present)))
        missing = int(gaps[0]) if len(gaps) else len(present)
        if missing < count:
            raise BadInput(f"{where}: class {missing} of {count} has no {half} example: add one or renumber the labels")
    if given is None:
        return tuple(str(label) for label in range(count))
    names = tuple(n.decode("utf-8", "replace") if isinstance(n, bytes) else str(n) for n in given.tolist())
    repeated = next((n for n in names if names.count(n) > 1), None)
    if repeated is not None:
        raise BadInput(f"{where}: classes names {repeated!r} twice: give every class its own name")
    return names


def with_clients(where: str, data: Dataset, train: np.ndarray | None, test: np.ndarray | None) -> Dataset:
    """The set with the client of each training and each test example; test examples may have none."""
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
        raise BadInput(f"{where}: {key} is {what}: store the number of a client for each of {count} examples")
    if ids.min() < 0 or ids.max() > np.iinfo(np.int32).max:
        raise BadInput(f"{where}: {key} holds {ids.min()} to {ids.max()}: count clients from 0")
    return torch.from_numpy(ids.astype(np.int64))


def brief(error: BaseException) -> str:
    """The first line of an error's text, for messages that must stay on one line."""
    return shown((str(error).strip().splitlines() or [type(error).__name__])[0])


def shown(text: str, longest: int = 200) -> str:
    """What a file says, fit for a message: printable characters, not many."""
    return "".join(c if c.isprintable() else " " for c in text[:longest])
