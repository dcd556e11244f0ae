"""Weights, aggregation rules and clipped updates against values computed by hand."""

import math
import random

import pytest
import torch

from asfedbridge.core import payload
from asfedbridge.core.aggregation import (
    Rule,
    Weights,
    aggregate,
    choose_by_krum,
    clip_update,
    count_cut,
    geometric_median,
    squared_distances,
    weigh,
)
from asfedbridge.core.payload import Payload


def rows(*values: list[float]) -> list[Payload]:
    return [{"w": torch.tensor(v)} for v in values]


ROBUST: list[Rule] = ["median", "trimmed", "krum", "geometric"]
FIVE = rows([1.0, 50.0], [2.0, -1.0], [9.0, 3.0], [4.0, 4.0], [3.0, 5.0])


@pytest.mark.parametrize(
    ("count", "rule", "expected"),
    [
        (5, "median", [3.0, 4.0]),
        (4, "median", [(2 + 4) / 2, (3 + 4) / 2]),  # the mean of the two middle values
        (3, "median", [2.0, 3.0]),
        (2, "median", [1.5, 24.5]),
        (1, "median", [1.0, 50.0]),
        (5, "trimmed", [(2 + 4 + 3) / 3, (3 + 4 + 5) / 3]),
        (4, "trimmed", [(2 + 4) / 2, (3 + 4) / 2]),
        (2, "trimmed", [1.5, 24.5]),  # nothing can be removed
    ],
)
def test_median_and_trimmed_mean_by_hand(count: int, rule: Rule, expected: list[float]) -> None:
    got = aggregate(FIVE[:count], [7.0] * count, rule, trim=0.2)
    assert got["w"].tolist() == pytest.approx(expected)


def test_mean_is_the_weighted_mean() -> None:
    weights = [1.0, 2.0, 3.0, 4.0, 5.0]
    assert torch.equal(aggregate(FIVE, weights)["w"], payload.weighted_mean(FIVE, weights)["w"])


@pytest.mark.parametrize("rule", ROBUST)
def test_robust_rules_ignore_weights_and_order(rule: Rule) -> None:
    got = aggregate(FIVE, [1e12, 1, 1, 1, 1], rule, 0.2)["w"]
    torch.testing.assert_close(got, aggregate(FIVE[::-1], [1.0] * 5, rule, 0.2)["w"])
    assert torch.equal(got, aggregate(FIVE, [1.0] * 5, rule, 0.2)["w"])


@pytest.mark.parametrize("rule", ROBUST)
def test_inputs_are_not_modified(rule: Rule) -> None:
    before = payload.clone(FIVE[0])
    got = aggregate(FIVE[:1], [1.0], rule, 0.2)
    got["w"] += 1
    assert torch.equal(FIVE[0]["w"], before["w"])


@pytest.mark.parametrize(
    ("clients", "trim", "cut"), [(10, 0.1, 1), (10, 0.11, 2), (100, 0.07, 7), (3, 0.1, 1), (2, 0.4, 0), (9, 0.0, 0)]
)
def test_number_of_trimmed_clients_is_rounded_up(clients: int, trim: float, cut: int) -> None:
    assert count_cut(clients, "trimmed", trim) == cut


def test_one_attacker_ruins_only_the_mean() -> None:
    """One of ten sends huge values; the others agree up to 0.1."""
    draws = torch.Generator().manual_seed(0)
    honest = [{"w": 1 + 0.1 * torch.rand(100, generator=draws)} for _ in range(9)]
    attacked = [*honest[:4], {"w": torch.full((100,), -1e30)}, *honest[4:]]
    weights = [1.0] * 10
    assert aggregate(attacked, weights)["w"].max() < -1e28
    for rule in ("median", "trimmed", "krum"):
        got = aggregate(attacked, weights, rule, trim=0.1)["w"]
        assert got.min() >= 1
        assert got.max() <= 1.1
    got = aggregate(attacked, weights, "geometric")["w"]
    assert (got - 1.05).norm() < 0.5  # honest clients are 0.3 from their centre
    before = {"w": torch.ones(100)}
    clipped = [clip_update(p, before, 1.0) for p in attacked]
    assert (aggregate(clipped, weights)["w"] - 1).norm() <= 1


