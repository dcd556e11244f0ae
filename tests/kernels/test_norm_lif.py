"""Fused batch norm (+ residual) + LIF against torch's batch norm and ``lif_reference`` in double precision."""

import copy
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from asfedbridge.core.task import Neuron
from asfedbridge.kernels import norm as norms
from asfedbridge.kernels import norm_lif
from asfedbridge.kernels.rows import rows
from asfedbridge.models.neuron import lif_reference
from asfedbridge.models.parts import BatchNorm

Threads = Callable[[int], None]
STEPS = 2
# (B, H, W) by channels. Each has several tiles per step, the last one partial.
SHAPES = {1: (3, 33, 32), 3: (3, 20, 20), 16: (3, 9, 8), 20: (3, 8, 8), 130: (3, 3, 3), 1500: (2, 1, 2)}


def make_norm(channels: int, seed: int = 0, **options: Any) -> nn.BatchNorm2d:
    """A batch norm whose parameters and statistics differ from their initial values."""
    generator = torch.Generator().manual_seed(seed)
    norm = nn.BatchNorm2d(channels, **options)
    with torch.no_grad():
        norm.weight.uniform_(0.5, 2, generator=generator)
        norm.bias.uniform_(-0.2, 0.8, generator=generator)
        norm.running_mean.normal_(generator=generator)
        norm.running_var.uniform_(0.5, 2, generator=generator)
    return norm


def composition(
    norm: nn.BatchNorm2d, x: Tensor, residual: Tensor | None, steps: int, neuron: Neuron, shared: bool
) -> tuple[Tensor, Tensor]:
    """Spikes, and the smallest distance of a membrane to the threshold."""
    current = norm(x)
    if shared:
        current = current.repeat(steps, 1, 1, 1)
    if residual is not None:
        current = current + residual
    current = current.unflatten(0, (steps, -1))
    spikes = lif_reference(current, neuron)
    with torch.no_grad():
        v, near = torch.zeros_like(current[0]), torch.inf
        for now, s in zip(current, spikes, strict=True):
            u = now + neuron.decay * v
            near = min(near, (u - neuron.threshold).abs().min().item())
            v = u * (1 - s)
    return spikes.flatten(0, 1), torch.tensor(near)


