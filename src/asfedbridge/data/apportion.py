"""The arithmetic of partitions: how many examples of each class each client gets, and which ones."""

from collections.abc import Callable, Sequence

import numpy as np
from torch import Tensor

from asfedbridge.core.errors import BadInput

Labels = np.ndarray | Tensor


def group_by_class(y_train: Labels, y_test: Labels) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Indices of the training and of the test examples of every class."""
    y_train, y_test = np.asarray(y_train), np.asarray(y_test)
    classes = np.unique(np.concatenate([y_train, y_test]))
    members = [np.flatnonzero(y_train == label) for label in classes]
    for label, own in zip(classes, members, strict=True):
        if len(own) == 0:
            raise BadInput(f"class {label} has test examples but no training example: add one or remove the class")
    return members, [np.flatnonzero(y_test == label) for label in classes]


def draw_until(
    draw: Callable[[], tuple[np.ndarray, np.ndarray] | None], minimum: int, draws: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """Repeats ``draw`` until every client has more than ``minimum`` training examples and at least one test example.

    ``draw`` returns the number of training and of test examples of each class (row) and client (column). Returns None
    if ``draws`` draws were not enough.
    """
    for _ in range(draws):
        held = draw()
        # Only counts are checked here; indices are shuffled after a draw was accepted.
        if held and held[0].sum(0).min() > minimum and held[1].sum(0).min() > 0:
            return held
    return None


def follow_mixtures(held: np.ndarray, tests: Sequence[np.ndarray]) -> np.ndarray:
    """Number of test examples of each class and client, in proportion to the training examples ``held``."""
    return np.stack([apportion(row, len(own)) for row, own in zip(held, tests, strict=True)])


def cut(share: np.ndarray, count: int, offset: float = 0.0) -> np.ndarray:
    """Splits `count` examples at floor(cumsum(share) * count + offset) and returns the size of each part.

    With a random offset from 0 to 1, the expected size is exactly the share.
    """
    edges = np.floor(np.cumsum(share) * count + offset).astype(np.int64).clip(max=count)
    edges[-1] = count  # the sum may round to just under 1
    return np.diff(edges, prepend=0)


def apportion(weights: np.ndarray, count: int) -> np.ndarray:
    """Distributes `count` in proportion to integer weights by largest remainder, with exact integer arithmetic."""
    seats, remainders = np.divmod(weights * count, weights.sum())
    first = np.argsort(-remainders, kind="stable")[: count - seats.sum()]
    seats[first] += 1
    return seats


def deal(rng: np.random.Generator, members: Sequence[np.ndarray], held: np.ndarray) -> list[np.ndarray]:
    """Shuffles each class and gives client i `held[class, i]` of its examples."""
    dealt = [np.split(rng.permutation(own), np.cumsum(row)[:-1]) for own, row in zip(members, held, strict=True)]
    return [np.concatenate(parts) for parts in zip(*dealt, strict=True)]
