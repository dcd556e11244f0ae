"""Properties of every kind of partition, and errors for impossible settings."""

import numpy as np
import pytest
import torch

from asfedbridge.core.errors import BadInput
from asfedbridge.data.partition import Partition
from asfedbridge.data.partition_names import split
from asfedbridge.data.partitioners import by_assignment, by_classes, by_quantity, dirichlet, iid

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
def test_dirichlet_partition_is_valid(alpha: float, seed: int) -> None:
    partition = dirichlet(Y_TRAIN, Y_TEST, 5, alpha, seed)
    assert_uses_all_once(partition)
    for train, test in zip(partition.train, partition.test, strict=True):
        assert len(train) > 10
        assert len(test) > 0
        held = np.bincount(Y_TRAIN[train], minlength=10)
        given = np.bincount(Y_TEST[test], minlength=10)
        assert (np.abs(given - held * 30 / 100) < 1).all(), "test shards have the training shards' label distribution"


def test_alpha_controls_the_skew() -> None:
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


def test_every_client_has_more_than_minimum() -> None:
    """22 examples for 2 clients are just enough: 11 each."""
    y = np.arange(22) % 2
    partition = dirichlet(y, y, 2, 100.0, 0)
    assert [len(shard) for shard in partition.train] == [11, 11]
    with pytest.raises(BadInput, match="21 training examples are fewer than 11 each"):
        dirichlet(y[:21], y, 2, 100.0, 0)
    assert min(len(s) for s in dirichlet(y, y, 2, 0.5, 0, minimum=2).train) > 2


def test_every_client_gets_a_test_example() -> None:
    y_test = np.arange(10)
    for seed in range(10):
        assert min(len(shard) for shard in dirichlet(Y_TRAIN, y_test, 4, 0.5, seed).test) >= 1


# classes:K


def mixtures(y: np.ndarray, shards: tuple[np.ndarray, ...]) -> np.ndarray:
    return np.stack([np.bincount(y[shard], minlength=10) for shard in shards])


@pytest.mark.parametrize(("clients", "count"), [(10, 1), (5, 2), (10, 2), (7, 3), (4, 10), (20, 2), (13, 4)])
@pytest.mark.parametrize("seed", range(5))
def test_every_client_has_k_classes(clients: int, count: int, seed: int) -> None:
    partition = by_classes(Y_TRAIN, Y_TEST, clients, count, seed)
    assert_uses_all_once(partition)
    train, test = mixtures(Y_TRAIN, partition.train), mixtures(Y_TEST, partition.test)
    assert ((train > 0).sum(1) == count).all()
    holders = (train > 0).sum(0)
    assert holders.max() - holders.min() <= 1, "classes have equally many clients"
    for label in range(10):
        shares = train[train[:, label] > 0, label]
        assert shares.max() - shares.min() <= 1, "clients of a class have equally many examples of it"
        assert (np.abs(test[:, label] - train[:, label] * 30 / 100) < 1).all(), (
            "test shards have the training shards' label distribution"
        )
    assert (test.sum(1) > 0).all()


def test_classes_of_a_client_are_random() -> None:
    first = mixtures(Y_TRAIN, by_classes(Y_TRAIN, Y_TEST, 10, 2, 0).train) > 0
    assert split("classes:2", Y_TRAIN, Y_TEST, 10, 0).digest == by_classes(Y_TRAIN, Y_TEST, 10, 2, 0).digest
    others = [mixtures(Y_TRAIN, by_classes(Y_TRAIN, Y_TEST, 10, 2, seed).train) > 0 for seed in range(1, 6)]
    assert all((other != first).any() for other in others)
    assert len({tuple(row) for row in first}) > 5, "clients differ in their classes"


@pytest.mark.parametrize(
    ("clients", "count", "message"),
    [
        (3, 11, "classes:11: the data set has 10 classes: give at most that"),
        (4, 2, "classes:2: 4 clients cannot hold all 10 classes: give at least classes:3"),
        (60, 10, "classes:10: client .* would have no test example|60 clients share class 0"),
    ],
)
def test_impossible_numbers_of_classes_are_rejected(clients: int, count: int, message: str) -> None:
    y_train = np.repeat(np.arange(10), 50)
    with pytest.raises(BadInput, match=message):
        by_classes(y_train, Y_TEST, clients, count, 0)


# quantity:BETA