def check_against_composition(
    norm: nn.BatchNorm2d,
    shape: tuple[int, ...],
    steps: int = STEPS,
    neuron: Neuron | None = None,
    shared: bool = False,
    residual: str = "none",
    mean: float = 0.3,
    gap: float = 1e-5,
    rtol: float = 1e-4,
    layout: torch.memory_format = torch.channels_last,
) -> None:
    """Compares spikes, gradients and running statistics. Inputs are drawn until every membrane is at least ``gap`` from
    the threshold, more than rounding can move it, so both precisions must agree on every spike."""
    neuron = neuron or Neuron()
    folded = (shape[0] * steps, *shape[1:])
    for seed in range(200):
        generator = torch.Generator().manual_seed(seed)
        x = mean + torch.randn(shape if shared else folded, generator=generator)
        r = {
            "none": None,
            "spikes": (torch.rand(folded, generator=generator) < 0.2).float(),
            "real": torch.randn(folded, generator=generator),
        }[residual]
        with torch.no_grad():
            wide = copy.deepcopy(norm).double()
            near = composition(wide, x.double(), None if r is None else r.double(), steps, neuron, shared)[1]
        if near > gap:
            break
    else:
        raise AssertionError("no inputs away from the threshold")
    up = torch.randn(folded, generator=generator)

    wide, narrow = copy.deepcopy(norm).double(), copy.deepcopy(norm)
    x = x.contiguous(memory_format=layout)
    leaves = [t if t is None else t.clone().requires_grad_() for t in (x, r)]
    leaves_wide = [t if t is None else t.double().requires_grad_() for t in (x, r)]
    expected, _ = composition(wide, leaves_wide[0], leaves_wide[1], steps, neuron, shared)
    out = norm_lif.norm_lif(narrow, leaves[0], leaves[1], steps, neuron, shared)
    assert out.dtype == torch.float32
    assert out.shape == folded
    assert torch.equal(out.double(), expected)
    assert 0 < out.mean() < 1

    (out * up).sum().backward()
    (expected * up).sum().backward()
    pairs = [(leaf.grad, other.grad) for leaf, other in zip(leaves, leaves_wide, strict=True) if leaf is not None]
    pairs += [(narrow.weight.grad, wide.weight.grad), (narrow.bias.grad, wide.bias.grad)]
    for grad, right in pairs:
        # The tolerance is relative to the largest term, because sums of terms may cancel.
        assert right.abs().max() > 0
        torch.testing.assert_close(grad.double(), right, rtol=rtol, atol=rtol / 5 * right.abs().max().item())
    torch.testing.assert_close(narrow.running_mean.double(), wide.running_mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(narrow.running_var.double(), wide.running_var, rtol=2e-6, atol=0)
    assert narrow.num_batches_tracked == wide.num_batches_tracked


@pytest.mark.parametrize("channels", SHAPES)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("residual", ["none", "spikes", "real", "shared"])
def test_matches_norm_then_reference(channels: int, training: bool, residual: str, threads: Threads) -> None:
    """``shared``: one current for all steps; its gradient is the sum over the steps."""
    threads(2)
    batch, height, width = SHAPES[channels]
    shared = residual == "shared"
    norm = make_norm(channels).train(training)
    check_against_composition(
        norm,
        (batch, channels, height, width),
        steps=4 if shared else STEPS,
        shared=shared,
        residual="none" if shared else residual,
    )


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("channels", [3, 1500])
@pytest.mark.parametrize("shared", [False, True])
def test_threads_do_not_change_the_result(count: int, channels: int, shared: bool, threads: Threads) -> None:
    threads(count)
    batch, height, width = SHAPES[channels]
    check_against_composition(make_norm(channels), (batch, channels, height, width), shared=shared)


@pytest.mark.parametrize("surrogate", ["triangle", "rectangle", "sigmoid", "atan"])
@pytest.mark.parametrize("detach", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_every_neuron_after_a_norm(surrogate: Any, detach: bool, shared: bool) -> None:
    sharpness = {"triangle": 1.5, "rectangle": 0.5, "sigmoid": 4.0, "atan": 2.0}[surrogate]
    neuron = Neuron(0.75, 0.6, surrogate, sharpness, detach)
    check_against_composition(make_norm(3), (2, 3, 5, 7), steps=4, neuron=neuron, shared=shared)


@pytest.mark.parametrize("steps", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("residual", ["none", "real"])
def test_any_number_of_steps_after_a_norm(steps: int, residual: str) -> None:
    check_against_composition(make_norm(5), (2, 5, 3, 3), steps=steps, residual=residual)


@pytest.mark.parametrize("shape", [(3, 3, 1, 1), (1, 3, 1, 3), (1, 3, 3, 1)])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_few_values_per_channel(shape: tuple[int, ...], layout: torch.memory_format) -> None:
    """With three values, unbiased and biased variance differ by a factor of 1.5."""
    norm = make_norm(3)
    with torch.no_grad():
        norm.bias.copy_(torch.tensor([0.2, 0.5, 0.8]))
    check_against_composition(norm, shape, steps=1, layout=layout, gap=1e-4, rtol=1e-3)


def test_a_large_mean_does_not_cancel() -> None:
    """With mean 1000, a sum of squares in single precision would lose a variance of 1.

    Currents are x * scale + shift, a difference of two numbers of about 1000 * scale, so they are only exact to 1e-4.
    """
    check_against_composition(make_norm(3), (2, 3, 6, 5), mean=1e3, gap=1e-3, rtol=5e-3)


@pytest.mark.parametrize("options", [{"momentum": 0.3}, {"eps": 0.1}, {"momentum": 1.0}])
def test_options_of_a_norm(options: dict[str, float]) -> None:
    check_against_composition(make_norm(3, **options), (2, 3, 6, 5))


def test_models_batch_norm_fits() -> None:
    norm = BatchNorm(3)
    check_against_composition(norm, (2, 3, 6, 5))
    x = torch.zeros(1, 3, 1, 1)
    assert norms.fits(norm, torch.zeros(2, 3, 1, 1))
    assert not norms.fits(norm, x)  # one value per channel has no variance


@pytest.mark.parametrize(
    "norm",
    [
        nn.Identity(),
        nn.GroupNorm(1, 3),
        nn.BatchNorm2d(3, affine=False),
        nn.BatchNorm2d(3, track_running_stats=False),
        nn.BatchNorm2d(3, momentum=None),
        nn.BatchNorm1d(3),
    ],
)
def test_other_norms_do_not_fit(norm: nn.Module) -> None:
    assert not norms.fits(norm, torch.zeros(2, 3, 4, 4))


def test_norms_with_hooks_do_not_fit() -> None:
    norm, x = make_norm(3), torch.randn(2, 3, 4, 4)
    for register in ("forward_pre_hook", "forward_hook", "full_backward_pre_hook", "full_backward_hook"):
        handle = getattr(norm, f"register_{register}")(lambda *_: None)
        assert not norms.fits(norm, x), register
        handle.remove()
        assert norms.fits(norm, x)


@pytest.mark.parametrize("channels", [1, 3, 16, 1500])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("threads_used", [1, 3])
def test_constants_match_numpy(channels: int, training: bool, threads_used: int) -> None:
    """The compiled arithmetic on channels has the bits of the same arithmetic as numpy operations."""
    generator, norm = np.random.default_rng(0), make_norm(channels)
    tile, count = norms.lif.tile_of(channels), 50
    weight, bias = norm.weight.detach().numpy(), norm.bias.detach().numpy()
    sums = generator.normal(size=(threads_used, 2, channels)) + 100.0
    tiles, known = np.empty((4, tile), np.float32), np.empty((2, channels))
    if training:
        centre, observed = generator.normal(size=tile).astype(np.float32), np.empty((2, channels), np.float32)
        norms._of_batch(sums, centre, count, norm.eps, weight, bias, tiles, known, observed)
        first, second = sums.sum(axis=0) / count
        variance = np.maximum(second - first**2, 0)
        mean, inverse = first + centre[:channels], 1 / np.sqrt(variance + norm.eps)
        unbiased = variance * count / (count - 1)
        assert np.array_equal(observed, np.stack([mean, unbiased]).astype(np.float32))
    else:
        norms._of_run(norm.running_mean.numpy(), norm.running_var.numpy(), norm.eps, weight, bias, tiles, known)
        mean = norm.running_mean.numpy().astype(np.float64)
        inverse = 1 / np.sqrt(norm.running_var.numpy().astype(np.float64) + norm.eps)
    scale = weight * inverse
    assert np.array_equal(known, [mean, inverse])
    assert np.array_equal(tiles, [norms.lif.repeat(v, tile) for v in (scale, bias - mean * scale, mean, inverse)])

    found, d_weight, d_bias = norms.gradient(norms.Constants(tiles, known, training), norm.weight, sums, count)
    total = sums.sum(axis=0)
    per_value = total / count if training else np.zeros_like(total)
    b = -scale * inverse * per_value[1]
    c = -scale * per_value[0] - b * mean
    assert np.array_equal(found, [norms.lif.repeat(v, tile) for v in (scale, b, c)])
    assert np.array_equal(d_bias.numpy(), total[0].astype(np.float32))
    assert np.array_equal(d_weight.numpy(), total[1].astype(np.float32))


@pytest.mark.parametrize("channels", [3, 16, 130])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("residual", "shared"), [(False, False), (True, False), (False, True)])
def test_spikes_are_bit_identical_for_the_same_currents(
    channels: int, training: bool, residual: bool, shared: bool
) -> None:
    """With the same scale and shift and each operation rounded separately, no input needs to be excluded."""
    steps, (batch, height, width) = 4, SHAPES[channels]
    neuron, norm = Neuron(decay=0.9, threshold=0.7), make_norm(channels).train(training)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(batch if shared else steps * batch, channels, height, width, generator=generator)
    r = torch.randn(steps * batch, channels, height, width, generator=generator) if residual else None
    twin = copy.deepcopy(norm)
    out = norm_lif.norm_lif(norm, x, r, steps, neuron, shared)
    tile = norm_lif.kernels.tile_of(channels)
    x_rows = rows(x, 1 if shared else steps, True)
    mean, inverse = norms.prepare(twin, twin.weight, twin.bias, x_rows, channels, tile).statistics
    if training:
        axes = (0, 2, 3)
        torch.testing.assert_close(torch.from_numpy(mean), x.double().mean(axes), rtol=1e-6, atol=1e-7)
        spread = (x.double().var(axes, correction=0) + norm.eps).rsqrt()
        torch.testing.assert_close(torch.from_numpy(inverse), spread, rtol=1e-6, atol=0)
    scale = norm.weight.detach().double() * torch.from_numpy(inverse)
    shift = norm.bias.detach().double() - torch.from_numpy(mean) * scale
    current = x * scale.float().view(1, -1, 1, 1) + shift.float().view(1, -1, 1, 1)
    current = current.repeat(steps, 1, 1, 1) if shared else current
    current = current if r is None else current + r
    assert torch.equal(out, lif_reference(current.unflatten(0, (steps, -1)), neuron).flatten(0, 1))


def test_each_operation_is_rounded_on_its_own() -> None:
    """The residual brings the current to the threshold, up to rounding; a fused multiply-add would change spikes."""
    norm = make_norm(16).eval()
    x = torch.randn(8, 16, 12, 12, generator=torch.Generator().manual_seed(4))
    scale = norm.weight.detach().double() * (norm.running_var.double() + norm.eps).rsqrt()
    shift = norm.bias.detach().double() - norm.running_mean.double() * scale
    a, b = (v.float().view(1, -1, 1, 1) for v in (scale, shift))
    current = x * a + b
    residual = 1 - current
    once = (x.double() * a + b).float() + residual
    expected = (current + residual >= 1).float()
    assert (expected != (once >= 1)).sum() > 20  # spikes that rounding once would change
    assert torch.equal(norm_lif.norm_lif(norm, x, residual, 1, Neuron()), expected)


@pytest.mark.parametrize("channels", [20, 1500])
@pytest.mark.parametrize("shared", [False, True])
def test_sums_over_many_tiles(channels: int, shared: bool, threads: Threads) -> None:
    """Bias and weight gradients, computed again from the gradient of the input. The norm is in evaluation mode, so the
    input gradient is the currents' gradient times a constant per channel."""
    threads(2)
    batch, size, steps = (40, 2, 2) if channels == 1500 else (24, 17, 1 if shared else 2)
    norm, neuron = make_norm(channels).eval(), Neuron(surrogate="sigmoid", sharpness=4.0)
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(batch if shared else steps * batch, channels, size, size, generator=generator).requires_grad_()
    up = 0.1 + torch.randn(steps * batch, channels, size, size, generator=generator)
    (norm_lif.norm_lif(norm, x, None, steps, neuron, shared) * up).sum().backward()
    inverse = (norm.running_var.double() + norm.eps).rsqrt()
    d = x.grad.double() / (norm.weight.detach().double() * inverse).view(1, -1, 1, 1)
    xhat = (x.detach().double() - norm.running_mean.double().view(1, -1, 1, 1)) * inverse.view(1, -1, 1, 1)
    for grad, right in ((norm.bias.grad, d.sum((0, 2, 3))), (norm.weight.grad, (d * xhat).sum((0, 2, 3)))):
        torch.testing.assert_close(grad.double(), right, rtol=1e-5, atol=1e-5 * right.abs().max().item())


@pytest.mark.parametrize("shared", [False, True])
def test_any_layout_of_inputs_and_gradients(shared: bool) -> None:
    """Slices, transposed and expanded tensors give the same result as contiguous copies."""
    norm, steps = make_norm(4).train(), 2
    generator = torch.Generator().manual_seed(3)
    base = torch.randn(3 if shared else 6, 8, 5, 7, generator=generator)
    r = torch.randn(6, 7, 5, 4, generator=generator)
    up = torch.randn(6, 4, 7, 5, generator=generator)
    results = []
    for plain in (True, False):
        leaf = base.clone().requires_grad_()
        x = leaf[:, ::2].transpose(2, 3)
        residual = None if shared else r.transpose(1, 3).transpose(2, 3)
        gradient = up
        if plain:
            x = x.contiguous()
            residual = residual if residual is None else residual.contiguous()
        else:
            gradient = torch.stack([up, up], -1)[..., 0]
            assert not gradient.is_contiguous()
        out = norm_lif.norm_lif(copy.deepcopy(norm), x, residual, steps, Neuron(), shared)
        out.backward(gradient)
        results.append((out.detach(), leaf.grad))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    leaf = base.clone().requires_grad_()
    out = norm_lif.norm_lif(norm, leaf[:, ::2], None, steps, Neuron(), shared)
    (one,) = torch.autograd.grad(out.sum(), leaf, retain_graph=True)
    (other,) = torch.autograd.grad(out, leaf, torch.ones_like(out))
    assert torch.equal(one, other)


def test_channels_last_is_kept() -> None:
    norm = make_norm(4)
    x = torch.randn(4, 4, 5, 7).contiguous(memory_format=torch.channels_last).requires_grad_()
    r = torch.randn(4, 4, 5, 7).contiguous(memory_format=torch.channels_last).requires_grad_()
    out = norm_lif.norm_lif(norm, x, r, 2, Neuron())
    out.backward(torch.randn(4, 4, 5, 7))
    assert all(t.is_contiguous(memory_format=torch.channels_last) for t in (out, x.grad, r.grad))


def test_only_some_gradients_are_required() -> None:
    """Frozen norm, input that requires no gradient, no gradient at all."""
    norm, x, up = make_norm(3), torch.randn(4, 3, 5, 5), torch.randn(4, 3, 5, 5)
    everything = x.clone().requires_grad_()
    twin = copy.deepcopy(norm)
    norm_lif.norm_lif(twin, everything, None, 2, Neuron()).backward(up)
    frozen, leaf = copy.deepcopy(norm).requires_grad_(False), x.clone().requires_grad_()
    norm_lif.norm_lif(frozen, leaf, None, 2, Neuron()).backward(up)
    assert torch.equal(leaf.grad, everything.grad)
    norm_lif.norm_lif(norm, x, None, 2, Neuron()).backward(up)
    assert torch.equal(norm.weight.grad, twin.weight.grad)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            out = norm_lif.norm_lif(copy.deepcopy(norm).eval(), x, None, 2, Neuron())
        assert not out.requires_grad


def test_default_dtype_is_ignored() -> None:
    norm, x = make_norm(3), torch.randn(4, 3, 5, 5)
    expected = norm_lif.norm_lif(copy.deepcopy(norm), x, None, 2, Neuron())
    torch.set_default_dtype(torch.float64)
    try:
        out = norm_lif.norm_lif(norm, x, None, 2, Neuron())
    finally:
        torch.set_default_dtype(torch.float32)
    assert out.dtype == torch.float32
    assert torch.equal(out, expected)


def test_second_backward_pass_but_no_second_derivative() -> None:
    """The surrogate's derivative is not implemented, so a second derivative would be wrong; it raises instead."""
    norm, x = make_norm(3), torch.randn(4, 3, 5, 5, requires_grad=True)
    out = norm_lif.norm_lif(norm, x, None, 2, Neuron())
    first = torch.autograd.grad(out.sum(), (x, norm.weight), retain_graph=True)
    again = torch.autograd.grad(out.sum(), (x, norm.weight), retain_graph=True)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    (grad,) = torch.autograd.grad((out**2).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


REPEAT = """
import hashlib, sys, torch
from torch import nn
from asfedbridge.core.task import Neuron
from asfedbridge.kernels import openmp
from asfedbridge.kernels import sparse_conv
from asfedbridge.kernels import norm_lif

openmp.MIN_PARALLEL_SIZE = 1
torch.set_num_threads(int(sys.argv[1]) if len(sys.argv) > 1 else 1)

def digest():
    g = torch.Generator().manual_seed(5)
    norm, conv = nn.BatchNorm2d(48), nn.Conv2d(32, 48, 3, padding=1, bias=False)
    with torch.no_grad():
        conv.weight.normal_(generator=g)
    spikes = (torch.rand(8, 32, 9, 9, generator=g) < 0.1).float().requires_grad_()
    up = torch.randn(8, 48, 9, 9, generator=g)
    out = norm_lif.norm_lif(norm, sparse_conv.convolve(conv, spikes), None, 4, Neuron())
    out.backward(up)
    parts = out, spikes.grad, conv.weight.grad, norm.weight.grad, norm.bias.grad, norm.running_mean, norm.running_var
    return hashlib.sha256(b"".join(p.detach().contiguous().numpy().tobytes() for p in parts)).hexdigest()
"""


@pytest.mark.parametrize("count", [1, 2])
def test_results_are_bit_identical(count: int, threads: Threads) -> None:
    """In repeated calls and, with one thread, in another process."""
    space: dict[str, Any] = {}
    exec(REPEAT.split("openmp.MIN_PARALLEL_SIZE")[0] + "def digest" + REPEAT.split("def digest")[1], space)
    threads(count)
    here = [space["digest"]() for _ in range(3)]
    assert len(set(here)) == 1
    if count == 1:
        code = REPEAT + "print(digest())"
        there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
        assert there.stdout.strip() == here[0]
