"""CIFAR-10 and CIFAR-100 as published: pickled batches, verified by MD5."""

import codecs
import hashlib
import io
import pickle
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asfedbridge.core.errors import BadInput
from asfedbridge.core.reading import is_there, read_bytes
from asfedbridge.data.archive import Archive, Progress, extract, make_folder, obtain, state
from asfedbridge.data.dataset import Dataset, assemble
from asfedbridge.data.sources.registry import Request, Source, add_source

STATISTICS = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))


@dataclass(frozen=True)
class Release(Archive):
    """An archive with its files and the keys of its dictionaries."""

    about: str
    train_per_class: int  # in the recipe cpu
    folder: str
    train: dict[str, str]  # file name -> MD5
    test: dict[str, str]
    meta: dict[str, str]
    labels: bytes
    label_names: bytes

    @property
    def files(self) -> dict[str, str]:
        return self.train | self.test | self.meta


RELEASES = {
    "cifar10": Release(
        url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        md5="c58f30108f718f92721af3b95e74349a",
        about="60 000 photographs, 32x32 RGB, 10 classes",
        train_per_class=150,
        folder="cifar-10-batches-py",
        train={
            "data_batch_1": "c99cafc152244af753f735de768cd75f",
            "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        },
        test={"test_batch": "40351d587109b95175f43aff81a1287e"},
        meta={"batches.meta": "5ff9c542aee3614f3951f8cda6e48888"},
        labels=b"labels",
        label_names=b"label_names",
    ),
    "cifar100": Release(
        url="https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        md5="eb9058c3a382ffc7106e4002c42a8d85",
        about="60 000 photographs, 32x32 RGB, 100 classes",
        train_per_class=15,
        folder="cifar-100-python",
        train={"train": "16019d7e3df5f24257cddd939b257f8d"},
        test={"test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
        meta={"meta": "7973b15100ade9c7d40fb424638fde48"},
        labels=b"fine_labels",
        label_names=b"fine_label_names",
    ),
}


def load_cifar(request: Request) -> Dataset:
    name, release = request.name, RELEASES[request.name]
    contents = {file: read_verified(name, request.root, file) for file in release.files}
    train = _stack(release, [contents[file] for file in release.train])
    test = _stack(release, [contents[file] for file in release.test])
    (meta,) = (contents[file] for file in release.meta)
    classes = tuple(label.decode() for label in meta[release.label_names])
    return assemble(name, train, test, classes, "crop+flip", request.stored_size, STATISTICS)


def read_verified(name: str, root: Path, file: str) -> dict[bytes, Any]:
    """Verifies the MD5 of a batch file, then unpickles it with ``ArrayUnpickler``."""
    release = RELEASES[name]
    path, expected = root / release.folder / file, release.files[file]
    if not is_there(path):
        raise BadInput(f"{path} is missing: {remedy(name, root)}")
    content = read_bytes(path, fix=remedy(name, root))
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if found != expected:
        raise BadInput(f"{path} is damaged: md5 {found}, expected {expected}: {remedy(name, root)}")
    try:
        batch: dict[bytes, Any] = ArrayUnpickler(io.BytesIO(content), encoding="bytes").load()
        return batch
    except (pickle.UnpicklingError, EOFError) as error:
        raise BadInput(f"{path} is rejected ({error}): {remedy(name, root)}") from error


def is_here(name: str, root: Path) -> bool:
    release = RELEASES[name]
    return all((root / release.folder / file).is_file() for file in release.files)


def fetch(name: str, root: Path, progress: Progress) -> Path:
    release = RELEASES[name]
    folder = root / release.folder
    wanted = {file: md5 for file, md5 in release.files.items() if state(folder / file, md5) != "good"}
    if wanted:
        make_folder(folder)
        extract(obtain(release, root, progress), folder, wanted)
    return folder


def check(name: str, root: Path) -> list[str]:
    release = RELEASES[name]
    paths = {root / release.folder / file: md5 for file, md5 in release.files.items()}
    states = {path: state(path, md5) for path, md5 in paths.items()}
    bad = [f"{path} is {found}" for path, found in states.items() if found != "good"]
    if bad:
        raise BadInput(f"{'; '.join(bad)}: {remedy(name, root)}")
    return [f"{path}: good" for path in states]


def remedy(name: str, root: Path) -> str:
    release = RELEASES[name]
    offline = f"download {release.url} on another machine, put it at {root / release.archive} and run it again"
    return f"run `asfedbridge data fetch {name}`; without internet access, {offline}"


class ArrayUnpickler(pickle.Unpickler):
    """Loads plain containers and NumPy arrays and rejects all other globals.

    A pickle can call any function while it is loaded; CIFAR's pickles need only these.
    """

    # Obtained from an array, because NumPy 2 moved the module that old pickles name.
    _rebuild = np.empty(0).__reduce__()[0]
    _admitted = {  # noqa: RUF012 - never written to
        ("numpy.core.multiarray", "_reconstruct"): _rebuild,
        ("numpy._core.multiarray", "_reconstruct"): _rebuild,
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("_codecs", "encode"): codecs.encode,
    }

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self._admitted[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it requests {module}.{name}, which CIFAR files do not need") from None


def _stack(release: Release, batches: list[dict[bytes, Any]]) -> tuple[Tensor, Tensor]:
    pixels = np.concatenate([batch[b"data"] for batch in batches]).reshape(-1, 3, 32, 32)
    labels = np.concatenate([batch[release.labels] for batch in batches]).astype(np.int64)
    return torch.from_numpy(pixels), torch.from_numpy(labels)


for _name, _release in RELEASES.items():
    add_source(
        Source(
            name=_name,
            about=_release.about,
            load=load_cifar,
            is_here=partial(is_here, _name),
            fetch=partial(fetch, _name),
            check=partial(check, _name),
            settings={"cpu": {"train_per_class": _release.train_per_class, "image_size": 16}},
        )
    )
