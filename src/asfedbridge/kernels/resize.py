"""Crops and rescales images with antialiasing in one pass over a batch. Called by ``data.random_crop``."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asfedbridge.kernels.lif import jit
from asfedbridge.kernels.openmp import spread


@jit
def _weigh(length: int, full: int, margin: int, first: Any, count: Any, weights: Any) -> None:
    """Filter weights that resample ``length`` pixels to ``full`` and keep the ``first.size`` middle ones.

    Output pixel k is a weighted sum of ``count[k]`` input pixels from ``first[k]`` on. The filter is a triangle whose
    half-width is one pixel of the coarser grid.
    """
    step = length / full
    reach = max(1.0, step)
    for k in range(first.size):
        centre = step * (k + margin + 0.5)
        low = max(0, int(centre - reach + 0.5))
        high = min(length, int(centre + reach + 0.5))
        total = 0.0
        for i in range(low, high):
            total += max(0.0, 1.0 - abs((i - centre + 0.5) / reach))
        for i in range(low, high):
            weights[k, i - low] = np.float32(max(0.0, 1.0 - abs((i - centre + 0.5) / reach)) / total)
        first[k] = low
        count[k] = high - low


@jit
def _resample(
    images: Any,
    boxes: Any,
    flips: Any,
    scale: Any,
    shift: Any,
    out: Any,
    channels: int,
    full: int,
    taps: int,
    begin: int,
    end: int,
) -> None:
    """``images`` is [N, H, W * C], ``out`` is [N, size, size * C]; ``scale`` and ``shift`` have length size * C."""
    size = out.shape[1]
    margin = (full - size) // 2
    first, count = np.empty(size, np.int64), np.empty(size, np.int64)
    weights = np.empty((size, taps), np.float32)
    wide = np.empty((images.shape[1], size * channels), np.float32)  # the box after horizontal resampling
    for n in range(begin, end):
        top, left, height, width = boxes[0, n], boxes[1, n], boxes[2, n], boxes[3, n]
        _weigh(width, full, margin, first, count, weights)
        for y in range(height):
            pixels, line = images[n, top + y], wide[y]
            for x in range(size):
                target = (size - 1 - x if flips[n] else x) * channels
                source = (left + first[x]) * channels
                for c in range(channels):
                    value = np.float32(0.0)
                    for i in range(count[x]):
                        value += weights[x, i] * np.float32(pixels[source + i * channels + c])
                    line[target + c] = value
        _weigh(height, full, margin, first, count, weights)
        for y in range(size):
            line = out[n, y]
            weight, above = weights[y, 0], wide[first[y]]
            for x in range(line.size):
                line[x] = weight * above[x]
            for i in range(1, count[y]):
                weight, above = weights[y, i], wide[first[y] + i]
                for x in range(line.size):
                    line[x] += weight * above[x]
            for x in range(line.size):
                line[x] = line[x] * scale[x] + shift[x]


def resample(x: Tensor, boxes: Tensor, flips: Tensor, size: int, full: int, scale_C: Tensor, shift_C: Tensor) -> Tensor:
    """``random_crop.resample_plainly`` times ``scale_C`` plus ``shift_C``, equal up to float rounding."""
    lines = x.movedim(1, -1).flatten(2).contiguous()
    channels = x.shape[1]
    out = torch.empty((len(x), size, size * channels))
    scale, shift = (v.view(-1).repeat(size) for v in (scale_C, shift_C))
    taps = math.ceil(2 * max(1.0, max(x.shape[2:]) / full)) + 1
    arrays = [t.numpy() for t in (lines, boxes.contiguous(), flips, scale, shift, out)]
    spread(_resample, len(x), 1, size * size * channels, lambda k: (*arrays, channels, full, taps))
    return out.view(len(x), size, size, channels).movedim(-1, 1)
