"""Spiking activations as one autograd node: [batch norm, + residual,] LIF over all T steps. Calls the ``lif`` kernels.

The node saves its input and residual and, per channel, the norm's mean and inverse standard deviation. The backward
pass recomputes normalised values, currents and membranes tile by tile. Spikes are saved by the next layer anyway.
"""

from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from asfedbridge.core.task import Neuron
from asfedbridge.kernels import lif as kernels
from asfedbridge.kernels import openmp
from asfedbridge.kernels.lif import Array


def rows(x: Tensor, steps: int, channels_last: bool) -> Array:
    """Views [steps * B, C, ...] as [steps, n]; copies only if the memory layout differs from the requested one."""
    x = x.detach()
    return (x.movedim(1, -1) if channels_last else x).reshape(steps, -1).contiguous().numpy()


def fresh(x: Tensor, count: int, channels_last: bool) -> Tensor:
    """Uninitialised memory for ``count`` images of the shape of ``x``."""
    if channels_last:
        return x.new_empty((count, *x.shape[2:], x.shape[1])).movedim(-1, 1)
    return x.new_empty((count, *x.shape[1:]))


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,  # [T * B, C, ...], or [B, C, ...] for the same input at every step
        residual: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        norm: nn.BatchNorm2d | None,
        steps: int,
        shared: bool,
        neuron: Neuron,
    ) -> Tensor:
        own = 1 if shared else steps
        layout = norm is not None or (x.dim() > 1 and not x.is_contiguous())  # the norm kernels need channels innermost
        x_rows = rows(x, own, layout)
        channels = x.shape[1] if norm is not None else 1
        tile = kernels.tile_of(channels)
        scale = shift = mean = inverse = None
        if norm is not None:
            assert weight is not None
            assert bias is not None
            mean, inverse = _statistics(norm, x_rows, channels, tile)
            a = weight.detach().numpy() * inverse
            scale, shift = (kernels.repeat(v, tile) for v in (a, bias.detach().numpy() - mean * a))
        r_rows = None if residual is None else rows(residual, steps, layout)
        out = fresh(x, len(x) * steps // own, layout)
        s_rows = rows(out, steps, layout)
        constants = np.float32(neuron.decay), np.float32(neuron.threshold)
        length = x_rows.shape[1]
        openmp.spread(
            kernels.forward, length, tile, steps, lambda k: (x_rows, scale, shift, r_rows, s_rows, tile, *constants)
        )
        ctx.save_for_backward(x, residual, weight)
        ctx.norm = None if norm is None else (mean, inverse, scale, shift, norm.training)
        ctx.plan = steps, own, channels, tile, layout, neuron
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        x, residual, weight = ctx.saved_tensors
        steps, own, channels, tile, layout, neuron = ctx.plan
        mean, inverse, scale, shift, training = ctx.norm or (None, None, None, None, False)
        x_rows, g_rows = rows(x, own, layout), rows(grad, steps, layout)
        r_rows = None if residual is None else rows(residual, steps, layout)
        current = fresh(x, len(x), layout)
        d_rows = rows(current, own, layout)
        length = x_rows.shape[1]
        tiles = (None, None) if mean is None else tuple(kernels.repeat(v, tile) for v in (mean, inverse))
        sums = np.zeros((torch.get_num_threads(), 2, channels))
        constants = (
            np.float32(neuron.decay),
            np.float32(neuron.threshold),
            kernels.SURROGATES.index(neuron.surrogate),
            np.float32(neuron.sharpness),
            np.float32(0 if neuron.detach_reset else 1),
        )
        openmp.spread(
            kernels.backward,
            length,
            tile,
            steps,
            lambda k: (x_rows, scale, shift, r_rows, *tiles, g_rows, d_rows, sums[k], tile, *constants),
        )
        if mean is None:
            return current, None, None, None, None, None, None, None
        # With y = w * xhat + b: dL/db = sum d and dL/dw = sum d xhat. In training, mean and std depend on x too:
        # dx = w / std * (d - mean(d) - xhat * mean(d xhat)).
        total = sums.sum(axis=0)
        slope = weight.detach().numpy() * inverse
        per_value = total / (x_rows.size // channels) if training else np.zeros_like(total)
        b = -slope * inverse * per_value[1]
        c = -slope * per_value[0] - b * mean
        out = current if residual is None else fresh(x, len(x), layout)
        out_rows = None if residual is None else rows(out, own, layout)
        a_tile, b_tile, c_tile = (kernels.repeat(v, tile) for v in (slope, b, c))
        openmp.spread(kernels.combine, length, tile, own, lambda k: (d_rows, x_rows, a_tile, b_tile, c_tile, out_rows))
        d_bias, d_weight = (torch.from_numpy(v.astype(np.float32)) for v in total)
        return out, current if residual is not None else None, d_weight, d_bias, None, None, None, None


def _statistics(norm: nn.BatchNorm2d, x_rows: Array, channels: int, tile: int) -> tuple[Any, Any]:
    """Mean and 1 / std per channel in double precision. Updates the running statistics in training mode."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    if not norm.training:
        mean = norm.running_mean.numpy().astype(np.float64)
        return mean, 1 / np.sqrt(norm.running_var.numpy().astype(np.float64) + norm.eps)
    # Subtracting any value near the mean avoids cancellation in the sum of squares.
    centre = kernels.repeat(x_rows[0, :channels], tile)
    sums = np.zeros((torch.get_num_threads(), 2, channels))
    openmp.spread(kernels.moments, x_rows.shape[1], tile, len(x_rows), lambda k: (x_rows, centre, sums[k]))
    count = x_rows.size // channels
    first, second = sums.sum(axis=0) / count
    mean, variance = first + centre[:channels], np.maximum(second - first**2, 0)
    momentum = norm.momentum
    assert momentum is not None
    assert norm.num_batches_tracked is not None
    norm.running_mean.lerp_(torch.from_numpy(mean.astype(np.float32)), momentum)
    norm.running_var.lerp_(torch.from_numpy((variance * count / (count - 1)).astype(np.float32)), momentum)
    norm.num_batches_tracked += 1
    return mean, 1 / np.sqrt(variance + norm.eps)


def lif(x: Tensor, steps: int, neuron: Neuron) -> Tensor:
    """LIF without a norm, of [steps * B, ...]."""
    out: Tensor = _Fused.apply(x, None, None, None, None, steps, False, neuron)
    return out


def fits(norm: nn.Module, x: Tensor) -> TypeGuard[nn.BatchNorm2d]:
    """True for affine batch norms with running statistics and a momentum, if ``x`` has several values per channel."""
    return (
        isinstance(norm, nn.BatchNorm2d)
        and norm.affine
        and norm.running_mean is not None
        and norm.momentum is not None
        and x.numel() > x.shape[1]
    )


def norm_lif(
    norm: nn.BatchNorm2d, x: Tensor, residual: Tensor | None, steps: int, neuron: Neuron, shared: bool = False
) -> Tensor:
    """LIF of norm(x) [+ residual]. With ``shared``, ``x`` holds one step and is the input of every step."""
    assert residual is None or not shared, "a residual differs from step to step"
    out: Tensor = _Fused.apply(x, residual, norm.weight, norm.bias, norm, steps, shared, neuron)
    return out
