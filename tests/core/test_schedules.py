import math

import pytest

from asfedbridge.core.schedules import cosine, ramp
from asfedbridge.core.task import Round
from asfedbridge.methods.as_fedbridge import ASFedBridge


@pytest.mark.parametrize(("index", "factor"), [(0, 1.0), (25, (2 + math.sqrt(2)) / 4), (50, 0.5), (100, 0.0)])
def test_cosine_falls_from_start_to_zero(index: int, factor: float) -> None:
    assert cosine(0.05, index, 100) == pytest.approx(0.05 * factor, abs=1e-17)
    assert Round(index, 100).cosine(0.05) == cosine(0.05, index, 100)


def test_cosine_never_rises() -> None:
    rates = [cosine(0.1, index, 100) for index in range(100)]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] > 0  # the last round still learns


@pytest.mark.parametrize(
    ("weight", "first", "last"),
    [
        ("alpha_kd_ann", 0.10, 0.025),
        ("alpha_kd_snn", 0.07, 0.025),
        ("alpha_teach", 0.16, 0.05),
        ("alpha_ce", 1.10, 0.55),
    ],
)
def test_ramps_match_the_papers_table(weight: str, first: float, last: float) -> None:
    ends = getattr(ASFedBridge(), weight)
    assert ramp(ends, 0, 100) == first
    assert ramp(ends, 99, 100) == pytest.approx(last, rel=1e-12)
    assert ramp(ends, 33, 100) == pytest.approx(first * 2 / 3 + last / 3)
    assert Round(33, 100).ramp(ends) == ramp(ends, 33, 100)


def test_a_run_of_one_round_stays_at_the_first_value() -> None:
    assert ramp((0.3, 0.1), 0, 1) == 0.3
