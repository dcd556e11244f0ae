"""Published data sets of event recordings, one file per recording.

N-MNIST: Orchard et al., Frontiers in Neuroscience 2015. CIFAR10-DVS: Li et al., Frontiers in Neuroscience 2017.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from asfedbridge.core.errors import BadInput
from asfedbridge.data.dataset import Dataset, assemble
from asfedbridge.data.decode_cache import decoded, stamp
from asfedbridge.data.event_formats import DVS128_SIDE, NMNIST_SIDE, Events, read_cifar10_dvs, read_nmnist
from asfedbridge.data.event_frames import Framing, check_size, frames_of, left_out, scale
from asfedbridge.data.npz import class_names
from asfedbridge.data.sources.registry import Request, Source, add_source

FORMAT = 1  # increase it when the conversion to frames changes, so that old caches are not used
TEST_SHARE = 0.1  # of CIFAR10-DVS, which has no official test set


@dataclass(frozen=True)
class Collection:
    """A published data set: one file per recording, one folder per class."""

    about: str
    classes: tuple[str, ...]
    halves: tuple[str, ...]  # folders of training and test recordings; empty: ``held_out`` decides by name
    suffix: str
    read: Callable[[Path], Events]
    side: int  # pixels of the sensor
    size: int  # default pixels of a frame
    augment: str
    official: int  # total number of recordings
    origin: str
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # see Source


COLLECTIONS = {
    "nmnist": Collection(
        about="70 000 event recordings of handwritten digits, 34x34, T frames of 2 polarities, 10 classes",
        classes=tuple("0123456789"),
        halves=("Train", "Test"),
        suffix=".bin",
        read=read_nmnist,
        side=NMNIST_SIDE,
        size=NMNIST_SIDE,
        augment="crop",  # a mirrored digit is not a digit
        official=70_000,
        origin="Train.zip and Test.zip of https://www.garrickorchard.com/datasets/n-mnist",
    ),
    "cifar10-dvs": Collection(
        about="10 000 event recordings of photographs, 48x48 of 128x128, T frames of 2 polarities, 10 classes",
        classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        halves=(),
        suffix=".aedat",
        read=read_cifar10_dvs,
        side=DVS128_SIDE,
        size=48,
        augment="crop+flip",
        official=10_000,
        origin="the ten archives of https://doi.org/10.6084/m9.figshare.4724671",
        settings={
            "paper": {"T": 10, "image_size": 48},
            "cpu": {"train_per_class": 150, "test_per_class": 100, "image_size": 24},
            "extended": {"twin_rounds": 0},  # on frames, an ANN twin has another stem
        },
    ),
}


def held_out(recording: str) -> bool:
    """True if a recording of a set without an official split is a test example. Depends only on its file name."""
    digest = hashlib.sha256(Path(recording).stem.encode()).digest()
    return int.from_bytes(digest[:8], "big") < TEST_SHARE * 2**64


def remedy(name: str, root: Path) -> str:
    known = COLLECTIONS[name]
    folder = root.joinpath(name, *known.halves[:1], known.classes[0])
    return f"download {known.origin} and unpack them into {root / name}, so that there is {folder}/*{known.suffix}"


def find(name: str, root: Path) -> tuple[list[str], list[str]]:
    """Training and test recordings, class by class, as paths relative to the set's folder."""
    known, folder = COLLECTIONS[name], root / name
    halves: dict[str, list[str]] = {half: [] for half in known.halves or ("",)}
    for half, found in halves.items():
        for label in known.classes:
            here = folder / half / label
            names = sorted(p.name for p in here.glob(f"*{known.suffix}") if not p.name.startswith("."))
            if not names:
                raise BadInput(f"{here}: contains no {known.suffix} recording: {remedy(name, root)}")
            found += [str(Path(half, label, file)) for file in names]
    if known.halves:
        train, test = halves.values()
        return train, test
    return [item for item in halves[""] if not held_out(item)], [item for item in halves[""] if held_out(item)]


def decode(item: str, name: str, root: str, size: int, framing: Framing) -> np.ndarray:
    known = COLLECTIONS[name]
    return frames_of(known.read(Path(root, name, item)), known.side, size, framing)


def is_here(name: str, root: Path) -> bool:
    return (root / name).is_dir()


def check_count(name: str, root: Path) -> list[str]:
    found, official = sum(map(len, find(name, root))), COLLECTIONS[name].official
    if found != official:
        raise BadInput(f"{root / name}: has {found} recordings, expected {official}: {remedy(name, root)}")
    return []


def load_collection(request: Request) -> Dataset:
    """Loads frames of a published set from the decode cache in the data root."""
    name, root, framing = request.name, request.root, request.framing
    known = COLLECTIONS[name]
    size = check_size(name, request.stored_size or known.size, known.side)
    halves = find(name, root)
    items = [item for half in halves for item in half]
    store = decoded(
        root / "decoded" / name,
        items,
        partial(decode, name=name, root=str(root), size=size, framing=framing),
        (2 * framing.steps, size, size),
        np.uint8,
        {
            "source": stamp([root / name / item for item in items]),
            "format": FORMAT,
            "frames": framing.steps,
            "by": framing.by,
            "size": size,
            "split": "official" if known.halves else f"sha256 of the name below {TEST_SHARE}",
        },
        request.skip_damaged,
    )
    label = {text: number for number, text in enumerate(known.classes)}
    y = torch.tensor([label[Path(item).parent.name] for item in items])
    first = len(halves[0])
    # Slices are views of the memory map. Only if items are omitted are the rows copied.
    parts = (
        (store.kept[store.kept < first], store.kept[store.kept >= first])
        if store.damaged
        else (slice(first), slice(first, None))
    )
    train, test = ((torch.from_numpy(store.rows[part]), y[part]) for part in parts)
    classes = class_names(str(root / name), np.array(known.classes), train[1], test[1])
    data = assemble(name, train, test, classes, known.augment, 0, scale(train[0]))
    return replace(data, frames=framing.steps, notes=left_out(name, [items[n] for n in store.damaged]))


for _name, _collection in COLLECTIONS.items():
    add_source(
        Source(
            name=_name,
            about=_collection.about,
            load=load_collection,
            is_here=partial(is_here, _name),
            instructions=partial(remedy, _name),
            check=partial(check_count, _name),
            settings=_collection.settings,
        )
    )
