"""Block means of pairwise matrices, and correlations with accuracy over runs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from asfedbridge.core.task import ClientInfo

CROSS = "cross"  # pairs of different kinds
MIN_RUNS = 3  # for a correlation: two points always lie on a line
MAX_CLIENTS_PER_KIND = 20  # matrices grow quadratically


@dataclass(frozen=True)
class Block:
    mean: float | None  # None: no pair has a value
    pairs: int  # number of pairs with a value


@dataclass(frozen=True)
class Correlation:
    r: float | None  # None: too few runs, or one variable is constant
    n: int


def choose_clients(clients: Sequence[ClientInfo]) -> list[ClientInfo]:
    """The first ``MAX_CLIENTS_PER_KIND`` clients of each kind."""
    kinds: dict[str, int] = {}
    chosen = []
    for client in clients:
        kinds[client.kind] = kinds.get(client.kind, 0) + 1
        if kinds[client.kind] <= MAX_CLIENTS_PER_KIND:
            chosen.append(client)
    return chosen


def block_means(matrix_NN: Tensor, kinds: Sequence[str]) -> dict[str, Block]:
    """Means over unordered pairs of clients: both of one kind (keyed by its name), or of different kinds ("cross").

    Non-finite values are ignored. A block without pairs is absent.
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
    """Pearson's r over the runs that have both values."""
    both = [(x, y) for x, y in zip(values, accuracies, strict=True) if x is not None and y is not None]
    n = len(both)
    if n < MIN_RUNS:
        return Correlation(None, n)
    mean_x, mean_y = (math.fsum(side) / n for side in zip(*both, strict=True))
    xx = math.fsum((x - mean_x) ** 2 for x, _ in both)
    yy = math.fsum((y - mean_y) ** 2 for _, y in both)
    xy = math.fsum((x - mean_x) * (y - mean_y) for x, y in both)
    return Correlation(xy / math.sqrt(xx * yy) if xx > 0 and yy > 0 else None, n)