def test_clipping_by_hand() -> None:
    before = {"a": torch.tensor([1.0, 1.0]), "b": torch.tensor(2.0)}
    up = {"a": torch.tensor([4.0, 1.0]), "b": torch.tensor(6.0)}  # differences 3, 0 and 4: norm 5
    clipped = clip_update(up, before, 2.5)
    assert clipped["a"].tolist() == [2.5, 1.0]
    assert clipped["b"].item() == 4.0
    assert clip_update(up, before, 5.0) is up  # below the limit: unchanged
    assert up["b"].item() == 6.0


def test_clipping_handles_updates_whose_square_overflows_float32() -> None:
    clipped = clip_update({"w": torch.tensor([3e38, -3e38])}, {"w": torch.zeros(2)}, 1.0)
    assert clipped["w"].tolist() == pytest.approx([0.5**0.5, -(0.5**0.5)])


@pytest.mark.parametrize("value", [1e10, 1e30, 3.4e38])
def test_the_largest_update_is_clipped_to_the_limit_too(value: float) -> None:
    clipped = clip_update({"w": torch.full((10**6,), value)}, {"w": torch.zeros(10**6)}, 1e-3)
    assert torch.linalg.vector_norm(clipped["w"], dtype=torch.float64).item() == pytest.approx(1e-3, rel=1e-6)


# weights


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("uniform", [1.0, 1.0, 1.0, 1.0]),
        ("size", [100.0, 300.0, 200.0, 1e8]),
        ("capped", [100.0, 300.0, 200.0, 4 * 250.0]),  # the median of 100, 200, 300 and 10^8 is 250
    ],
)
def test_weights_by_hand(how: Weights, expected: list[float]) -> None:
    assert weigh([100, 300, 200, 10**8], how, cap=4.0) == expected


def test_cap_above_all_sizes_has_no_effect() -> None:
    sizes = [3, 17, 5, 9, 70]
    capped, plain = (aggregate(FIVE, weigh(sizes, how, cap=10.0))["w"] for how in ("capped", "size"))
    assert torch.equal(capped, plain)


def test_share_of_an_oversized_client_is_bounded() -> None:
    """Half of the clients, including this one, are at or above the median: at most cap / (cap + ceil(n / 2) - 1)."""
    draws = random.Random(0)
    for _ in range(500):
        cap, clients = draws.choice([1.0, 2.5, 10.0]), draws.randint(1, 12)
        sizes = [draws.randint(1, 10 ** draws.randint(1, 4)) for _ in range(clients - 1)]
        sizes.insert(draws.randint(0, clients - 1), 10**8)
        weights = weigh(sizes, "capped", cap)
        assert max(weights) / sum(weights) <= cap / (cap + math.ceil(clients / 2) - 1) + 1e-12


# Krum


def test_krum_by_hand() -> None:
    """Seven clients, two assumed Byzantine: squared distances to the three nearest neighbours.

    The scores of 0 to 4 are 1+4+9, 1+1+4, 1+1+4, 1+1+4 and 1+4+9; the other two are far from all.
    """
    line = rows([100.0], [0.0], [1.0], [2.0], [-50.0], [3.0], [4.0])
    assert choose_by_krum(line, 2) == [1, 2, 3, 5, 6]
    assert aggregate(line, [1.0] * 7, "krum", trim=0.2)["w"].tolist() == [2.0]
    assert choose_by_krum(line, 3) == [1, 2, 3, 5]  # two nearest: 5, 2, 2, 2 and 5; ties go to the first


def test_krum_compares_whole_uploads() -> None:
    """Client 2 is an outlier as a whole, but not in any single coordinate."""
    ups = [{"a": torch.tensor([float(a)]), "b": torch.tensor([float(b)])} for a, b in ((0, 0), (0, 1), (3, 3), (1, 0))]
    assert squared_distances(ups)[2].tolist() == pytest.approx([18.0, 13.0, 0.0, 13.0])
    assert choose_by_krum(ups, 1) == [0, 1, 3]


@pytest.mark.parametrize(("count", "expected"), [(1, [1.0, 50.0]), (2, [1.5, 24.5])])
def test_krum_of_one_or_two_clients_is_the_mean(count: int, expected: list[float]) -> None:
    assert aggregate(FIVE[:count], [1.0] * count, "krum", trim=0.4)["w"].tolist() == expected


