import pytest
import torch
from torch import Tensor, nn

from asfedbridge.core.task import Neuron
from asfedbridge.models.neuron import SURROGATES, Continuous, Spiking, lif, lif_reference

SHARPNESS = {"triangle": 1.0, "rectangle": 0.5, "sigmoid": 4.0, "atan": 2.0}


def currents(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return 0.4 + 0.8 * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize("name", SURROGATES)
@pytest.mark.parametrize("sharpness", [1.0, 4.0])
def test_surrogate_is_the_derivative_of_a_smooth_step(name: str, sharpness: float) -> None:
    """Its integral is 1; it is symmetric and has its maximum at the threshold."""
    x = torch.linspace(-400, 400, 800_001, dtype=torch.float64)
    slope = SURROGATES[name](x.clone(), sharpness)
    assert torch.trapezoid(slope, x).item() == pytest.approx(1.0, abs=2e-3)
    assert slope[len(x) // 2] == slope.max()
    torch.testing.assert_close(slope, slope.flip(0))


@pytest.mark.parametrize(
    ("name", "sharpness", "points"),
    [
        ("triangle", 1.0, {0.0: 1.0, 0.25: 0.75, -0.25: 0.75, 1.5: 0.0}),
        ("triangle", 2.0, {0.0: 0.5, 1.0: 0.25, 2.0: 0.0}),
        ("rectangle", 0.5, {0.0: 1.0, 0.4: 1.0, -0.6: 0.0}),
        ("sigmoid", 4.0, {0.0: 1.0, 0.5: 4 * 0.8807970779778823 * 0.11920292202211757}),
        ("atan", 2.0, {0.0: 1.0, 1.0: 1 / (1 + 9.869604401089358)}),
    ],
)
def test_surrogates_at_known_points(name: str, sharpness: float, points: dict[float, float]) -> None:
    slope = SURROGATES[name](torch.tensor(list(points), dtype=torch.float64), sharpness)
    assert slope.tolist() == pytest.approx(list(points.values()), rel=1e-12)


@pytest.mark.parametrize(("detach", "gradient"), [(False, [0.92768, 1.024, 1.2]), (True, [1.4, 1.6, 1.2])])
@pytest.mark.parametrize("run", [lif, lif_reference])
def test_three_steps_by_hand(run: object, detach: bool, gradient: list[float]) -> None:
    """Membranes 0.6, 1.2 (spike, reset), 0.4; slopes 0.6, 0.8, 0.4.

    Gradient of s_1 + 2 s_2 + 3 s_3, with d v_t / d u_t = 1 - s_t - u_t slope_t (last term only if not detached):
    g_3 = 3 * 0.4;  g_2 = 2 * 0.8 + g_3 / 2 * (0 - 1.2 * 0.8);  g_1 = 0.6 + g_2 / 2 * (1 - 0.6 * 0.6).
    """
    x = torch.tensor([[0.6], [0.9], [0.4]], dtype=torch.float64, requires_grad=True)
    spikes = run(x, Neuron(detach_reset=detach))
    assert spikes.flatten().tolist() == [0.0, 1.0, 0.0]
    (spikes.flatten() * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert x.grad.flatten().tolist() == pytest.approx(gradient, rel=1e-12)


@pytest.mark.parametrize("neuron", [Neuron(), Neuron(decay=0.25, threshold=0.5), Neuron(decay=1.0, threshold=2.0)])
def test_spikes_match_a_scalar_loop(neuron: Neuron) -> None:
    x = currents(8, 25)
    expected = []
    for series in x.T.tolist():
        v, train = 0.0, []
        for current in series:
            u = neuron.decay * v + current
            train.append(float(u >= neuron.threshold))
            v = 0.0 if u >= neuron.threshold else u
        expected.append(train)
    assert {0.0, 1.0} == {s for train in expected for s in train}
    assert lif(x, neuron).T.tolist() == expected


def test_membrane_at_the_threshold_spikes() -> None:
    assert lif(torch.tensor([[1.0, 0.999999]]), Neuron()).tolist() == [[1.0, 0.0]]


@pytest.mark.parametrize("name", SURROGATES)
@pytest.mark.parametrize("detach", [False, True])
@pytest.mark.parametrize("steps", [1, 2, 4, 8])
@pytest.mark.parametrize("layout", ["flat", "contiguous", "channels_last", "expanded", "expanded channels_last"])
def test_lif_matches_the_reference(name: str, detach: bool, steps: int, layout: str) -> None:
    neuron = Neuron(surrogate=name, sharpness=SHARPNESS[name], detach_reset=detach)
    shape = (2, 3) if layout == "flat" else (2, 3, 4, 5)
    leaf = currents(*shape) if "expanded" in layout else currents(steps, *shape)
    if "channels_last" in layout:
        folded = leaf if "expanded" in layout else leaf.flatten(0, 1)
        leaf = folded.contiguous(memory_format=torch.channels_last).view_as(leaf)
    weight = currents(steps, *shape, seed=1)
    results = []
    for run in (lif, lif_reference):
        x = leaf.clone(memory_format=torch.preserve_format).requires_grad_()
        spikes = run(x.expand(steps, *shape) if "expanded" in layout else x, neuron)
        (spikes * weight).sum().backward()
        results.append((spikes.detach(), x.grad))
    (spikes, grad), (expected_spikes, expected_grad) = results
    assert torch.equal(spikes, expected_spikes)
    assert grad.abs().max() > 0
    torch.testing.assert_close(grad, expected_grad, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("start", [False, True])
def test_memory_format_is_kept(start: bool) -> None:
    """Losing it would slow down every convolution that follows."""
    act, steps = Spiking(3, Neuron()), 3
    for layout in (torch.contiguous_format, torch.channels_last):
        x = currents(2 if start else 2 * steps, 3, 4, 5).contiguous(memory_format=layout).requires_grad_()
        out = act.read(nn.Identity(), nn.Identity(), x) if start else act(x)
        assert out.shape == (6, 3, 4, 5)
        assert out.is_contiguous(memory_format=layout)
        out.sum().backward()
        assert x.grad.is_contiguous(memory_format=layout)


def test_order_of_time_in_the_batch() -> None:
    """In [T * B], entry t * B + b is step t of example b."""
    x = torch.tensor([0.6, 2.0, 0.6, 0.0, 0.6, 0.0])  # three steps of two examples
    assert Spiking(3, Neuron())(x.view(6, 1)).flatten().tolist() == [0, 1, 0, 0, 1, 0]  # 0.6, 0.9, 1.05


def test_read_repeats_a_static_image() -> None:
    x, act = currents(2, 3), Spiking(4, Neuron())
    assert torch.equal(act.read(nn.Identity(), nn.Identity(), x), act(x.repeat(4, 1)))


def test_continuous_is_relu() -> None:
    x, act = torch.tensor([[-1.0, 2.0]]), Continuous()
    assert act(x).tolist() == act.read(nn.Identity(), nn.Identity(), x).tolist() == [[0.0, 2.0]]
    assert act.steps == 1


def test_neurons_have_no_state() -> None:
    assert not Spiking(4, Neuron()).state_dict()
