"""Pairs of clients: means of a pairwise matrix over its blocks, and how a number over runs goes with accuracy."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from asfedbridge.core.task import ClientInfo

CROSS = "cross"  # pairs of different kinds
FEWEST = 3  # runs: any two lie on a line
MAX_OF_A_KIND = 20  # clients: matrices are quadratic in them


@dataclass(frozen=True)
class Block:
    mean: float | None  # None: no pair of it has a value
    pairs: int  # that have one


@dataclass(frozen=True)
class Correlation:
    r: float | None  # None: too few runs, or one side does not vary
    n: int


def choose_clients(clients: Sequence[ClientInfo]) -> list[ClientInfo]:
    """The first ``MAX_OF_A_KIND`` clients of each kind; all clients of most fleets."""
    kinds: dict[str, int] = {}
    chosen = []
    for client in clients:
        kinds[client.kind] = kinds.get(client.kind, 0) + 1
        if kinds[client.kind] <= MAX_OF_A_KIND:
            chosen.append(client)
    return chosen


def block_means(matrix_NN: Tensor, kinds: Sequence[str]) -> dict[str, Block]:
    """Means over unordered pairs of two clients: both of one kind (by its name), or of different kinds ("cross").

    A pair whose value is not finite has no value. A block without pairs is absent.
    """
    values: dict[str, list[float]] = {}
    for j, other in enumerate(kinds):
        for i, kind in enumerate(kinds[:j]):
            values.setdefault(kind if kind == other else CROSS, []).append(float(matrix_NN[i, j]))
    blocks = {}
    for name in sorted(values, key=lambda name: (name == CROSS, name)):
        known = [v for v in values[name] if math.isfinite(v)]
        blocks[name] = Block(math.fsum(known) / len(known) if known else None, len(known))
    return blocks


def correlate(values: Sequence[float | None], accuracies: Sequence[float | None]) -> Correlation:
    """Pearson's r over the runs that have both numbers."""
    both = [(x, y) for x, y in zip(values, accuracies, strict=True) if x is not None and y is not None]
    n = len(both)
    if n < FEWEST:
        return Correlation(None, n)
    mean_x, mean_y = (math.fsum(side) / n for side in zip(*both, strict=True))
    xx = math.fsum((x - mean_x) ** 2 for x, _ in both)
    yy = math.fsum((y - mean_y) ** 2 for _, y in both)
    xy = math.fsum((x - mean_x) * (y - mean_y) for x, y in both)
    return Correlation(xy / math.sqrt(xx * yy) if xx > 0 and yy > 0 else None, n)
