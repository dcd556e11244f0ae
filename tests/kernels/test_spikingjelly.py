"""LIF computed by SpikingJelly. Its CPU code is tested here in place of its CUDA kernels."""

from typing import Any

import pytest
import torch

from asfedbridge.core.task import Neuron
from asfedbridge.kernels import spikingjelly
from asfedbridge.kernels.dispatch import VARIABLE
from asfedbridge.models.neuron import lif, lif_reference

SHARPNESS = {"triangle": 1.5, "rectangle": 0.4, "sigmoid": 4.0, "atan": 2.0}


def membranes(x: torch.Tensor, neuron: Neuron) -> torch.Tensor:
    v, out = torch.zeros_like(x[0]), []
    for current in x:
        u = current + neuron.decay * v
        out.append(u)
        v = u * (u < neuron.threshold)
    return torch.stack(out)


@pytest.mark.parametrize("surrogate", SHARPNESS)
@pytest.mark.parametrize("detach", [False, True])
@pytest.mark.parametrize("decay", [0.5, 0.9, 0.25, 0.3])
@pytest.mark.parametrize(("steps", "threshold"), [(1, 1.0), (4, 1.0), (16, 1.0), (4, 0.6)])
def test_matches_the_reference(surrogate: str, detach: bool, decay: float, steps: int, threshold: float) -> None:
    """The time constant rounds most decays, so inputs with a membrane at the threshold are excluded."""
    neuron = Neuron(decay, threshold, surrogate, SHARPNESS[surrogate], detach)  # type: ignore[arg-type]
    x = 0.4 + 0.8 * torch.randn(steps, 400, generator=torch.Generator().manual_seed(0))
    distance = (membranes(x.double(), neuron) - threshold).abs()
    edges = (distance - SHARPNESS["rectangle"]).abs() if surrogate == "rectangle" else distance
    x = x[:, (torch.minimum(distance, edges) > 1e-5).all(dim=0)].unsqueeze(1)
    assert x.shape[2] > 380
    up = torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    results = []
    for run in (spikingjelly.lif_spikingjelly, lif_reference):
        leaf = x.clone().requires_grad_()
        spikes = run(leaf, neuron)
        (spikes * up).sum().backward()
        results.append((spikes.detach(), leaf.grad))
    (spikes, grad), (expected, right) = results
    assert torch.equal(spikes, expected)
    torch.testing.assert_close(grad, right, rtol=1e-4, atol=2e-5 * right.abs().max().item())


def test_membrane_exactly_at_the_threshold() -> None:
    """Multiples of 1/4 with decay 1/2 are exact in float32, so many membranes equal the threshold exactly."""
    neuron = Neuron(decay=0.5, threshold=1.0)
    x = torch.randint(-2, 6, (4, 3, 200), generator=torch.Generator().manual_seed(0)) / 4
    assert (membranes(x, neuron) == 1.0).sum() > 100
    assert torch.equal(spikingjelly.lif_spikingjelly(x, neuron), lif_reference(x, neuron))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_layouts(layout: torch.memory_format) -> None:
    folded = torch.randn(6, 3, 4, 5, generator=torch.Generator().manual_seed(0)).contiguous(memory_format=layout)
    x = folded.unflatten(0, (3, 2))
    out = spikingjelly.lif_spikingjelly(x, Neuron())
    assert torch.equal(out, lif_reference(x, Neuron()))
    assert out.dtype == torch.float32
    assert out.shape == x.shape


@pytest.mark.parametrize(("decay", "can"), [(0.0, False), (0.01, True), (0.99, True), (1.0, False)])
def test_decays_without_a_time_constant_use_torch(decay: float, can: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    neuron = Neuron(decay=decay)
    assert spikingjelly.fits(neuron) == can
    monkeypatch.setenv(VARIABLE, "spikingjelly")
    called = []
    original = spikingjelly.lif_spikingjelly

    def watched(*args: Any) -> Any:
        called.append(1)
        return original(*args)

    monkeypatch.setattr(spikingjelly, "lif_spikingjelly", watched)
    x = 0.4 + torch.randn(4, 2, 30, generator=torch.Generator().manual_seed(0))
    assert torch.equal(lif(x, neuron), lif_reference(x, neuron))
    assert bool(called) == can
