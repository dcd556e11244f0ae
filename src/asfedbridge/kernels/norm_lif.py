"""Spiking activations as one autograd node: [batch norm, + residual,] LIF over all T steps. Calls the ``lif`` kernels.

The node saves its input and residual and, per channel, the norm's mean and inverse standard deviation. The backward
pass recomputes normalised values, currents and membranes tile by tile. Spikes are saved by the next layer anyway.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from asfedbridge.core.task import Neuron
from asfedbridge.kernels import lif as kernels
from asfedbridge.kernels import norm as norms
from asfedbridge.kernels import openmp
from asfedbridge.kernels.rows import fresh, rows


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
        affine: tuple[Any, ...] = None, None
        known = None
        if norm is not None:
            assert weight is not None
            assert bias is not None
            known = norms.prepare(norm, weight, bias, x_rows, channels, tile)
            affine = known.tiles[norms.SCALE], known.tiles[norms.SHIFT]
        r_rows = None if residual is None else rows(residual, steps, layout)
        out = fresh(x, len(x) * steps // own, layout)
        s_rows = rows(out, steps, layout)
        constants = np.float32(neuron.decay), np.float32(neuron.threshold)
        length = x_rows.shape[1]
        openmp.spread(
            kernels.forward, length, tile, steps, lambda k: (x_rows, *affine, r_rows, s_rows, tile, *constants)
        )
        ctx.save_for_backward(x, residual, weight)
        ctx.plan = steps, own, channels, tile, layout, neuron, known
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        x, residual, weight = ctx.saved_tensors
        steps, own, channels, tile, layout, neuron, known = ctx.plan
        scale, shift, mean, inverse = (None, None, None, None) if known is None else known.tiles
        x_rows, g_rows = rows(x, own, layout), rows(grad, steps, layout)
        r_rows = None if residual is None else rows(residual, steps, layout)
        current = fresh(x, len(x), layout)
        d_rows = rows(current, own, layout)
        length = x_rows.shape[1]
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
            lambda k: (x_rows, scale, shift, r_rows, mean, inverse, g_rows, d_rows, sums[k], tile, *constants),
        )
        if known is None:
            return current, None, None, None, None, None, None, None
        (a, b, c), d_weight, d_bias = norms.gradient(known, weight, sums, x_rows.size // channels)
        out = current if residual is None else fresh(x, len(x), layout)
        out_rows = None if residual is None else rows(out, own, layout)
        openmp.spread(kernels.combine, length, tile, own, lambda k: (d_rows, x_rows, a, b, c, out_rows))
        return out, current if residual is not None else None, d_weight, d_bias, None, None, None, None


def lif(x: Tensor, steps: int, neuron: Neuron) -> Tensor:
    """LIF without a norm, of [steps * B, ...]."""
    out: Tensor = _Fused.apply(x, None, None, None, None, steps, False, neuron)
    return out


def norm_lif(
    norm: nn.BatchNorm2d, x: Tensor, residual: Tensor | None, steps: int, neuron: Neuron, shared: bool = False
) -> Tensor:
    """LIF of norm(x) [+ residual]. With ``shared``, ``x`` holds one step and is the input of every step."""
    assert residual is None or not shared, "a residual differs from step to step"
    out: Tensor = _Fused.apply(x, residual, norm.weight, norm.bias, norm, steps, shared, neuron)
    return out
