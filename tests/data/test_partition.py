"""Partitions derived from others (``pool``, ``hold_out``, ``probe``), and the digest."""

import numpy as np
import pytest
import torch

from asfedbridge.data.partition import hold_out, pool, probe
from asfedbridge.data.partitioners import dirichlet, iid

Y_TRAIN = np.random.default_rng(1).permutation(np.repeat(np.arange(10), 100))
Y_TEST = np.random.default_rng(2).permutation(np.repeat(np.arange(10), 30))


def test_digest_is_stable_and_distinguishes_partitions() -> None:
    first = dirichlet(Y_TRAIN, Y_TEST, 5, 0.5, 3)
    again = dirichlet(torch.from_numpy(Y_TRAIN), torch.from_numpy(Y_TEST), 5, 0.5, 3)
    assert first.digest == again.digest
    assert all(np.array_equal(a, b) for a, b in zip(first.train, again.train, strict=True))
    others = [dirichlet(Y_TRAIN, Y_TEST, 5, 0.5, seed).digest for seed in range(4, 9)]
    others += [iid(Y_TRAIN, Y_TEST, 5, 3).digest, dirichlet(Y_TRAIN, Y_TEST, 5, 0.6, 3).digest]
    assert len({first.digest, *others}) == 8
    assert iid(np.zeros(4), np.zeros(4), 2, 0).digest == (
        "63e73717eb0b64588f44b4403fec7706cecbc538fecc6f2011553f4c459a2d5b"
    )


@pytest.mark.parametrize("share", [0.01, 0.2, 0.5, 0.9])
def test_holdout_comes_from_the_clients_training_examples(share: float) -> None:
    y_train, y_test = np.repeat(np.arange(5), 40), np.repeat(np.arange(5), 10)
    whole = dirichlet(y_train, y_test, 6, alpha=0.5, seed=3)
    cut = hold_out(whole, share, seed=7)
    for own, train, test in zip(whole.train, cut.train, cut.test, strict=True):
        assert sorted([*train, *test]) == sorted(own)
        assert len(test) == max(1, round(share * len(own)))
    assert cut.digest != whole.digest
    assert cut.digest == hold_out(whole, share, seed=7).digest != hold_out(whole, share, seed=8).digest


def test_holdout_leaves_a_training_example() -> None:
    tiny = iid(np.zeros(4), np.zeros(2), 2, seed=0)
    assert [len(own) for own in hold_out(tiny, 0.9, seed=0).train] == [1, 1]


def test_pool_gives_all_examples_to_each_client() -> None:
    whole = iid(np.zeros(9), np.zeros(6), 3, seed=0)
    pooled = pool(whole, 2)
    assert [own.tolist() for own in (*pooled.train, *pooled.test)] == [list(range(9))] * 2 + [list(range(6))] * 2


def test_probe_does_not_depend_on_the_partition() -> None:
    first = probe(iid(Y_TRAIN, Y_TEST, 7, 0), Y_TEST, 50, seed=5)
    assert [len(first.train[0]), len(first.test[0]), len(first.test)] == [0, 50, 1]
    assert (np.diff(first.test[0]) > 0).all()
    assert np.bincount(Y_TEST[first.test[0]]).tolist() == [5] * 10
    skewed = dirichlet(Y_TRAIN, Y_TEST, 4, 0.3, 1)
    for other in (iid(Y_TRAIN, Y_TEST, 3, 9), skewed, pool(skewed, 2)):
        assert probe(other, Y_TEST, 50, seed=5).digest == first.digest
    assert np.array_equal(probe(skewed, Y_TEST, 1000, seed=5).test[0], np.arange(len(Y_TEST)))


def test_probe_is_balanced_as_far_as_possible() -> None:
    rare = np.repeat([0, 1, 2], [40, 3, 40])
    chosen = probe(iid(Y_TRAIN, rare, 2, 0), rare, 20, seed=5).test[0]
    assert sorted(np.bincount(rare[chosen])) == [3, 8, 9]


def test_probe_of_a_holdout_contains_only_held_out_examples() -> None:
    partition = hold_out(iid(Y_TRAIN, Y_TEST, 5, 0), 0.2, seed=3)
    assert set(probe(partition, Y_TRAIN, 60, seed=5).test[0]) < set(np.concatenate(partition.test))
