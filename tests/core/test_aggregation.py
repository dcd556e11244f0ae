"""Means, medians and clipped updates by hand."""

import pytest
import torch

from asfedbridge.core import payload
from asfedbridge.core.aggregation import Rule, aggregate, clip_update, count_cut
from asfedbridge.core.payload import Payload


def rows(*values: list[float]) -> list[Payload]:
    return [{"w": torch.tensor(v)} for v in values]


FIVE = rows([1.0, 50.0], [2.0, -1.0], [9.0, 3.0], [4.0, 4.0], [3.0, 5.0])


@pytest.mark.parametrize(
    ("count", "rule", "expected"),
    [
        (5, "median", [3.0, 4.0]),
        (4, "median", [(2 + 4) / 2, (3 + 4) / 2]),  # the mean of the two in the middle
        (3, "median", [2.0, 3.0]),
        (2, "median", [1.5, 24.5]),
        (1, "median", [1.0, 50.0]),
        (5, "trimmed", [(2 + 4 + 3) / 3, (3 + 4 + 5) / 3]),
        (4, "trimmed", [(2 + 4) / 2, (3 + 4) / 2]),
        (2, "trimmed", [1.5, 24.5]),  # nobody can be left out
    ],
)
def test_by_hand(count: int, rule: Rule, expected: list[float]) -> None:
    got = aggregate(FIVE[:count], [7.0] * count, rule, trim=0.2)
    assert got["w"].tolist() == pytest.approx(expected)


def test_the_mean_is_the_weighted_mean() -> None:
    weights = [1.0, 2.0, 3.0, 4.0, 5.0]
    assert torch.equal(aggregate(FIVE, weights)["w"], payload.weighted_mean(FIVE, weights)["w"])


@pytest.mark.parametrize("rule", ["median", "trimmed"])
def test_sizes_and_order_do_not_count(rule: Rule) -> None:
    got = aggregate(FIVE, [1e12, 1, 1, 1, 1], rule, 0.2)["w"]
    assert torch.equal(got, aggregate(FIVE[::-1], [1.0] * 5, rule, 0.2)["w"])


@pytest.mark.parametrize("rule", ["median", "trimmed"])
def test_inputs_are_left_alone(rule: Rule) -> None:
    before = payload.clone(FIVE[0])
    got = aggregate(FIVE[:1], [1.0], rule, 0.2)
    got["w"] += 1
    assert torch.equal(FIVE[0]["w"], before["w"])


@pytest.mark.parametrize(
    ("clients", "trim", "cut"), [(10, 0.1, 1), (10, 0.11, 2), (100, 0.07, 7), (3, 0.1, 1), (2, 0.4, 0), (9, 0.0, 0)]
)
def test_a_share_is_rounded_up(clients: int, trim: float, cut: int) -> None:
    assert count_cut(clients, "trimmed", trim) == cut


def test_an_attacker_ruins_the_mean_only() -> None:
    """One of ten sends huge values; the others agree up to 0.1."""
    draws = torch.Generator().manual_seed(0)
    honest = [{"w": 1 + 0.1 * torch.rand(100, generator=draws)} for _ in range(9)]
    attacked = [*honest[:4], {"w": torch.full((100,), -1e30)}, *honest[4:]]
    weights = [1.0] * 10
    assert aggregate(attacked, weights)["w"].max() < -1e28
    for rule in ("median", "trimmed"):
        got = aggregate(attacked, weights, rule, trim=0.1)["w"]
        assert got.min() >= 1
        assert got.max() <= 1.1
    before = {"w": torch.ones(100)}
    clipped = [clip_update(p, before, 1.0) for p in attacked]
    assert (aggregate(clipped, weights)["w"] - 1).norm() <= 1


def test_clipping_by_hand() -> None:
    before = {"a": torch.tensor([1.0, 1.0]), "b": torch.tensor(2.0)}
    up = {"a": torch.tensor([4.0, 1.0]), "b": torch.tensor(6.0)}  # 3, 0 and 4 away: 5 in all
    clipped = clip_update(up, before, 2.5)
    assert clipped["a"].tolist() == [2.5, 1.0]
    assert clipped["b"].item() == 4.0
    assert clip_update(up, before, 5.0) is up  # short enough: not a bit changes
    assert up["b"].item() == 6.0


def test_clipping_bounds_what_overflows_a_float() -> None:
    clipped = clip_update({"w": torch.tensor([3e38, -3e38])}, {"w": torch.zeros(2)}, 1.0)
    assert clipped["w"].tolist() == pytest.approx([0.5**0.5, -(0.5**0.5)])
