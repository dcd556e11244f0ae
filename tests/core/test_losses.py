import math

import pytest
import torch
from torch import Tensor

from asfedbridge.core import losses


def logits(*shape: int, seed: int = 0) -> Tensor:
    return 2 * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def softmax(row: Tensor, temperature: float = 1.0) -> list[float]:
    powers = [math.exp(z / temperature) for z in row.tolist()]
    return [p / sum(powers) for p in powers]


def mean_cross_entropy(z_BC: Tensor, y_B: Tensor) -> float:
    return -sum(math.log(softmax(row)[int(y)]) for row, y in zip(z_BC, y_B, strict=True)) / len(y_B)


def test_cross_entropy_is_the_mean_over_the_batch() -> None:
    z, y = logits(5, 3), torch.tensor([0, 1, 2, 2, 1])
    assert losses.cross_entropy(z, y).item() == pytest.approx(mean_cross_entropy(z, y), rel=1e-12)


@pytest.mark.parametrize("temperature", [1.0, 2.0, 4.0])
def test_distillation_is_the_scaled_divergence_from_the_teacher(temperature: float) -> None:
    student, teacher = logits(4, 5, seed=1), logits(4, 5, seed=2)
    divergence = sum(
        p * math.log(p / q)
        for s, t in zip(student, teacher, strict=True)
        for p, q in zip(softmax(t, temperature), softmax(s, temperature), strict=True)
    )
    expected = temperature**2 * divergence / 4
    assert losses.distillation(student, teacher, temperature).item() == pytest.approx(expected, rel=1e-12)


def test_distillation_has_no_gradient_for_the_teacher() -> None:
    student, teacher = logits(4, 5, seed=1).requires_grad_(), logits(4, 5, seed=2).requires_grad_()
    losses.distillation(student, teacher, 2.0).backward()
    assert teacher.grad is None
    # d/dz tau^2 KL / B = tau (q - p) / B
    for s, t, grad in zip(student.detach(), teacher.detach(), student.grad, strict=True):
        expected = [2.0 * (q - p) / 4 for q, p in zip(softmax(s, 2.0), softmax(t, 2.0), strict=True)]
        assert grad.tolist() == pytest.approx(expected, rel=1e-9)


def test_distillation_between_equal_predictions_is_zero() -> None:
    student = logits(4, 5).requires_grad_()
    loss = losses.distillation(student, student.detach().clone() + 3.0, 2.0)  # softmax ignores a common shift
    loss.backward()
    assert loss.item() == pytest.approx(0.0, abs=1e-12)
    assert student.grad.abs().max().item() < 1e-12


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("weight", [0.0, 0.05, 1.0])
def test_tet_supervises_every_step(steps: int, weight: float) -> None:
    z, y = logits(steps, 4, 3), torch.tensor([2, 0, 1, 1])
    each = [
        (1 - weight) * mean_cross_entropy(z_BC, y)
        + weight * sum((value - 1.0) ** 2 for row in z_BC.tolist() for value in row) / 12
        for z_BC in z
    ]
    assert losses.tet(z, y, weight).item() == pytest.approx(sum(each) / steps, rel=1e-12)


def test_noise_is_scaled_by_the_unbiased_deviation_over_classes() -> None:
    z = torch.tensor([[1.0, 2.0, 3.0, 6.0], [0.0, 0.0, 0.0, 2.0]], dtype=torch.float64)
    noise = torch.tensor([[1.0, -1.0, 0.5, 2.0], [3.0, 0.0, -2.0, 1.0]], dtype=torch.float64)
    deviation = torch.tensor([[math.sqrt(14 / 3)], [1.0]], dtype=torch.float64)  # squares 4+1+0+9 and 3/4+9/4 over 3
    torch.testing.assert_close(losses.smooth_with_noise(z, 0.08, noise), z + 0.08 * deviation * noise)


def test_no_gradient_passes_through_the_noise_scale() -> None:
    z = logits(3, 4).requires_grad_()
    losses.smooth_with_noise(z, 5.0, logits(3, 4, seed=9)).sum().backward()
    assert torch.equal(z.grad, torch.ones_like(z))


def test_noise_of_strength_zero_changes_nothing() -> None:
    z = logits(3, 4)
    assert torch.equal(losses.smooth_with_noise(z, 0.0, logits(3, 4, seed=9)), z)


def test_squared_distance_sums_over_all_tensors() -> None:
    w = [torch.tensor([1.0, -2.0], requires_grad=True), torch.tensor([[3.0]], requires_grad=True)]
    anchor = [torch.tensor([0.0, 1.0]), torch.tensor([[-1.0]])]
    distance = losses.squared_distance(w, anchor)
    distance.backward()
    assert distance.item() == 1 + 9 + 16
    assert [t.grad.tolist() for t in w] == [[2.0, -6.0], [[8.0]]]


def test_squared_distance_needs_an_anchor_for_every_tensor() -> None:
    with pytest.raises(ValueError, match="shorter"):
        losses.squared_distance([torch.zeros(1), torch.zeros(1)], [torch.zeros(1)])


def test_losses_convert_half_precision_to_float32() -> None:
    """Losses of logits from autocast are computed in float32."""
    half, y = logits(5, 3).bfloat16(), torch.tensor([0, 1, 2, 2, 1])
    wide = half.float()
    assert torch.equal(losses.cross_entropy(half, y), losses.cross_entropy(wide, y))
    assert torch.equal(losses.tet(half[None], y, 0.1), losses.tet(wide[None], y, 0.1))
    assert torch.equal(losses.distillation(half, half.flip(0), 2.0), losses.distillation(wide, wide.flip(0), 2.0))
    assert losses.cross_entropy(half, y).dtype == torch.float32
