"""The data sets a run can name, and where they are looked for."""

import difflib
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from asfedbridge.core.errors import BadInput
from asfedbridge.data.dataset import LARGEST, Dataset, assemble, check_image_size
from asfedbridge.data.event_frames import Framing
from asfedbridge.data.image_folder import load_folder
from asfedbridge.data.npz import load_npz
from asfedbridge.data.npz_events import holds_events, load_event_arrays
from asfedbridge.data.random_crop import RESIZED, enlarged
from asfedbridge.data.sources import tiny_imagenet
from asfedbridge.data.sources.cifar import RELEASES, load_cifar, remedy, state
from asfedbridge.data.sources.neuromorphic import COLLECTIONS, find, load_collection
from asfedbridge.data.sources.neuromorphic import remedy as collection_remedy

SOURCES = {
    "digits": "1 797 handwritten digits, 8x8 grey, 10 classes",
    "cifar10": "60 000 photographs, 32x32 RGB, 10 classes",
    "cifar100": "60 000 photographs, 32x32 RGB, 100 classes",
    "tiny-imagenet": "110 000 photographs, 64x64 RGB, 200 classes; served at 224x224 unless image_size says otherwise",
    "nmnist": "70 000 event recordings of handwritten digits, 34x34, T frames of 2 polarities, 10 classes",
    "cifar10-dvs": "10 000 event recordings of photographs, 48x48 of 128x128, T frames of 2 polarities, 10 classes",
    "npz:PATH": "your own uint8 arrays x_train, y_train, x_test, y_test [, classes], or events (docs/events.md)",
    "folder:PATH": "your own images, train/CLASS/* and test/CLASS/*",
}

AS_PAPER = Framing()
DIGITS_SPLIT_SEED = 20240229  # the split belongs to the data set: no run seed moves it


def data_root(given: str | None) -> Path:
    """The folder of downloaded sets: as given, else $ASFEDBRIDGE_DATA, else the user's cache folder."""
    chosen = given or os.environ.get("ASFEDBRIDGE_DATA")
    if chosen:
        return Path(chosen).expanduser()
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The XDG rules tell programs to ignore a relative path here.
    return (cache if cache.is_absolute() else Path.home() / ".cache") / "asfedbridge"


def load(
    name: str,
    root: Path,
    image_size: int = 0,
    augment: str = "auto",
    skip_damaged: bool = False,
    framing: Framing = AS_PAPER,
) -> Dataset:
    """A whole set, in memory or on disk; `root` holds downloaded sets.

    `image_size` 0 and `augment` "auto" are the source's own. Resizing takes the central square of each image and
    scales it, once; with "resized-crop+flip" images stay as they are stored and every batch is scaled anew.
    `skip_damaged` goes on without files that are damaged or missing; `framing` is how events become frames.
    """
    check_image_size(image_size)
    if name == tiny_imagenet.NAME:
        return tiny_imagenet.load_tiny(root, image_size, augment, skip_damaged)
    if augment != RESIZED:
        data = read_source(name, root, image_size, skip_damaged, framing)
        return data if augment == "auto" else replace(data, augment=augment)
    # Files have any size and shape: they are kept as large as evaluation wants them.
    stored = enlarged(image_size) if image_size and name.startswith("folder:") else 0
    data = read_source(name, root, min(stored, LARGEST), skip_damaged, framing)
    return replace(data, augment=RESIZED, scaled_to=image_size or data.height)


def read_source(name: str, root: Path, image_size: int, skip_damaged: bool, framing: Framing) -> Dataset:
    kind, _, path = name.partition(":")
    if kind == "npz" and path:
        file = Path(path).expanduser()
        if holds_events(file):
            return load_event_arrays(name, file, image_size, framing, skip_damaged)
        return load_npz(name, file, image_size)
    if kind == "folder" and path:
        return load_folder(name, Path(path).expanduser(), image_size)
    if name in RELEASES:
        return load_cifar(name, root, image_size)
    if name in COLLECTIONS:
        return load_collection(name, root, image_size, framing, skip_damaged)
    if name == "digits":
        return load_digits(name, image_size)
    raise unknown(name)


def describe(root: Path | None = None) -> list[tuple[str, str, str]]:
    """(name, what it is, where it comes from) for every source; with `root`, whether it has been fetched."""
    origins = {"digits": "comes with scikit-learn, always ready"}
    for name, release in RELEASES.items():
        here = root is not None and all((root / release.folder / file).is_file() for file in release.files)
        origins[name] = f"in {root}" if here else f"asfedbridge data fetch {name}"
    for name in COLLECTIONS:
        here = root is not None and (root / name).is_dir()
        origins[name] = f"in {root}" if here else f"where to put it: asfedbridge data fetch {name}"
    here = root is not None and (root / tiny_imagenet.FOLDER / "wnids.txt").is_file()
    origins[tiny_imagenet.NAME] = f"in {root}" if here else f"asfedbridge data fetch {tiny_imagenet.NAME}"
    return [(name, what, origins.get(name, "read from PATH")) for name, what in SOURCES.items()]


def check(name: str, root: Path) -> list[str]:
    """Lines saying what was found good; BadInput, naming all that is not, if anything is missing or damaged."""
    lines = []
    if name in RELEASES:
        release = RELEASES[name]
        states = {
            root / release.folder / file: state(root / release.folder / file, md5)
            for file, md5 in release.files.items()
        }
        bad = [f"{path} is {found}" for path, found in states.items() if found != "good"]
        if bad:
            raise BadInput(f"{'; '.join(bad)}: {remedy(name, root)}")
        lines = [f"{path}: good" for path in states]
    if name in COLLECTIONS:
        found, official = sum(map(len, find(name, root))), COLLECTIONS[name].official
        if found != official:
            raise BadInput(f"{root / name}: {found} recordings, there are {official}: {collection_remedy(name, root)}")
    data = load(name, root)
    size = f"{data.channels}x{data.height}x{data.width}"
    what = "images" if data.frames == 1 else f"examples of {data.frames} frames"
    counts = f"{len(data.y_train)} training and {len(data.y_test)} test {what}"
    return [*lines, f"{name}: {counts}, {size}, {len(data.classes)} classes: good"]


def unknown(name: str) -> BadInput:
    kind = name.partition(":")[0]
    known = [source.partition(":")[0] for source in SOURCES]
    near = difflib.get_close_matches(kind.lower(), known, n=1)
    full = next((source for source in SOURCES if near and source.startswith(near[0])), None)
    hint = f"did you mean {full}? " if full else ""
    return BadInput(f"data {name!r} is not known: {hint}choose from {', '.join(SOURCES)}")


def load_digits(name: str, image_size: int) -> Dataset:
    """scikit-learn's digits with a fixed stratified 80/20 split."""
    from sklearn.datasets import load_digits as read_digits

    bunch = read_digits()
    x = torch.from_numpy(np.rint(bunch.images * (255 / 16)).astype(np.uint8)).unsqueeze(1)
    y = bunch.target.astype(np.int64)
    rng = np.random.default_rng(DIGITS_SPLIT_SEED)
    held = np.zeros(len(y), dtype=bool)
    for label in range(10):
        members = rng.permutation(np.flatnonzero(y == label))
        held[members[: round(0.2 * len(members))]] = True
    train, test = torch.from_numpy(np.flatnonzero(~held)), torch.from_numpy(np.flatnonzero(held))
    target = torch.from_numpy(y)
    classes = tuple(str(label) for label in range(10))
    # A flipped digit is no digit: crops only.
    return assemble(name, (x[train], target[train]), (x[test], target[test]), classes, "crop", image_size)
