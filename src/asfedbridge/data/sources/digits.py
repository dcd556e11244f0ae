"""The handwritten digits of scikit-learn, with a fixed stratified 80/20 split."""

import gzip
import importlib.util
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from asfedbridge.data.dataset import Dataset, assemble
from asfedbridge.data.sources.registry import Request, Source, add_source

SPLIT_SEED = 20240229  # the split does not depend on the run's seed


def read_digits() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Images [N, 8, 8] with values from 0 to 16, and labels.

    Reads scikit-learn's file without importing scikit-learn, which takes about as long as importing torch.
    """
    package = importlib.util.find_spec("sklearn")
    assert package is not None
    assert package.submodule_search_locations is not None
    file = Path(package.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    if file.is_file():
        with gzip.open(file, "rt") as lines:
            table = np.loadtxt(lines, delimiter=",")
        return table[:, :-1].reshape(-1, 8, 8), table[:, -1].astype(np.int64)
    from sklearn.datasets import load_digits  # a version that stores the file elsewhere

    bunch = load_digits()
    return bunch.images, bunch.target.astype(np.int64)


def load_digits(request: Request) -> Dataset:
    images, y = read_digits()
    x = torch.from_numpy(np.rint(images * (255 / 16)).astype(np.uint8)).unsqueeze(1)
    rng = np.random.default_rng(SPLIT_SEED)
    held = np.zeros(len(y), dtype=bool)
    for label in range(10):
        members = rng.permutation(np.flatnonzero(y == label))
        held[members[: round(0.2 * len(members))]] = True
    train, test = torch.from_numpy(np.flatnonzero(~held)), torch.from_numpy(np.flatnonzero(held))
    target = torch.from_numpy(y)
    classes = tuple(str(label) for label in range(10))
    halves = (x[train], target[train]), (x[test], target[test])
    # Crops without flips: a mirrored digit is not a digit.
    return assemble(request.name, *halves, classes, "crop", request.stored_size)


add_source(
    Source(
        name="digits",
        about="1 797 handwritten digits, 8x8 grey, 10 classes",
        load=load_digits,
        origin="included in scikit-learn",
    )
)
