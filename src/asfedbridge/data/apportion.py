"""How many examples of each class each client gets, and which: the arithmetic of partitions."""

from collections.abc import Callable, Sequence

import numpy as np
from torch import Tensor

from asfedbridge.core.errors import BadInput

Labels = np.ndarray | Tensor


def group_by_class(y_train: Labels, y_test: Labels) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The training and the test examples of every class."""
    y_train, y_test = np.asarray(y_train), np.asarray(y_test)
    classes = np.unique(np.concatenate([y_train, y_test]))
    members = [np.flatnonzero(y_train == label) for label in classes]
    for label, own in zip(classes, members, strict=True):
        if len(own) == 0:
            raise BadInput(f"class {label} has test examples but no training example: add one or drop the class")
    return members, [np.flatnonzero(y_test == label) for label in classes]


def draw_until(
    draw: Callable[[], tuple[np.ndarray, np.ndarray] | None], minimum: int, draws: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """The first draw of how many training and test examples of a class each client has that leaves none too few."""
    for _ in range(draws):
        held = draw()
        # Sizes depend on the shares alone, so a draw is judged before any index is shuffled.
        if held and held[0].sum(0).min() > minimum and held[1].sum(0).min() > 0:
            return held
    return None


def follow_mixtures(held: np.ndarray, tests: Sequence[np.ndarray]) -> np.ndarray:
    """How many test examples of each class each client has, in proportion to its training examples."""
    return np.stack([apportion(row, len(own)) for row, own in zip(held, tests, strict=True)])


def cut(share: np.ndarray, count: int, offset: float = 0.0) -> np.ndarray:
    """How many of `count` examples each client gets when they are cut at floor(cumsum(share) * count + offset).

    With a random offset from 0 to 1 that is its share on average, rounded up or down.
    """
    edges = np.floor(np.cumsum(share) * count + offset).astype(np.int64).clip(max=count)
    edges[-1] = count  # the sum may round to just under 1
    return np.diff(edges, prepend=0)


def apportion(weights: np.ndarray, count: int) -> np.ndarray:
    """`count` seats in proportion to integer weights by largest remainder, in exact integers."""
    seats, remainders = np.divmod(weights * count, weights.sum())
    first = np.argsort(-remainders, kind="stable")[: count - seats.sum()]
    seats[first] += 1
    return seats


def deal(rng: np.random.Generator, members: Sequence[np.ndarray], held: np.ndarray) -> list[np.ndarray]:
    """Shuffle each class and hand client i its `held[class, i]` examples."""
    dealt = [np.split(rng.permutation(own), np.cumsum(row)[:-1]) for own, row in zip(members, held, strict=True)]
    return [np.concatenate(parts) for parts in zip(*dealt, strict=True)]
