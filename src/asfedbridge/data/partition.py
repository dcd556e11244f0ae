"""A partition: the training and test examples of each client."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from asfedbridge.core.errors import BadInput
from asfedbridge.data.apportion import Labels


@dataclass(frozen=True, eq=False)
class Partition:
    train: tuple[np.ndarray, ...]  # sorted int64 indices per client
    test: tuple[np.ndarray, ...]
    digest: str  # SHA-256 of all indices in client order, including sizes


def pool(partition: Partition, clients: int) -> Partition:
    """Gives each of ``clients`` all examples of the partition."""
    train, test = np.concatenate(partition.train), np.concatenate(partition.test)
    return seal([train] * clients, [test] * clients)


def hold_out(partition: Partition, share: float, seed: int) -> Partition:
    """Replaces the test examples of each client with a random ``share`` of its training examples.

    ``test`` then holds indices of training examples. Each client has at least one of each.
    """
    rng = generator(seed)
    train, test = [], []
    for own in partition.train:
        held, kept = np.split(rng.permutation(own), [min(len(own) - 1, max(1, round(share * len(own))))])
        train.append(kept)
        test.append(held)
    return seal(train, test)


def probe(partition: Partition, labels: Labels, most: int, seed: int) -> Partition:
    """One shard without training examples and with at most ``most`` test examples of all clients.

    They are balanced over the classes in ``labels`` as far as possible. The selection does not depend on which client
    holds an example.
    """
    tests = np.unique(np.concatenate(partition.test))
    drawn = generator(seed).permutation(len(tests))
    turn = np.empty(len(tests), np.int64)  # 0 for the first example of each class, 1 for the second, ...
    for label in np.unique(labels[tests]):
        own = labels[tests[drawn]] == label
        turn[own] = np.arange(own.sum())
    chosen = drawn[np.argsort(turn, kind="stable")[:most]]
    return seal([np.empty(0, np.int64)], [tests[chosen]])


def generator(seed: int) -> np.random.Generator:
    """The random generator of a partition."""
    if seed < 0:
        raise BadInput(f"seed={seed}: give an integer of at least 0")
    return np.random.Generator(np.random.PCG64(seed))


def seal(train: Sequence[np.ndarray], test: Sequence[np.ndarray]) -> Partition:
    """Makes a partition of shards and computes its digest."""
    digest = hashlib.sha256()
    halves = []
    for shards in (train, test):
        # Sorted, so that equal shards have equal digests.
        halves.append(tuple(np.sort(shard).astype(np.int64) for shard in shards))
        for shard in halves[-1]:
            digest.update(len(shard).to_bytes(8, "little"))
            digest.update(shard.astype("<i8").tobytes())
    return Partition(halves[0], halves[1], digest.hexdigest())
