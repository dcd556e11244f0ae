"""MMD compared with the exact kernel and with the closed form for Gaussians."""

import math

import pytest
import torch
from torch import Tensor

from asfedbridge.analysis.mmd import SUBSAMPLE, median_bandwidth, mmd_squared


def normal(seed: int, examples: int = 250, width: int = 6) -> Tensor:
    return torch.randn(examples, width, generator=torch.Generator().manual_seed(seed))


def by_kernel(x: Tensor, y: Tensor, sigma: float) -> float:
    """mean k(x, x') + mean k(y, y') - 2 mean k(x, y), all pairs: what the Fourier features estimate."""

    def mean(u: Tensor, v: Tensor) -> float:
        square = (u.double()[:, None] - v.double()[None]).square().sum(dim=2)
        return float((-square / (2 * sigma**2)).exp().mean())

    return mean(x, x) + mean(y, y) - 2 * mean(x, y)


def closed_form(shift: float, width: int, sigma: float) -> float:
    """MMD^2 of N(0, I) and N(mu, I), ||mu|| = shift: the kernel convolved with two unit Gaussians."""
    return 2 * (sigma**2 / (sigma**2 + 2)) ** (width / 2) * (1 - math.exp(-(shift**2) / (2 * (sigma**2 + 2))))


@pytest.mark.parametrize("sigma", [0.7, 2.0, 9.0])
def test_mmd_is_close_to_the_exact_kernel(sigma: float) -> None:
    """1024 cosines of variance below 1/2: the error of a kernel value is about 0.02, that of MMD^2 is smaller."""
    features = [normal(0), normal(1) + 0.5, normal(2).relu(), normal(3) * 2]
    found = mmd_squared(features, sigma)
    for i, x in enumerate(features):
        for j, y in enumerate(features):
            assert float(found[i, j]) == pytest.approx(by_kernel(x, y, sigma), abs=0.02, rel=0.05)


def test_mmd_of_shifted_gaussians_follows_the_closed_form() -> None:
    width, sigma, shifts = 6, 3.0, [0.0, 0.5, 1.0, 2.0, 4.0, 8.0]
    moved = [normal(7 + i, 4000, width) + shift / math.sqrt(width) for i, shift in enumerate(shifts)]
    found = mmd_squared([normal(99, 4000, width), *moved], sigma)[0, 1:].tolist()
    assert found == sorted(found)
    assert found[0] < 0.002
    for value, shift in zip(found, shifts, strict=True):
        assert value == pytest.approx(closed_form(shift, width, sigma), rel=0.12, abs=0.002)  # 1024 cosines


def test_mmd_of_equal_samples_is_zero_in_any_order() -> None:
    x = normal(0)
    found = mmd_squared([x, x.clone(), x.flip(0)], 2.0)
    assert float(found.abs().max()) < 1e-20
    assert torch.equal(found.diag(), torch.zeros(3, dtype=torch.float64))
    assert torch.equal(found, found.T)


def test_mmd_is_reproducible_and_independent_of_other_clients() -> None:
    x, y = normal(0), normal(1) + 1
    assert torch.equal(mmd_squared([x, y], 2.0), mmd_squared([x, y], 2.0))
    assert mmd_squared([normal(5), x, y], 2.0)[1, 2] == mmd_squared([x, y], 2.0)[0, 1]


def test_bandwidth_of_few_features_is_the_median_of_all_distances() -> None:
    features = [normal(0, 30), normal(1, 20) + 4]
    pooled = torch.cat(features).double()
    distances = sorted(float((u - v).norm()) for k, u in enumerate(pooled) for v in pooled[:k])
    middle = len(distances) // 2
    assert len(distances) % 2 == 1
    assert median_bandwidth(features) == pytest.approx(distances[middle], rel=1e-12)


def test_bandwidth_of_many_features_uses_an_even_subsample() -> None:
    features = [normal(0, 700), normal(1, 300) + 10, normal(2, 536) - 10]  # 1536 rows: every third
    chosen = torch.cat(features)[::3].double()
    assert len(chosen) == SUBSAMPLE
    assert median_bandwidth(features) == pytest.approx(float(torch.pdist(chosen).quantile(0.5)), rel=1e-12)


def test_the_bandwidth_of_silent_or_broken_networks() -> None:
    silent = torch.zeros(90, 3)
    awake = torch.eye(3).repeat(4, 1)
    assert median_bandwidth([silent, awake]) == pytest.approx(1.0)  # from zero to a unit vector
    assert median_bandwidth([silent]) == 1.0
    assert float(mmd_squared([silent, silent], 1.0)[0, 1]) == 0.0
    broken = torch.full((40, 3), torch.nan)
    assert median_bandwidth([broken, awake]) == pytest.approx(math.sqrt(2))
