"""The handwritten digits of scikit-learn, with a fixed stratified 80/20 split."""

import numpy as np
import torch

from asfedbridge.data.dataset import Dataset, assemble
from asfedbridge.data.sources.registry import Request, Source, add_source

SPLIT_SEED = 20240229  # the split does not depend on the run's seed


def load_digits(request: Request) -> Dataset:
    from sklearn.datasets import load_digits as read_digits

    bunch = read_digits()
    x = torch.from_numpy(np.rint(bunch.images * (255 / 16)).astype(np.uint8)).unsqueeze(1)
    y = bunch.target.astype(np.int64)
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
