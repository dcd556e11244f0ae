"""Tiny-ImageNet as published: 200 classes with 500 training and 50 validation images of 64x64 pixels each.

The official validation set serves as test set, because the labels of the official test images are not public. Images
are decoded once into a memory-mapped cache and normalised with ImageNet's usual constants.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from asfedbridge.core.errors import BadInput
from asfedbridge.core.reading import read_lines
from asfedbridge.data.archive import Archive, Progress, make_folder, obtain, unzip
from asfedbridge.data.dataset import Dataset, assemble
from asfedbridge.data.decode_cache import decoded, refusal, stamp
from asfedbridge.data.image_folder import read_image
from asfedbridge.data.memory_map import Mapped
from asfedbridge.data.random_crop import RESIZED
from asfedbridge.data.sources.registry import Request, Source, add_source

NAME, FOLDER = "tiny-imagenet", "tiny-imagenet-200"
ARCHIVE = Archive("http://cs231n.stanford.edu/tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de")
SIDE = 64
SIZE = 224  # the paper's image size, used for image_size=0
PER_CLASS = {"train": 500, "val": 50}  # images
STATISTICS = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # of ImageNet
SUFFIXES = {".jpeg", ".jpg"}
MAX_NAMES = 3  # missing files listed by name in a message; the others are counted


@dataclass(frozen=True)
class Listing:
    """Paths of all images of one half, relative to the folder, and their labels."""

    files: list[str]
    labels: list[int]


def load_tiny(request: Request) -> Dataset:
    """With ``augment=auto``: resized crops if image_size is 0 (which gives 224) or above 64, otherwise "crop+flip"."""
    root, image_size, augment = request.root, request.image_size, request.augment
    skip_damaged = request.skip_damaged
    if augment == "auto":
        augment = RESIZED if image_size == 0 or image_size > SIDE else "crop+flip"
    folder = root / FOLDER
    classes = read_classes(folder)
    train, test = list_images(folder, list(classes), skip_damaged)
    items = train.files + test.files
    store = decoded(
        root / "decoded" / NAME,
        items,
        partial(decode, str(folder)),
        (SIDE, SIDE, 3),
        np.uint8,
        {"source": NAME, "files": stamp([folder / item for item in items])},
        skip_damaged,
    )
    assert isinstance(store.rows, np.memmap)
    images, labels = Mapped(store.rows), torch.tensor(train.labels + test.labels)
    kept, cut = torch.from_numpy(store.kept), len(train.files)
    training, testing = ((images[rows], labels[rows]) for rows in (kept[kept < cut], kept[kept >= cut]))
    stored = 0 if augment == RESIZED else image_size
    data = assemble(NAME, training, testing, tuple(classes.values()), augment, stored, STATISTICS)
    return replace(data, scaled_to=image_size or SIZE) if augment == RESIZED else data


def is_here(root: Path) -> bool:
    return (root / FOLDER / "wnids.txt").is_file()


def fetch(root: Path, progress: Progress) -> Path:
    """Downloads the set without its test images, which have no labels."""
    folder = root / FOLDER
    try:
        list_images(folder, list(read_classes(folder)), skip_missing=False)
    except BadInput:
        make_folder(root)
        unzip(obtain(ARCHIVE, root, progress), root, FOLDER, progress)
    return folder


def read_classes(folder: Path) -> dict[str, str]:
    """Maps the sorted class ids of wnids.txt to their first names in words.txt."""
    ids = sorted({line.strip() for line in _lines(folder / "wnids.txt")} - {""})
    if len(ids) < 2:
        raise BadInput(f"{folder / 'wnids.txt'} names {len(ids)} classes: {remedy(folder)}")
    words = dict(line.partition("\t")[::2] for line in _lines(folder / "words.txt"))
    names = {wnid: words.get(wnid, wnid).partition(",")[0].strip() or wnid for wnid in ids}
    count = Counter(names.values())
    return {wnid: word if count[word] == 1 else f"{word} ({wnid})" for wnid, word in names.items()}


def list_images(folder: Path, classes: Sequence[str], skip_missing: bool) -> tuple[Listing, Listing]:
    """Training and test images, class by class. Raises BadInput that names missing images unless ``skip_missing``."""
    number = {wnid: label for label, wnid in enumerate(classes)}
    train: list[list[str]] = [
        [f"train/{wnid}/images/{name}" for name in list_names(folder / "train" / wnid / "images")] for wnid in classes
    ]
    val: list[list[str]] = [[] for _ in classes]
    missing = []
    present = set(list_names(folder / "val" / "images"))
    for line in _lines(folder / "val" / "val_annotations.txt"):
        name, _, rest = line.partition("\t")
        wnid = rest.partition("\t")[0]
        if wnid in number and name in present:
            val[number[wnid]].append(f"val/images/{name}")
        elif wnid in number:
            missing.append(f"val/images/{name}")
        present.discard(name)
    missing += [f"the annotation of val/images/{name}" for name in sorted(present, key=natural)]
    for half, groups in (("train", train), ("val", val)):
        for wnid, files in zip(classes, groups, strict=True):
            if not files:
                raise BadInput(f"{folder}: class {wnid} has no {half} image: {remedy(folder)}")
            if len(files) < PER_CLASS[half]:
                missing.append(f"{PER_CLASS[half] - len(files)} of {PER_CLASS[half]} {half} images of {wnid}")
    if missing and not skip_missing:
        more = f" and {len(missing) - MAX_NAMES} more" if len(missing) > MAX_NAMES else ""
        raise refusal(f"{folder} lacks {', '.join(missing[:MAX_NAMES])}{more}: {remedy(folder)}")
    train_files, val_files = (
        Listing([f for group in groups for f in group], [n for n, group in enumerate(groups) for _ in group])
        for groups in (train, val)
    )
    return train_files, val_files


def decode(folder: str, item: str) -> np.ndarray:
    """Decodes an image to [64, 64, 3]; grey images get three equal channels."""
    file = Path(folder) / item
    x = read_image(file, "RGB", 0)
    if x.shape[2:] != (SIDE, SIDE):
        raise BadInput(f"{file}: {x.shape[2]}x{x.shape[3]} pixels, expected {SIDE}x{SIDE}: replace or remove it")
    return x[0].movedim(0, -1).contiguous().numpy()


def list_names(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    return sorted((p.name for p in folder.iterdir() if p.suffix.lower() in SUFFIXES), key=natural)


def natural(name: str) -> tuple[int, str]:
    """A sort key that puts val_9 before val_10."""
    return len(name), name


def _lines(path: Path) -> list[str]:
    return read_lines(path, fix=remedy(path))


def remedy(path: Path) -> str:
    root = next(parent for parent in [path, *path.parents] if parent.name == FOLDER).parent
    return (
        f"run `asfedbridge data fetch {NAME}`; without internet access, download {ARCHIVE.url} on another machine, put "
        f"it at {root / ARCHIVE.archive} and run it again"
    )


add_source(
    Source(
        name=NAME,
        about="110 000 photographs, 64x64 RGB, 200 classes; scaled to 224x224 unless image_size is set",
        load=load_tiny,
        is_here=is_here,
        fetch=fetch,
        settings={"cpu": {"train_per_class": 15, "image_size": 16}},
    )
)
