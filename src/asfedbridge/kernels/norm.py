"""Batch norm on the numba path: statistics, running statistics and gradients. Used by ``norm_lif``.

Per-channel arithmetic is in double precision. The kernels read per-channel constants that are repeated over a tile in
single precision (``lif``). A norm of a small network has few values, so the arithmetic on channels is one call of a
compiled function: as numpy operations it took longer than the passes over the values.
"""

from typing import Any, NamedTuple, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from asfedbridge.kernels import lif, openmp
from asfedbridge.kernels.lif import Array, jit

SCALE, SHIFT, MEAN, INVERSE = range(4)  # rows of ``Constants.tiles``


class Constants(NamedTuple):
    """What a norm does to a batch: x * scale + shift, with scale = weight * inverse and shift = bias - mean * scale."""

    tiles: Array  # [4, tile]: scale, shift, mean, inverse
    statistics: NDArray[np.float64]  # [2, channels]: mean, inverse standard deviation
    training: bool  # they depend on the batch


@jit
def _fill(values: Any, out: Any) -> None:
    """Repeats per-channel values over a tile."""
    channels = values.shape[0]
    for c in range(channels):
        out[c] = np.float32(values[c])
    for low in range(channels, out.shape[0], channels):
        out[low : low + channels] = out[:channels]


@jit
def _constants(mean: Any, inverse: Any, weight: Any, bias: Any, tiles: Any) -> None:
    scale, shift = np.empty_like(mean), np.empty_like(mean)
    for c in range(mean.shape[0]):
        scale[c] = weight[c] * inverse[c]
        shift[c] = bias[c] - mean[c] * scale[c]
    _fill(scale, tiles[0])
    _fill(shift, tiles[1])
    _fill(mean, tiles[2])
    _fill(inverse, tiles[3])


@jit
def _of_batch(
    sums: Any, centre: Any, count: int, eps: float, weight: Any, bias: Any, tiles: Any, statistics: Any, observed: Any
) -> None:
    """From each thread's sums of x - centre and of its square. ``observed`` gets mean and unbiased variance."""
    for c in range(statistics.shape[1]):
        first, second = 0.0, 0.0
        for k in range(sums.shape[0]):
            first += sums[k, 0, c]
            second += sums[k, 1, c]
        first, second = first / count, second / count
        variance = second - first * first
        if variance < 0:
            variance = 0.0
        statistics[0, c] = first + centre[c]
        statistics[1, c] = 1 / np.sqrt(variance + eps)
        observed[0, c] = statistics[0, c]
        observed[1, c] = variance * count / (count - 1)
    _constants(statistics[0], statistics[1], weight, bias, tiles)


@jit
def _of_run(mean: Any, variance: Any, eps: float, weight: Any, bias: Any, tiles: Any, statistics: Any) -> None:
    """From the running statistics."""
    for c in range(statistics.shape[1]):
        statistics[0, c] = mean[c]
        statistics[1, c] = 1 / np.sqrt(np.float64(variance[c]) + eps)
    _constants(statistics[0], statistics[1], weight, bias, tiles)


@jit
def _gradient(sums: Any, count: int, statistics: Any, weight: Any, tiles: Any, d_weight: Any, d_bias: Any) -> None:
    """From each thread's sums of d and d * xhat. ``count`` is 0 in evaluation mode.

    With y = w * xhat + b: dL/db = sum d and dL/dw = sum d xhat. In training, mean and std depend on x too:
    dx = w / std * (d - mean(d) - xhat * mean(d xhat)) = d * a + x * b + c. ``tiles`` gets a, b, c.
    """
    channels = statistics.shape[1]
    a, b, c = np.empty(channels), np.empty(channels), np.empty(channels)
    for i in range(channels):
        first, second = 0.0, 0.0
        for k in range(sums.shape[0]):
            first += sums[k, 0, i]
            second += sums[k, 1, i]
        d_bias[i], d_weight[i] = first, second
        first, second = (first / count, second / count) if count > 0 else (0.0, 0.0)
        mean, inverse = statistics[0, i], statistics[1, i]
        a[i] = weight[i] * inverse
        b[i] = -a[i] * inverse * second
        c[i] = -a[i] * first - b[i] * mean
    _fill(a, tiles[0])
    _fill(b, tiles[1])
    _fill(c, tiles[2])


def fits(norm: nn.Module, x: Tensor) -> TypeGuard[nn.BatchNorm2d]:
    """True for affine batch norms with running statistics and a momentum, if ``x`` has several values per channel.

    A norm with hooks does not fit: the kernels do not call the module.
    """
    return (
        isinstance(norm, nn.BatchNorm2d)
        and norm.affine
        and norm.running_mean is not None
        and norm.momentum is not None
        and x.numel() > x.shape[1]
        and not norm._forward_hooks
        and not norm._forward_pre_hooks
        and not norm._backward_hooks
        and not norm._backward_pre_hooks
    )


def prepare(norm: nn.BatchNorm2d, weight: Tensor, bias: Tensor, x_rows: Array, channels: int, tile: int) -> Constants:
    """The constants for this input. Updates the running statistics in training mode."""
    tiles, statistics = np.empty((4, tile), np.float32), np.empty((2, channels))
    running_mean, running_var, momentum = norm.running_mean, norm.running_var, norm.momentum
    assert running_mean is not None
    assert running_var is not None
    affine = weight.detach().numpy(), bias.detach().numpy()
    if not norm.training:
        _of_run(running_mean.numpy(), running_var.numpy(), norm.eps, *affine, tiles, statistics)
        return Constants(tiles, statistics, training=False)
    # Subtracting any value near the mean avoids cancellation in the sum of squares.
    centre = np.empty(tile, np.float32)
    _fill(x_rows[0, :channels], centre)
    sums = np.zeros((torch.get_num_threads(), 2, channels))
    openmp.spread(lif.moments, x_rows.shape[1], tile, len(x_rows), lambda k: (x_rows, centre, sums[k]))
    observed = torch.empty((2, channels), dtype=torch.float32)
    count = x_rows.size // channels
    _of_batch(sums, centre, count, norm.eps, *affine, tiles, statistics, observed.numpy())
    assert momentum is not None
    assert norm.num_batches_tracked is not None
    running_mean.lerp_(observed[0], momentum)
    running_var.lerp_(observed[1], momentum)
    norm.num_batches_tracked.add_(1)
    return Constants(tiles, statistics, training=True)


def gradient(
    constants: Constants, weight: Tensor, sums: NDArray[np.float64], count: int
) -> tuple[Array, Tensor, Tensor]:
    """The tiles a, b and c of dx = d * a + x * b + c, and the gradients of weight and bias. ``count`` is the number of
    values per channel, ``sums`` each thread's sums of d and d * xhat."""
    tiles = np.empty((3, constants.tiles.shape[1]), np.float32)
    d_weight, d_bias = torch.empty_like(weight), torch.empty_like(weight)
    parts = weight.detach().numpy(), tiles, d_weight.numpy(), d_bias.numpy()
    _gradient(sums, count if constants.training else 0, constants.statistics, *parts)
    return tiles, d_weight, d_bias
