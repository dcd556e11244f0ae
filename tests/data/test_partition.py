import numpy as np
import pytest
import torch

from asfedbridge.core.errors import BadInput
from asfedbridge.data.partition import Partition, dirichlet, hold_out, iid, pool, probe, split

Y_TRAIN = np.random.default_rng(1).permutation(np.repeat(np.arange(10), 100))
Y_TEST = np.random.default_rng(2).permutation(np.repeat(np.arange(10), 30))


def assert_uses_all_once(partition: Partition) -> None:
    for shards, count in ((partition.train, len(Y_TRAIN)), (partition.test, len(Y_TEST))):
        together = np.concatenate(shards)
        assert together.dtype == np.int64
        assert np.array_equal(np.sort(together), np.arange(count))
        assert all((np.diff(shard) > 0).all() for shard in shards), "shards are sorted"


@pytest.mark.parametrize("seed", range(20))
def test_iid_shards_are_nearly_equal(seed: int) -> None:
    partition = iid(Y_TRAIN, Y_TEST, 7, seed)
    assert_uses_all_once(partition)
    for shards in (partition.train, partition.test):
        sizes = [len(shard) for shard in shards]
        assert max(sizes) - min(sizes) <= 1


def test_iid_shuffles_both_halves() -> None:
    partition = iid(Y_TRAIN, Y_TRAIN, 4, 0)
    assert not np.array_equal(partition.train[0], np.arange(250))
    assert not np.array_equal(partition.train[0], partition.test[0]), "independent permutations"
    mixture = np.bincount(Y_TRAIN[partition.train[0]], minlength=10)
    assert mixture.min() > 10


@pytest.mark.parametrize("alpha", [0.05, 0.3, 1.0, 1000.0])
@pytest.mark.parametrize("seed", range(15))
def test_dirichlet_keeps_its_promises(alpha: float, seed: int) -> None:
    partition = dirichlet(Y_TRAIN, Y_TEST, 5, alpha, seed)
    assert_uses_all_once(partition)
    for train, test in zip(partition.train, partition.test, strict=True):
        assert len(train) > 10
        assert len(test) > 0
        held = np.bincount(Y_TRAIN[train], minlength=10)
        given = np.bincount(Y_TEST[test], minlength=10)
        assert (np.abs(given - held * 30 / 100) < 1).all(), "test sets follow the training mixture"


def test_alpha_sets_the_skew() -> None:
    def skew(alpha: float) -> float:
        partitions = [dirichlet(Y_TRAIN, Y_TEST, 5, alpha, seed) for seed in range(10)]
        shares = [np.bincount(Y_TRAIN[shard], minlength=10) / 100 for p in partitions for shard in p.train]
        return float(np.var(shares))

    # The variance of one share under Dirichlet(alpha) of K parts is (1/K)(1 - 1/K) / (K alpha + 1).
    for alpha in (0.3, 1.0, 10.0):
        assert skew(alpha) == pytest.approx(0.16 / (5 * alpha + 1), rel=0.35)


def test_dirichlet_shuffles_within_a_class() -> None:
    partition = dirichlet(Y_TRAIN, Y_TEST, 2, 1000.0, 0)
    for y, shard in ((Y_TRAIN, partition.train[0]), (Y_TEST, partition.test[0])):
        of_class = np.flatnonzero(y == 0)
        held = np.intersect1d(shard, of_class)
        assert not np.array_equal(held, of_class[: len(held)])


def test_minimum_is_exceeded_not_met() -> None:
    """Barely possible: 22 examples for 2 clients leave each exactly 11."""
    y = np.arange(22) % 2
    partition = dirichlet(y, y, 2, 100.0, 0)
    assert [len(shard) for shard in partition.train] == [11, 11]
    with pytest.raises(BadInput, match="21 training examples cannot give each 11"):
        dirichlet(y[:21], y, 2, 100.0, 0)
    assert min(len(s) for s in dirichlet(y, y, 2, 0.5, 0, minimum=2).train) > 2


def test_every_client_gets_a_test_example() -> None:
    y_test = np.arange(10)
    for seed in range(10):
        assert min(len(shard) for shard in dirichlet(Y_TRAIN, y_test, 4, 0.5, seed).test) >= 1


def test_remainders_go_to_the_largest_then_to_the_lower_client() -> None:
    from asfedbridge.data.partition import _apportion, _cut

    assert _apportion(np.array([5, 5, 5, 5]), 6).tolist() == [2, 2, 1, 1]
    assert _apportion(np.array([1, 6, 3]), 4).tolist() == [1, 2, 1]  # quotas 0.4, 2.4, 1.2: a tie at 0.4
    assert _apportion(np.array([0, 7, 3]), 5).tolist() == [0, 4, 1]  # 3.5 and 1.5
    assert _cut(np.array([0.25, 0.25, 0.5]), 10).tolist() == [2, 3, 5]  # edges floor(2.5), floor(5.0)
    assert _cut(np.full(10, 0.1), 10).sum() == 10


def test_digest_is_stable_and_tells_partitions_apart() -> None:
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


