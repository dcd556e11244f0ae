"""Low-bit convolutions: values, gradients, and tensors shared with the ANN twin."""

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asfedbridge.core.losses import cross_entropy
from asfedbridge.core.task import ClientInfo, Kind, Task
from asfedbridge.core.training import Bounded
from asfedbridge.models.lowbit import (
    MIN_STEP,
    BinaryConv,
    Lsq,
    _DorefaInput,
    _DorefaWeight,
    _Lsq,
    _ScaledSign,
    _Sign,
    is_step,
    lower_bits,
)
from asfedbridge.models.registry import MODELS
from asfedbridge.models.zoo import build_backbone, outline_backbone

Images = Callable[..., Tensor]
LOW_BIT = [("bnn", 1, "lsq")] + [("qnn", bits, rule) for bits in (2, 3, 8) for rule in ("lsq", "dorefa")]
NAMES = sorted(name for name, model in MODELS.items() if model.family)


def low(kind: Kind, bits: int = 32, model: str = "resnet18", width: float = 0.125) -> ClientInfo:
    return ClientInfo(0, kind, model, width, bits=bits)


def draw(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gradients(function: Callable[..., Tensor], *inputs: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
    """The output, a random gradient of it, and the resulting gradients of the inputs."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    out = function(*leaves)
    up = draw(*out.shape, seed=9)
    out.backward(up)
    return out.detach(), up, [leaf.grad for leaf in leaves if leaf.grad is not None]


def difference(function: Callable[[Tensor], Tensor], x: Tensor, up: Tensor, eps: float = 1e-6) -> Tensor:
    """The gradient of sum(up * function(x)) by central differences."""
    grad = torch.zeros_like(x)
    for i in range(x.numel()):
        ends = []
        for sign in (1, -1):
            moved = x.clone()
            moved.view(-1)[i] += sign * eps
            ends.append((up * function(moved)).sum())
        grad.view(-1)[i] = (ends[0] - ends[1]) / (2 * eps)
    return grad


# quantisers


def test_sign_of_zero_is_positive() -> None:
    x = torch.tensor([-2.0, -1e-30, -0.0, 0.0, 1e-30, 2.0])
    assert _Sign.apply(x).tolist() == [-1, -1, 1, 1, 1, 1]
    assert _ScaledSign.apply(torch.zeros(1, 1, 1, 1)).tolist() == [[[[0.0]]]]


def test_sign_passes_gradients_in_minus_one_to_one() -> None:
    x = torch.tensor([-1.5, -1.0000002, -1.0, -0.5, 0.0, 1.0, 1.0000002, 3.0], requires_grad=True)
    up = torch.arange(1.0, 9.0)
    _Sign.apply(x).backward(up)
    assert x.grad is not None
    assert x.grad.tolist() == [0, 0, 3, 4, 5, 6, 0, 0]


def test_binary_weight_is_sign_times_channel_mean() -> None:
    weight = draw(3, 2, 3, 3)
    out, up, (grad,) = gradients(_ScaledSign.apply, weight)
    for o in range(3):
        alpha = weight[o].abs().sum() / 18
        torch.testing.assert_close(out[o], torch.where(weight[o] >= 0, alpha, -alpha))
    torch.testing.assert_close(grad, torch.where(weight.abs() <= 1, up, 0.0))
    assert (grad == 0).any()


@pytest.mark.parametrize(("low_end", "high_end"), [(0, 3), (0, 15), (-2, 1), (-8, 7), (-128, 127)])
def test_lsq_matches_its_formula(low_end: int, high_end: int) -> None:
    """Values, and the gradients of value and step as defined by Esser et al."""
    v, s, factor = draw(3, 4, 5, 5), torch.tensor(1.5 / high_end, dtype=torch.float64), 0.25
    out, up, (grad_v, grad_s) = gradients(lambda a, b: _Lsq.apply(a, b, low_end, high_end, factor), v, s)
    ratio = v / s
    torch.testing.assert_close(out, s * ratio.clamp(low_end, high_end).round())
    inside = (ratio > low_end) & (ratio < high_end)
    torch.testing.assert_close(grad_v, torch.where(inside, up, 0.0))
    ends = torch.where(ratio <= low_end, float(low_end), float(high_end)).double()
    slope = torch.where(inside, ratio.round() - ratio, ends)
    torch.testing.assert_close(grad_s, factor * (up * slope).sum())
    assert 0 < inside.sum() < v.numel()


def test_lsq_outside_its_range_is_linear_in_the_step() -> None:
    """Nothing is rounded there, so the gradient of the step must match finite differences."""
    v, s = torch.tensor([[-9.0], [9.0], [50.0]], dtype=torch.float64), torch.tensor(0.5, dtype=torch.float64)
    _, up, (grad_v, grad_s) = gradients(lambda a, b: _Lsq.apply(a, b, -8, 7, 1.0), v, s)
    assert grad_v.tolist() == [[0.0], [0.0], [0.0]]
    torch.testing.assert_close(grad_s, difference(lambda step: (v / step).clamp(-8, 7).round() * step, s, up))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_lsq_is_independent_of_the_layout(layout: torch.memory_format) -> None:
    v, s = draw(2, 3, 4, 5), torch.tensor(0.3, dtype=torch.float64)
    plain = gradients(lambda a, b: _Lsq.apply(a, b, 0, 7, 1.0), v, s)
    other = gradients(lambda a, b: _Lsq.apply(a.contiguous(memory_format=layout), b, 0, 7, 1.0), v, s)
    torch.testing.assert_close(plain, other)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_dorefa_matches_its_formula(bits: int) -> None:
    levels = 2**bits - 1
    weight = draw(3, 2, 3, 3)
    largest = weight.tanh().abs().max()

    def continuous(w: Tensor) -> Tensor:
        """The formula without rounding, with the maximum as a constant."""
        return 2 * (w.tanh() / (2 * largest) + 0.5) - 1

    out, up, (grad,) = gradients(lambda w: _DorefaWeight.apply(w, levels), weight)
    unit = ((continuous(weight) + 1) / 2 * levels).round() / levels
    torch.testing.assert_close(out, 2 * unit - 1)
    torch.testing.assert_close(grad, difference(continuous, weight, up), rtol=1e-6, atol=1e-8)

    x = draw(4, 2, 3, 3)
    out, up, (grad,) = gradients(lambda a: _DorefaInput.apply(a, levels), x)
    torch.testing.assert_close(out, (x.clamp(0, 1) * levels).round() / levels)
    torch.testing.assert_close(grad, difference(lambda a: a.clamp(0, 1), x, up), rtol=1e-6, atol=1e-8)


# step sizes


def test_step_size_is_set_by_the_first_training_batch() -> None:
    quantiser = Lsq(0, 15)
    quantiser.reset_parameters()
    first, second = draw(4, 2, 3, 3).float().abs(), draw(4, 2, 3, 3, seed=1, scale=5.0).float().abs()
    expected = 2 * first.mean().item() / math.sqrt(15)
    quantiser.eval()
    shown = quantiser(first, 18)
    assert quantiser.step_size.item() == 0  # evaluation does not set it
    quantiser.train()
    torch.testing.assert_close(quantiser(first, 18), shown)
    assert quantiser.step_size.item() == pytest.approx(expected, rel=1e-6)
    quantiser(second, 18)
    assert quantiser.step_size.item() == pytest.approx(expected, rel=1e-6)


def test_step_size_stays_positive() -> None:
    quantiser = Lsq(0, 3)
    quantiser.reset_parameters()
    out = quantiser(torch.zeros(2, 1, 2, 2), 4)  # the measured step size is 0
    assert quantiser.step_size.item() == pytest.approx(MIN_STEP)
    assert torch.equal(out, torch.zeros(2, 1, 2, 2))
    with torch.no_grad():
        quantiser.step_size.fill_(-0.5)
        quantiser.bound()
    assert quantiser.step_size.item() == pytest.approx(MIN_STEP)


def test_gradient_scale_of_a_step_size(task: Task, images: Images) -> None:
    """1 / sqrt(N Q), where N is the number of weights of a layer or of inputs per image."""
    model = build_backbone(task, low("qnn", 4)).train()
    conv: Any = model.stages[0][0].conv1
    factors: list[tuple[int, int]] = []
    for quantiser in (conv.of_weight, conv.of_input):
        quantiser.register_forward_hook(lambda layer, inputs, _: factors.append((inputs[1], layer.high)))
    model(images(2))
    assert factors == [(8 * 8 * 9, 7), (8 * 8 * 8, 15)]


# whole networks


@pytest.mark.parametrize(("kind", "bits", "rule"), LOW_BIT)
@pytest.mark.parametrize("name", NAMES)
def test_number_of_distinct_values(
    task: Task, images: Images, monkeypatch: pytest.MonkeyPatch, name: str, kind: Kind, bits: int, rule: str
) -> None:
    model = build_backbone(replace(task, quantiser=rule), low(kind, bits, name)).train()
    seen: list[tuple[Tensor, Tensor]] = []
    original = nn.Conv2d._conv_forward

    def watched(self: nn.Conv2d, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if self is not model.stem:
            seen.append((x.detach(), weight.detach()))
        return original(self, x, weight, bias)

    monkeypatch.setattr(nn.Conv2d, "_conv_forward", watched)
    model(images(4, size=32))
    assert len(seen) == sum(isinstance(m, nn.Conv2d) for m in model.modules()) - 1
    for x, weight in seen:
        if kind == "bnn":
            assert set(x.unique().tolist()) == {-1.0, 1.0}  # both; after a ReLU there would be only +1
            assert all(len(channel.abs().unique()) == 1 for channel in weight)
        else:
            assert 2 <= len(x.unique()) <= 2**bits
            assert 2 <= len(weight.unique()) <= 2**bits
    if kind == "qnn" and bits == 2:
        assert max(len(x.unique()) for x, _ in seen) == max(len(w.unique()) for _, w in seen) == 4


@pytest.mark.parametrize(("kind", "bits", "rule"), [("bnn", 1, "lsq"), ("qnn", 4, "lsq"), ("qnn", 4, "dorefa")])
@pytest.mark.parametrize("name", NAMES)
def test_stem_projector_and_classifier_keep_full_precision(
    task: Task, name: str, kind: Kind, bits: int, rule: str
) -> None:
    model = outline_backbone(replace(task, quantiser=rule), low(kind, bits, name))
    plain = {name for name, m in model.named_modules() if type(m) is nn.Conv2d}
    assert plain == {"stem"}
    assert {n for n, m in model.named_modules() if isinstance(m, nn.Linear)} == {"projector", "classifier"}


@pytest.mark.parametrize(("kind", "bits", "rule"), [("bnn", 1, "lsq"), ("qnn", 4, "dorefa"), ("qnn", 4, "lsq")])
def test_ann_and_low_bit_networks_load_each_others_state(
    task: Task, images: Images, kind: Kind, bits: int, rule: str
) -> None:
    """All names match except LSQ's step sizes, two scalars for each low-bit convolution."""
    task = replace(task, quantiser=rule)
    ann, twin = build_backbone(task, low("ann")), build_backbone(task, low(kind, bits))
    extra = [name for name in twin.state_dict() if name not in ann.state_dict()]
    assert extra == [name for name in twin.state_dict() if is_step(name)]
    assert len(extra) == (38 if rule == "lsq" and kind == "qnn" else 0)
    assert all(torch.equal(t, twin.state_dict()[name]) for name, t in ann.state_dict().items())  # equal initial values
    other = build_backbone(replace(task, seed=7), low(kind, bits))
    missing = other.load_state_dict(ann.state_dict(), strict=False)
    assert (missing.missing_keys, missing.unexpected_keys) == (extra, [])
    assert torch.equal(other.train()(images()).logits_TBC, twin.train()(images()).logits_TBC)
    back = build_backbone(replace(task, seed=7), low("ann"))
    back.load_state_dict({n: t for n, t in twin.state_dict().items() if not is_step(n)})


def steps(model: nn.Module, x: Tensor, y: Tensor, count: int, lr: float) -> list[float]:
    """The loss before each of ``count`` steps, and after the last."""
    optimiser = torch.optim.SGD(model.parameters(), lr, momentum=0.9)
    losses = []
    for _ in range(count + 1):
        optimiser.zero_grad()
        loss = cross_entropy(model(x).logits, y)
        loss.backward()
        losses.append(loss.item())
        optimiser.step()
        with torch.no_grad():
            for layer in model.modules():
                if isinstance(layer, Bounded):
                    layer.bound()
    return losses


def patterns(images: Images, size: int) -> tuple[Tensor, Tensor]:
    """Sixteen images of four separable classes."""
    y = torch.arange(16) % 4
    return 0.5 * images(16, size=size) + images(4, size=size, seed=1)[y], y


@pytest.mark.parametrize(("kind", "bits", "rule"), LOW_BIT)
@pytest.mark.parametrize("name", NAMES)
def test_one_step_lowers_the_loss(task: Task, images: Images, name: str, kind: Kind, bits: int, rule: str) -> None:
    """At one of three learning rates: with a straight-through gradient, values that change their level may raise it."""
    first = build_backbone(replace(task, quantiser=rule), low(kind, bits, name)).train()
    pairs = [steps(copy.deepcopy(first), *patterns(images, 32), 1, lr) for lr in (0.02, 0.05, 0.2)]
    assert any(after < before for before, after in pairs), pairs
    steps(first, *patterns(images, 32), 0, 0.02)
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in first.parameters())


@pytest.mark.parametrize(("kind", "bits", "rule"), [("bnn", 1, "lsq"), ("qnn", 2, "lsq"), ("qnn", 4, "dorefa")])
def test_low_bit_networks_learn(task: Task, images: Images, kind: Kind, bits: int, rule: str) -> None:
    """At the ANN's learning rate, which would be too small with XNOR-Net's factor in the weight gradient."""
    model = build_backbone(replace(task, quantiser=rule), low(kind, bits)).train()
    losses = steps(model, *patterns(images, 8), 20, lr=0.02)
    assert losses[-1] < 0.5 * losses[0], losses


def test_stride_dilation_groups_and_bias_are_kept() -> None:
    net = nn.Sequential()
    net.add_module("stem", nn.Conv2d(2, 4, 3))
    net.add_module("deep", nn.Conv2d(4, 8, 3, stride=2, padding=1, dilation=2, groups=4, bias=True))
    lowered = copy.deepcopy(net)
    lower_bits(lowered, Task(2, 2, 8), low("bnn", 1))
    conv: Any = lowered.deep
    assert type(lowered.stem) is nn.Conv2d
    assert isinstance(conv, BinaryConv)
    lowered.load_state_dict(net.state_dict())
    x, weight = draw(2, 4, 8, 8).float(), net.deep.weight
    signs = torch.where(x >= 0, 1.0, -1.0), torch.where(weight >= 0, 1.0, -1.0)
    alpha = weight.abs().mean(dim=(1, 2, 3), keepdim=True)
    expected = F.conv2d(signs[0], signs[1] * alpha, net.deep.bias, 2, 1, 2, 4)
    torch.testing.assert_close(conv(x), expected)


def test_bits_out_of_range_raise_value_error(task: Task) -> None:
    with pytest.raises(ValueError, match="has bits=9; use 2 to 8 bits"):
        build_backbone(task, low("qnn", 9))
