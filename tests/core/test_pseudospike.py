import math

import pytest
import torch
from torch import Tensor

from asfedbridge.core import pseudospike

SHAPES = [(6, 3), (4, 3, 2, 5)]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def uniform(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def reference_pspr(
    rates: list[Tensor], threshold: float = 0.5, k: float = 1.0, low: float = 0.05, weight: float = 1.0
) -> Tensor:
    """The paper's formula, channel by channel; differentiable as long as no channel is constant."""
    ports: list[Tensor] = []
    for r in rates:
        channels: list[Tensor] = []
        for values in r.transpose(0, 1).flatten(1):
            mu = sum(values) / len(values)
            sigma = (sum((v - mu) ** 2 for v in values) / len(values)) ** 0.5
            zero = torch.zeros((), dtype=r.dtype)
            centring = torch.maximum(abs(mu - threshold) - k * sigma, zero)
            channels.append(centring**2 + weight * torch.maximum(low - sigma, zero) ** 2)
        ports.append(sum(channels, torch.zeros(())) / len(channels))
    return sum(ports, torch.zeros(())) / len(ports)


@pytest.mark.parametrize("shape", SHAPES)
def test_rate_is_the_clipped_activation_over_its_channels_scale(shape: tuple[int, ...]) -> None:
    a, scale = 2 * normal(*shape), [0.5, 1.0, 3.0]
    r = pseudospike.rate(a, torch.tensor(scale, dtype=torch.float64))
    for channel, s in enumerate(scale):
        expected = [min(max(v, 0.0) / s, 1.0) for v in a[:, channel].flatten().tolist()]
        assert r[:, channel].flatten().tolist() == pytest.approx(expected, rel=1e-15)
    assert 0.0 in r
    assert 1.0 in r


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("steps", [1, 2, 3, 4, 10])
def test_quantised_rates_are_exactly_the_nearest_level(steps: int, dtype: torch.dtype) -> None:
    r = torch.linspace(0, 1, 1001, dtype=dtype).requires_grad_()
    q = pseudospike.quantise(r, steps)
    levels = torch.arange(steps + 1, dtype=dtype) / steps
    assert set(q.tolist()) == set(levels.tolist())
    nearest = (r.detach()[:, None] - levels).abs().min(dim=1).values
    torch.testing.assert_close((r - q).detach().abs(), nearest)
    q.sum().backward()
    assert torch.equal(r.grad, torch.ones_like(r))


def test_rate_loss_is_the_mean_square_without_gradient_for_the_snn() -> None:
    bridge = torch.tensor([[0.25, 0.5], [1.0, 0.0]], requires_grad=True)
    snn = torch.tensor([[0.75, 0.5], [0.0, 0.25]], requires_grad=True)
    loss = pseudospike.rate_loss(bridge, snn)
    loss.backward()
    assert loss.item() == (0.25 + 0 + 1 + 0.0625) / 4
    assert snn.grad is None
    assert bridge.grad.tolist() == [[-0.25, 0.0], [0.5, -0.125]]


@pytest.mark.parametrize("setting", [{}, {"threshold": 0.2, "k": 0.3, "low": 0.4, "weight": 2.5}], ids=["paper", "own"])
def test_pspr_equals_the_formula_channel_by_channel(setting: dict[str, float]) -> None:
    """Two ports of unequal size: the mean over ports is not the mean over all channels."""
    ports = [uniform(4, 3, 2, 2) * torch.tensor([0.01, 0.3, 1.0]).view(1, 3, 1, 1), 0.8 + 0.2 * uniform(4, 2)]
    given = {
        {"k": "spread", "low": "minimum_deviation", "weight": "variance_weight"}.get(n, n): v
        for n, v in setting.items()
    }
    expected = reference_pspr(ports, **setting).item()
    assert expected > 1e-3
    assert pseudospike.pspr(ports, **given).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("mean", "deviation", "zero"),
    [
        (0.5, 0.05, True),  # both conditions at their boundary
        (0.5, 0.3, True),
        (0.7, 0.2, True),  # the threshold exactly one deviation away
        (0.3, 0.25, True),
        (0.5, 0.049, False),  # too little variation
        (0.5, 0.0, False),
        (0.7, 0.19, False),  # too far above the threshold
        (0.3, 0.19, False),  # too far below it
        (0.9, 0.01, False),  # both
    ],
)
@pytest.mark.parametrize("spatial", [(), (2, 2)])
def test_pspr_vanishes_exactly_on_its_zero_set(
    mean: float, deviation: float, zero: bool, spatial: tuple[int, ...]
) -> None:
    """|mu - V_th| <= k_d sigma and sigma >= sigma_min; two equally frequent values have mean and deviation given."""
    signs = torch.tensor([1.0, -1.0], dtype=torch.float64).view(2, 1, *[1] * len(spatial)).expand(2, 3, *spatial)
    penalty = pseudospike.pspr([mean + deviation * signs]).item()
    distance = max(abs(mean - 0.5) - deviation, 0.0) ** 2 + max(0.05 - deviation, 0.0) ** 2
    assert (penalty < 1e-20) == zero
    assert penalty == pytest.approx(distance, rel=1e-3, abs=1e-20)


