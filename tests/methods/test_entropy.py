import math

import pytest
import torch

from asfedbridge.methods.fedfree import entropy_gain, histogram_entropy


@pytest.mark.parametrize(
    ("values", "bins", "expected"),
    [
        ([0.0, 0.0, 1.0, 1.0], 2, math.log(2)),
        ([0.0, 1.0, 2.0, 3.0], 4, math.log(4)),
        ([0.0, 0.0, 0.0, 1.0], 2, -0.75 * math.log(0.75) - 0.25 * math.log(0.25)),
        ([0.0, 0.0, 0.0, 1.0], 256, -0.75 * math.log(0.75) - 0.25 * math.log(0.25)),  # empty bins contribute nothing
        ([5.0, 5.0, 5.0], 4, 0.0),
    ],
)
def test_entropy_of_a_histogram_in_nats(values: list[float], bins: int, expected: float) -> None:
    x = torch.tensor(values)
    assert histogram_entropy(x, bins, min(values), max(values)) == pytest.approx(expected, abs=1e-12)
    shuffled = x.flip(0).reshape(-1, 1)
    assert histogram_entropy(shuffled, bins, min(values), max(values)) == pytest.approx(expected, abs=1e-12)


def test_entropy_over_the_own_range_is_scale_invariant() -> None:
    x = torch.randint(0, 64, (500,), generator=torch.Generator().manual_seed(0)) / 64
    plain = histogram_entropy(x, 16, x.min().item(), x.max().item())
    y = 8 * x - 3
    assert histogram_entropy(y, 16, y.min().item(), y.max().item()) == pytest.approx(plain, abs=1e-12)


def test_gain_may_change_sign_with_the_range() -> None:
    """Four values in [0, 0.3] and two in [0, 3]: over the common range the first four fall into one of four bins."""
    new, old = torch.tensor([0.0, 0.1, 0.2, 0.3]), torch.tensor([0.0, 0.0, 3.0, 3.0])
    assert entropy_gain(new, old, 4, common=False) == pytest.approx(math.log(4) - math.log(2))
    assert entropy_gain(new, old, 4, common=True) == pytest.approx(0 - math.log(2))
    assert entropy_gain(new, new, 4, common=False) == 0.0