def test_split_chooses_the_kind() -> None:
    assert split("iid", Y_TRAIN, Y_TEST, 3, 5).digest == iid(Y_TRAIN, Y_TEST, 3, 5).digest
    chosen = split("dirichlet", Y_TRAIN, Y_TEST, 3, 5, alpha=0.2)
    assert chosen.digest == dirichlet(Y_TRAIN, Y_TEST, 3, 0.2, 5).digest
    with pytest.raises(BadInput, match=r"partition 'shards' .* iid, dirichlet"):
        split("shards", Y_TRAIN, Y_TEST, 3, 5)


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan"), float("inf")])
def test_alpha_must_be_finite_and_positive(alpha: float) -> None:
    with pytest.raises(BadInput, match=f"alpha={alpha}"):
        dirichlet(Y_TRAIN, Y_TEST, 3, alpha, 0)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("alpha", [5e-324, 1e308])
def test_shares_that_are_not_numbers_are_failed_draws(alpha: float) -> None:
    with pytest.raises(BadInput) as caught:
        dirichlet(Y_TRAIN, Y_TEST, 20, alpha, 0, draws=20)
    for word in (f"alpha={alpha}", "clients=20", "20 gave", "1000 training", "300 test", "fewer clients"):
        assert word in str(caught.value)


def test_too_many_clients_are_refused() -> None:
    with pytest.raises(BadInput, match="clients=1001: 1000 training"):
        iid(Y_TRAIN, Y_TEST, 1001, 0)
    with pytest.raises(BadInput, match="clients=301: 300 test"):
        iid(Y_TRAIN, Y_TEST, 301, 0)
    with pytest.raises(BadInput, match="clients=0"):
        iid(Y_TRAIN, Y_TEST, 0, 0)
    with pytest.raises(BadInput, match="seed=-1"):
        iid(Y_TRAIN, Y_TEST, 2, -1)


def test_a_class_without_training_examples_is_named() -> None:
    with pytest.raises(BadInput, match="class 9 has test examples but no training"):
        dirichlet(np.where(Y_TRAIN == 9, 8, Y_TRAIN), Y_TEST, 2, 1.0, 0)


@pytest.mark.parametrize("share", [0.01, 0.2, 0.5, 0.9])
def test_a_holdout_comes_from_the_shards_own_training_examples(share: float) -> None:
    y_train, y_test = np.repeat(np.arange(5), 40), np.repeat(np.arange(5), 10)
    whole = dirichlet(y_train, y_test, 6, alpha=0.5, seed=3)
    cut = hold_out(whole, share, seed=7)
    for own, train, test in zip(whole.train, cut.train, cut.test, strict=True):
        assert sorted([*train, *test]) == sorted(own)
        assert len(test) == max(1, round(share * len(own)))
    assert cut.digest != whole.digest
    assert cut.digest == hold_out(whole, share, seed=7).digest != hold_out(whole, share, seed=8).digest


def test_a_holdout_leaves_something_to_train_on() -> None:
    tiny = iid(np.zeros(4), np.zeros(2), 2, seed=0)
    assert [len(own) for own in hold_out(tiny, 0.9, seed=0).train] == [1, 1]


def test_pooling_gives_everything_to_each() -> None:
    whole = iid(np.zeros(9), np.zeros(6), 3, seed=0)
    pooled = pool(whole, 2)
    assert [own.tolist() for own in (*pooled.train, *pooled.test)] == [list(range(9))] * 2 + [list(range(6))] * 2


def test_a_probe_is_the_same_whoever_holds_its_examples() -> None:
    first = probe(iid(Y_TRAIN, Y_TEST, 7, 0), Y_TEST, 50, seed=5)
    assert [len(first.train[0]), len(first.test[0]), len(first.test)] == [0, 50, 1]
    assert (np.diff(first.test[0]) > 0).all()
    assert np.bincount(Y_TEST[first.test[0]]).tolist() == [5] * 10
    skewed = dirichlet(Y_TRAIN, Y_TEST, 4, 0.3, 1)
    for other in (iid(Y_TRAIN, Y_TEST, 3, 9), skewed, pool(skewed, 2)):
        assert probe(other, Y_TEST, 50, seed=5).digest == first.digest
    assert np.array_equal(probe(skewed, Y_TEST, 1000, seed=5).test[0], np.arange(len(Y_TEST)))


def test_a_probe_is_balanced_as_far_as_there_are_examples() -> None:
    rare = np.repeat([0, 1, 2], [40, 3, 40])
    chosen = probe(iid(Y_TRAIN, rare, 2, 0), rare, 20, seed=5).test[0]
    assert sorted(np.bincount(rare[chosen])) == [3, 8, 9]


def test_a_probe_of_held_out_examples_shows_no_other() -> None:
    partition = hold_out(iid(Y_TRAIN, Y_TEST, 5, 0), 0.2, seed=3)
    assert set(probe(partition, Y_TRAIN, 60, seed=5).test[0]) < set(np.concatenate(partition.test))