@pytest.mark.parametrize("beta", [0.3, 1.0, 100.0])
@pytest.mark.parametrize("seed", range(10))
def test_quantity_skews_sizes_and_not_labels(beta: float, seed: int) -> None:
    partition = by_quantity(Y_TRAIN, Y_TEST, 5, beta, seed)
    assert_uses_all_once(partition)
    train, test = mixtures(Y_TRAIN, partition.train), mixtures(Y_TEST, partition.test)
    assert (train.max(1) - train.min(1) <= 1).all(), "equally many of every class"
    assert (test.max(1) - test.min(1) <= 1).all()
    assert (train.sum(1) > 10).all()
    assert (test.sum(1) > 0).all()
    assert (np.abs(test.sum(1) - train.sum(1) * 0.3) <= 13).all(), "test sets follow the training sizes"


def test_beta_controls_the_skew_of_sizes() -> None:
    def spread(beta: float) -> float:
        sizes = [[len(s) for s in by_quantity(Y_TRAIN, Y_TEST, 5, beta, seed, 0).train] for seed in range(40)]
        return float(np.var(np.array(sizes) / len(Y_TRAIN)))

    for beta in (1.0, 10.0):
        assert spread(beta) == pytest.approx(0.16 / (5 * beta + 1), rel=0.35)
    assert split("quantity:1.0", Y_TRAIN, Y_TEST, 5, 3).digest == by_quantity(Y_TRAIN, Y_TEST, 5, 1.0, 3).digest


def test_impossible_quantity_is_rejected() -> None:
    with pytest.raises(BadInput, match=r"partition=quantity:0.001 with clients=50: no draw in 20 .* raise BETA"):
        by_quantity(Y_TRAIN, Y_TEST, 50, 0.001, 0, draws=20)


# assigned


def test_assigned_uses_the_clients_of_the_data_set() -> None:
    train, test = torch.arange(len(Y_TRAIN)) % 3, torch.arange(len(Y_TEST)) % 3
    partition = split("assigned", Y_TRAIN, Y_TEST, 3, 0, assigned=(train, test))
    assert_uses_all_once(partition)
    for client in range(3):
        assert (train[partition.train[client]] == client).all()
        assert (test[partition.test[client]] == client).all()


def test_unassigned_test_examples_follow_the_training_distribution() -> None:
    train = (Y_TRAIN >= 5).astype(np.int64)
    partition = by_assignment(Y_TRAIN, Y_TEST, 2, (train, None), seed=1)
    assert_uses_all_once(partition)
    assert mixtures(Y_TEST, partition.test).tolist() == [[30] * 5 + [0] * 5, [0] * 5 + [30] * 5]


@pytest.mark.parametrize(
    ("clients", "ids", "message"),
    [
        (2, None, "partition=assigned: the data set assigns no clients: add client_train"),
        (2, (np.arange(1000) % 3, np.arange(300) % 2), "client_train names client 2: the fleet has clients 0 to 1"),
        (4, (np.arange(1000) % 3, np.arange(300) % 4), "client_train has no example for client 3 of 4"),
        (3, (np.arange(1000) % 3, np.arange(300) % 2), "client_test has no example for client 2 of 3"),
        (3, (np.arange(999) % 3, None), "client_train has 999 entries for 1000 examples"),
    ],
)
def test_invalid_assignments_are_rejected(clients: int, ids: object, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        by_assignment(Y_TRAIN, Y_TEST, clients, ids)  # type: ignore[arg-type]


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan"), float("inf")])
def test_alpha_must_be_finite_and_positive(alpha: float) -> None:
    with pytest.raises(BadInput, match=f"alpha={alpha}"):
        dirichlet(Y_TRAIN, Y_TEST, 3, alpha, 0)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("alpha", [5e-324, 1e308])
def test_nan_shares_count_as_failed_draws(alpha: float) -> None:
    with pytest.raises(BadInput) as caught:
        dirichlet(Y_TRAIN, Y_TEST, 20, alpha, 0, draws=20)
    for word in (f"alpha={alpha}", "clients=20", "20 gave", "1000 training", "300 test", "fewer clients"):
        assert word in str(caught.value)


def test_too_many_clients_are_rejected() -> None:
    with pytest.raises(BadInput, match="clients=1001: 1000 training"):
        iid(Y_TRAIN, Y_TEST, 1001, 0)
    with pytest.raises(BadInput, match="clients=301: 300 test"):
        iid(Y_TRAIN, Y_TEST, 301, 0)
    with pytest.raises(BadInput, match="clients=0"):
        iid(Y_TRAIN, Y_TEST, 0, 0)
    with pytest.raises(BadInput, match="seed=-1"):
        iid(Y_TRAIN, Y_TEST, 2, -1)


def test_class_without_training_examples_is_named() -> None:
    with pytest.raises(BadInput, match="class 9 has test examples but no training"):
        dirichlet(np.where(Y_TRAIN == 9, 8, Y_TRAIN), Y_TEST, 2, 1.0, 0)
