from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from asfedbridge.core import responses
from asfedbridge.core.payload import Payload


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_a_step_by_hand() -> None:
    """(t - g) x = 2 * 2: the gradient of its square is -2 * 4 * 2 = -16, so rate 0.1 moves the weight from 1 to 2.6."""
    layer, teacher = {"weight": torch.tensor([[1.0]])}, {"weight": torch.tensor([[3.0]])}
    assert responses.align(layer, teacher, [torch.tensor([[2.0]])], 0.1, False)["weight"].item() == pytest.approx(2.6)
    rows = [torch.tensor([[2.0], [0.0]])]  # the mean over two inputs, one of them zero
    assert responses.align(layer, teacher, rows, 0.1, False)["weight"].item() == pytest.approx(1.8)
    two = {"weight": torch.tensor([[1.0], [1.0]])}, {"weight": torch.tensor([[3.0], [3.0]])}
    assert responses.align(*two, rows, 0.1, False)["weight"].flatten().tolist() == pytest.approx([1.8, 1.8])
    assert responses.align(*two, rows, 0.1, True)["weight"].flatten().tolist() == pytest.approx([1.4, 1.4])
    assert layer["weight"].item() == 1.0
    assert teacher["weight"].item() == 3.0


def test_a_step_with_a_bias_by_hand() -> None:
    """Response 2 * 2 + 1 = 5: the weight's gradient is -2 * 5 * 2, the bias's -2 * 5."""
    layer = {"weight": torch.tensor([[1.0]]), "bias": torch.tensor([0.0])}
    teacher = {"weight": torch.tensor([[3.0]]), "bias": torch.tensor([1.0])}
    out = responses.align(layer, teacher, [torch.tensor([[2.0]])], 0.1, False)
    assert {part: t.item() for part, t in out.items()} == pytest.approx({"weight": 3.0, "bias": 1.0})


def answer(layer: dict[str, Tensor], images: Tensor) -> Tensor:
    return (F.conv2d if images.dim() == 4 else F.linear)(images, layer["weight"], layer.get("bias"))


@pytest.mark.parametrize("per_output", [False, True])
@pytest.mark.parametrize("positions", [1, 2])
@pytest.mark.parametrize("shape", [(5, 3, 3, 3), (5, 4, 1, 1), (6, 3, 3, 1), (5, 7)])
@pytest.mark.parametrize("biased", [False, True])
def test_steps_match_autograd(shape: tuple[int, ...], positions: int, per_output: bool, biased: bool) -> None:
    """Autograd minimises the squared response difference, averaged over three teachers, by real convolutions."""
    parts = {"weight": shape, "bias": shape[:1]} if biased else {"weight": shape}
    layer, *teachers = ({part: normal(*size, seed=i) for part, size in parts.items()} for i in range(4))
    mean = {part: sum(t[part] for t in teachers) / 3 for part in parts}

    def rows(seed: int) -> Iterator[Tensor]:
        draws = torch.Generator().manual_seed(seed)
        return (responses.noise_rows(layer["weight"], 6, positions, draws) for _ in range(3))

    out = responses.align(layer, mean, rows(9), 0.02, per_output)
    expected = {part: t.clone().requires_grad_() for part, t in layer.items()}
    draws = torch.Generator().manual_seed(9)
    optimiser = torch.optim.SGD(expected.values(), lr=0.02)
    for _ in range(3):
        images = torch.randn(6, shape[1], *(k + positions - 1 for k in shape[2:]), generator=draws)
        differences = [(answer(t, images) - answer(expected, images)).square() for t in teachers]
        loss = sum(d.mean() if per_output else d.sum(dim=1).mean() for d in differences) / 3
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert out.keys() == expected.keys()
    for part, t in out.items():
        assert (t - layer[part]).abs().max() > 1e-3
        torch.testing.assert_close(t, expected[part].detach(), rtol=1e-4, atol=1e-5)


def distance(out: Payload, to: Payload) -> float:
    return (out["weight"] - to["weight"]).norm().item()


def test_a_step_reduces_the_distance_by_twice_the_rate_on_average() -> None:
    layer, teacher = {"weight": torch.zeros(4, 3, 3, 3)}, {"weight": torch.ones(4, 3, 3, 3)}
    rows = responses.noise_rows(layer["weight"], 20_000, 1, torch.Generator().manual_seed(0))
    assert rows.shape == (20_000, 27)
    out = responses.align(layer, teacher, [rows], 0.1, False)["weight"]
    torch.testing.assert_close(out, torch.full_like(out, 0.2), rtol=0, atol=0.05)
    assert out.mean().item() == pytest.approx(0.2, abs=0.005)


@pytest.mark.parametrize(("share", "nearer"), [(0.7, True), (1.4, False)])
@pytest.mark.parametrize("per_output", [False, True])
def test_align_converges_below_the_largest_rate(share: float, nearer: bool, per_output: bool) -> None:
    layer, teacher = ({"weight": normal(8, 100, seed=i)} for i in (1, 2))
    rate = share * responses.largest_rate((8, 100), 10, per_output)
    draws = torch.Generator().manual_seed(0)
    rows = (responses.noise_rows(layer["weight"], 10, 1, draws) for _ in range(100))
    out = responses.align(layer, teacher, rows, rate, per_output)
    assert (distance(out, teacher) < 0.5 * distance(layer, teacher)) == nearer
    assert (distance(out, teacher) > 2 * distance(layer, teacher)) != nearer


def test_the_largest_rate_by_hand() -> None:
    assert responses.largest_rate((512, 512, 3, 3), 64, False) == pytest.approx(1 / (1 + 4609 / 64))
    assert responses.largest_rate((512, 512, 3, 3), 64, True) == pytest.approx(512 / (1 + 4609 / 64))
    assert responses.largest_rate((10, 3), 4, False) == 0.5