def test_krum_of_three_clients_drops_one() -> None:
    assert aggregate(rows([0.0], [10.0], [1.0]), [1.0] * 3, "krum", trim=0.1)["w"].tolist() == [0.5]


def test_distances_do_not_depend_on_the_chunk_size(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = torch.Generator().manual_seed(1)
    ups = [{"w": torch.randn(7, 11, generator=draws), "b": torch.randn((), generator=draws)} for _ in range(4)]
    whole = squared_distances(ups)
    flat = torch.stack([torch.cat([u["b"].reshape(1), u["w"].flatten()]) for u in ups]).double()
    torch.testing.assert_close(whole, (flat[:, None] - flat).square().sum(dim=2))
    monkeypatch.setattr("asfedbridge.core.aggregation.CHUNK", 10)
    torch.testing.assert_close(squared_distances(ups), whole)


# the geometric median


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([[7.0]], [7.0]),
        ([[1.0], [9.0], [2.0]], [2.0]),  # collinear points: the median
        ([[-1.0, 0.0], [3.0, 0.0], [0.0, -2.0], [0.0, 5.0]], [0.0, 0.0]),  # where the diagonals cross
        ([[0.0, 0.0], [2.0, 0.0], [1.0, 3.0**0.5]], [1.0, 1 / 3**0.5]),  # equilateral triangle: the centre
        ([[0.0, 0.0], [10.0, 1.0], [-10.0, 1.0]], [0.0, 0.0]),  # triangle with an angle above 120 degrees: that corner
    ],
)
def test_geometric_median_by_hand(points: list[list[float]], expected: list[float]) -> None:
    assert geometric_median(rows(*points))["w"].tolist() == pytest.approx(expected, abs=1e-5)


def pull(points: list[Payload], centre: torch.Tensor) -> float:
    """Norm of the sum of unit vectors towards the points: zero at the minimum of the sum of distances."""
    away = [p["w"].double() - centre.double() for p in points]
    return torch.stack([a / a.norm() for a in away]).sum(dim=0).norm().item()


def test_geometric_median_moves_away_from_the_coordinate_wise_median() -> None:
    """Weiszfeld's algorithm starts at a client's point. Its angle is 112 degrees, so the optimum is elsewhere."""
    corner = rows([0.0, 0.0], [-1.0, 5.0], [5.0, -1.0])
    got = geometric_median(corner)["w"]
    assert got.norm() > 0.1
    assert pull(corner, got) < 1e-4


@pytest.mark.parametrize("seed", range(5))
def test_geometric_median_minimises_the_sum_of_distances(seed: int) -> None:
    draws = torch.Generator().manual_seed(seed)
    points = [{"w": torch.randn(20, generator=draws)} for _ in range(9)]
    assert pull(points, geometric_median(points)["w"]) < 1e-4


@pytest.mark.parametrize("value", [1e3, 1e30, 3e38])
def test_minority_moves_the_geometric_median_by_a_bounded_distance(value: float) -> None:
    """With four of ten clients arbitrarily far away, it is finite and within a few radii of the six honest ones."""
    draws = torch.Generator().manual_seed(0)
    honest = [{"w": 1 + 0.1 * torch.randn(50, generator=draws)} for _ in range(6)]
    got = geometric_median([{"w": torch.full((50,), value)}] * 4 + honest)["w"]
    centre = torch.stack([h["w"] for h in honest]).mean(dim=0)
    radius = max((h["w"] - centre).norm() for h in honest)
    assert (got - centre).norm() <= 2 * 6 / (6 - 4) * radius  # Minsker, Bernoulli 2015, lemma 2.1
    assert torch.isfinite(got).all()


@pytest.mark.parametrize("rule", ROBUST)
def test_geometric_median_of_equal_uploads_is_exact(rule: Rule) -> None:
    same = rows(*[[0.1, -3.7, 1e-20]] * 7)
    torch.testing.assert_close(aggregate(same, [1.0] * 7, rule, 0.3)["w"], same[0]["w"], rtol=1e-6, atol=0)
