"""Which client holds which examples: equal random shards, or Dirichlet label skew."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from asfedbridge.core.errors import BadInput

KINDS = ("iid", "dirichlet")
Labels = np.ndarray | Tensor


@dataclass(frozen=True, eq=False)
class Partition:
    train: tuple[np.ndarray, ...]  # sorted int64 indices per client
    test: tuple[np.ndarray, ...]
    digest: str  # sha256 of all indices in client order, sizes included


def split(
    kind: str, y_train: Labels, y_test: Labels, clients: int, seed: int, alpha: float = 0.5, minimum: int = 10
) -> Partition:
    """The partition of that kind; `alpha` and `minimum` matter to "dirichlet" only."""
    if kind == "iid":
        return iid(y_train, y_test, clients, seed)
    if kind == "dirichlet":
        return dirichlet(y_train, y_test, clients, alpha, seed, minimum)
    raise BadInput(f"partition {kind!r} is not known: choose from {', '.join(KINDS)}")


def pool(partition: Partition, clients: int) -> Partition:
    """Everything that was split, for each of ``clients``."""
    train, test = np.concatenate(partition.train), np.concatenate(partition.test)
    return _seal([train] * clients, [test] * clients)


def hold_out(partition: Partition, share: float, seed: int) -> Partition:
    """Shards that are tested on a random ``share`` of their own training examples, which they no longer train on.

    ``test`` then counts training examples, not test examples; a client keeps at least one of either.
    """
    rng = _generator(seed)
    train, test = [], []
    for own in partition.train:
        held, kept = np.split(rng.permutation(own), [min(len(own) - 1, max(1, round(share * len(own))))])
        train.append(kept)
        test.append(held)
    return _seal(train, test)


def probe(partition: Partition, labels: Labels, most: int, seed: int) -> Partition:
    """One shard that trains on nothing and tests on at most ``most`` of everybody's test examples, in their order.

    Balanced over the classes in ``labels`` as far as there are examples. They do not depend on who holds which.
    """
    tests = np.unique(np.concatenate(partition.test))
    drawn = _generator(seed).permutation(len(tests))
    turn = np.empty(len(tests), np.int64)  # the first example of every class, then the second, ...
    for label in np.unique(labels[tests]):
        own = labels[tests[drawn]] == label
        turn[own] = np.arange(own.sum())
    chosen = drawn[np.argsort(turn, kind="stable")[:most]]
    return _seal([np.empty(0, np.int64)], [tests[chosen]])


def iid(y_train: Labels, y_test: Labels, clients: int, seed: int) -> Partition:
    """Independent permutations of the training and of the test set, each cut into shards whose sizes differ by at most
    one."""
    _require(len(y_train), len(y_test), clients, 1)
    rng = _generator(seed)
    train = np.array_split(rng.permutation(len(y_train)), clients)
    test = np.array_split(rng.permutation(len(y_test)), clients)
    return _seal(train, test)


def dirichlet(
    y_train: Labels,
    y_test: Labels,
    clients: int,
    alpha: float,
    seed: int,
    minimum: int = 10,
    draws: int = 1000,
) -> Partition:
    """Each class is shared out by its own Dirichlet(alpha) draw; test sets follow the training mixtures.

    Shares are redrawn until every client has more than `minimum` training examples and at least one test example: an
    accuracy needs an example. The test examples of a class are dealt out in proportion to the training examples of
    that class, by largest remainder, ties to the lower client.
    """
    if not (math.isfinite(alpha) and alpha > 0):
        raise BadInput(f"alpha={alpha}: give a finite number above 0 (0.1 is strong label skew, 100 nearly none)")
    _require(len(y_train), len(y_test), clients, minimum + 1)
    y_train, y_test = np.asarray(y_train), np.asarray(y_test)
    classes = np.unique(np.concatenate([y_train, y_test]))
    members = [np.flatnonzero(y_train == label) for label in classes]
    tests = [np.flatnonzero(y_test == label) for label in classes]
    for label, own in zip(classes, members, strict=True):
        if len(own) == 0:
            raise BadInput(f"class {label} has test examples but no training example: add one or drop the class")
    rng = _generator(seed)
    for _ in range(draws):
        shares = rng.dirichlet(np.full(clients, float(alpha)), size=len(classes))
        if not np.isfinite(shares).all():  # every gamma underflowed to 0; as an integer NaN is anything
            continue
        held = np.stack([_cut(share, len(own)) for share, own in zip(shares, members, strict=True)])
        held_test = np.stack([_apportion(row, len(own)) for row, own in zip(held, tests, strict=True)])
        # Sizes depend on the shares alone, so a draw is judged before any index is shuffled.
        if held.sum(0).min() > minimum and held_test.sum(0).min() > 0:
            return _seal(_deal(rng, members, held), _deal(rng, tests, held_test))
    raise BadInput(
        f"alpha={alpha} with clients={clients}: no draw in {draws} gave every client more than {minimum} of the "
        f"{len(y_train)} training and one of the {len(y_test)} test examples: raise alpha or take fewer clients"
    )


def _cut(share: np.ndarray, count: int) -> np.ndarray:
    """How many of `count` examples each client gets when they are cut at floor(cumsum(share) * count)."""
    edges = np.floor(np.cumsum(share) * count).astype(np.int64).clip(max=count)
    edges[-1] = count  # the sum may round to just under 1
    return np.diff(edges, prepend=0)


def _apportion(weights: np.ndarray, count: int) -> np.ndarray:
    """`count` seats in proportion to integer weights by largest remainder, in exact integers."""
    seats, remainders = np.divmod(weights * count, weights.sum())
    first = np.argsort(-remainders, kind="stable")[: count - seats.sum()]
    seats[first] += 1
    return seats


def _deal(rng: np.random.Generator, members: Sequence[np.ndarray], held: np.ndarray) -> list[np.ndarray]:
    """Shuffle each class and hand client i its `held[class, i]` examples."""
    dealt = [np.split(rng.permutation(own), np.cumsum(row)[:-1]) for own, row in zip(members, held, strict=True)]
    return [np.concatenate(parts) for parts in zip(*dealt, strict=True)]


def _generator(seed: int) -> np.random.Generator:
    if seed < 0:
        raise BadInput(f"seed={seed}: give a whole number, 0 or above")
    return np.random.Generator(np.random.PCG64(seed))


def _require(train: int, test: int, clients: int, each: int) -> None:
    if clients < 1:
        raise BadInput(f"clients={clients}: give at least 1")
    if train < clients * each:
        raise BadInput(f"clients={clients}: {train} training examples cannot give each {each}: take fewer clients")
    if test < clients:
        raise BadInput(f"clients={clients}: {test} test examples cannot give each 1: take fewer clients")


def _seal(train: Sequence[np.ndarray], test: Sequence[np.ndarray]) -> Partition:
    digest = hashlib.sha256()
    halves = []
    for shards in (train, test):
        # Sorted, so that equal shards have equal digests.
        halves.append(tuple(np.sort(shard).astype(np.int64) for shard in shards))
        for shard in halves[-1]:
            digest.update(len(shard).to_bytes(8, "little"))
            digest.update(shard.astype("<i8").tobytes())
    return Partition(halves[0], halves[1], digest.hexdigest())
