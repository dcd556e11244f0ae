"""Noise is Gaussian, has the requested deviation, and is independent."""

import math

import pytest
import torch

from asfedbridge.core.privacy import Normal, add_noise, seeded_normal, system_normal

SOURCES: list[Normal] = [system_normal, seeded_normal(42, 0)]


@pytest.mark.parametrize("normal", SOURCES, ids=["system", "seed"])
def test_noise_is_standard_normal(normal: Normal) -> None:
    """Moments and tails are within six standard errors."""
    n = 1_000_001
    z = normal((n,)).double()
    assert abs(z.mean()) < 6 / math.sqrt(n)
    assert abs(z.std() - 1) < 6 / math.sqrt(2 * n)
    for edge in (-2.0, -1.0, 0.0, 1.0, 2.0, 3.0):
        share = 0.5 * math.erfc(-edge / math.sqrt(2))
        assert abs((z < edge).double().mean() - share) < 6 * math.sqrt(share * (1 - share) / n)
    half = n // 2
    assert abs((z[:half] * z[-half:]).mean()) < 6 / math.sqrt(half)  # both of a Box-Muller pair


def test_system_noise_never_repeats() -> None:
    first = system_normal((64,))
    assert not torch.equal(first, system_normal((64,)))
    torch.manual_seed(0)
    again = system_normal((64,))
    torch.manual_seed(0)
    assert not torch.equal(again, system_normal((64,)))
    assert torch.isfinite(first).all()
    assert first.unique().numel() == 64


def test_seeded_noise_depends_on_seed_and_place() -> None:
    assert torch.equal(seeded_normal(1, 3, "all")((5,)), seeded_normal(1, 3, "all")((5,)))
    others = [(2, 3, "all"), (1, 4, "all"), (1, 3, "snn")]
    assert not any(torch.equal(seeded_normal(1, 3, "all")((5,)), seeded_normal(*other)((5,))) for other in others)


@pytest.mark.parametrize("shape", [(), (1,), (3, 1, 2), (0,)])
def test_shapes(shape: tuple[int, ...]) -> None:
    assert system_normal(shape).shape == shape
    assert system_normal(shape).dtype == torch.float32


@pytest.mark.parametrize("normal", SOURCES, ids=["system", "seed"])
def test_tensors_have_independent_noise(normal: Normal) -> None:
    mean = {"b": torch.full((20_000,), 5.0), "a": torch.full((20_000,), -5.0)}
    noisy = add_noise(mean, 0.25, normal)
    apart = {name: noisy[name] - mean[name] for name in mean}
    assert all(t.std().item() == pytest.approx(0.25, rel=0.03) for t in apart.values())
    assert abs((apart["a"] * apart["b"]).mean()) < 0.25**2 * 6 / math.sqrt(20_000)
    assert mean["b"].unique().tolist() == [5.0]