def test_loss_of_one_channel_is_averaged_over_channels_and_ports() -> None:
    good = torch.tensor([0.2, 0.8], dtype=torch.float64).view(2, 1).expand(2, 4)
    bad = good.clone()
    bad[:, 2] = torch.tensor([0.9, 1.0])  # mu = 0.95, sigma = 0.05: (0.45 - 0.05)^2
    assert pseudospike.pspr([good, bad, good]).item() == pytest.approx(0.16 / 4 / 3, rel=1e-6)


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
def test_a_constant_channel_has_a_finite_gradient(value: float) -> None:
    r = torch.full((4, 2, 3, 3), value, requires_grad=True)
    pseudospike.pspr([r]).backward()
    assert torch.isfinite(r.grad).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_gradient_at_a_port_is_the_papers(shape: tuple[int, ...]) -> None:
    """dL/da = 1[a > 0] 1[0 < u < 1] / s (alpha_rate dL_rate/dr~ + alpha_pspr dL_PSPR/dr), straight through Q_T."""
    alpha_rate, alpha_pspr, steps = 0.7, 1.3, 4
    a = (0.8 * normal(*shape)).requires_grad_()
    scale_C = torch.tensor([0.4, 0.9, 2.0], dtype=torch.float64)
    target = uniform(*shape, seed=3)

    r = pseudospike.rate(a, scale_C)
    loss = alpha_rate * pseudospike.rate_loss(pseudospike.quantise(r, steps), target)
    (loss + alpha_pspr * pseudospike.pspr([r], 0.6, 0.5, 0.4)).backward()

    scale = scale_C.view(1, 3, *[1] * (len(shape) - 2))
    u = (a.detach().clamp(min=0) / scale).requires_grad_()
    bounded = u.detach().clamp(max=1).requires_grad_()
    (through_pspr,) = torch.autograd.grad(reference_pspr([bounded], 0.6, 0.5, 0.4), bounded)
    through_rate = 2 * ((bounded.detach() * steps).round() / steps - target) / a.numel()
    open_port = (a > 0) & (u > 0) & (u < 1)
    assert 0 < open_port.sum() < a.numel()
    expected = open_port / scale * (alpha_rate * through_rate + alpha_pspr * through_pspr)
    torch.testing.assert_close(a.grad, expected, rtol=1e-6, atol=1e-12)


def test_the_scale_learns() -> None:
    """dr/ds = -a / s^2 inside the open interval, zero where clipped."""
    a = torch.tensor([[0.5, -1.0, 3.0]], dtype=torch.float64)
    scale = torch.full((3,), 2.0, dtype=torch.float64, requires_grad=True)
    pseudospike.rate(a, scale).sum().backward()
    assert scale.grad.tolist() == [-0.5 / 4, 0.0, 0.0]
    assert math.isclose(pseudospike.rate(a, scale)[0, 0].item(), 0.25)
