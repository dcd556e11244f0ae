"""Crops, flips and normalises a batch of images in one pass over its pixels. Called by ``data.loader``."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from asfedbridge.kernels.lif import jit
from asfedbridge.kernels.openmp import spread


@jit
def _line(pixels: Any, scale: Any, shift: Any, out: Any) -> None:
    for i in range(out.shape[0]):
        out[i] = np.float32(pixels[i]) * scale[i] + shift[i]


@jit
def _mirror(pixels: Any, channels: int, out: Any) -> None:
    last = pixels.shape[0] // channels - 1
    if channels == 3:  # the usual case, without an inner loop
        for x in range(last + 1):
            here, there = 3 * np.uint64(x), 3 * np.uint64(last - x)
            out[here] = pixels[there]
            out[here + np.uint64(1)] = pixels[there + np.uint64(1)]
            out[here + np.uint64(2)] = pixels[there + np.uint64(2)]
        return
    for x in range(last + 1):
        for c in range(channels):
            out[x * channels + c] = pixels[(last - x) * channels + c]


@jit
def _cut(
    images: Any,
    order: Any,
    offsets: Any,
    flips: Any,
    scale: Any,
    shift: Any,
    out: Any,
    channels: int,
    pad: int,
    begin: int,
    end: int,
) -> None:
    """``images`` and ``out`` are [N, H, W * C]; ``scale`` and ``shift`` have length W * C."""
    height, line = images.shape[1:]
    width = line // channels
    mirrored = np.empty(line, np.uint8)
    for n in range(begin, end):
        down, right = offsets[0, n] - pad, offsets[1, n] - pad
        first, last = min(width, max(0, right)), max(0, min(width, width + right))  # visible input columns
        count = max(0, last - first)
        start = min(width, max(0, -right))  # the first output column that shows one
        if flips[n]:
            start = max(0, width - start - count)
        low, high = start * channels, (start + count) * channels
        for y in range(height):
            target = out[n, y]
            if y + down < 0 or y + down >= height:
                target[:] = shift
                continue
            pixels = images[order[n], y + down, first * channels : (first + count) * channels]
            if flips[n]:
                _mirror(pixels, channels, mirrored)
                pixels = mirrored[: count * channels]
            if low > 0:
                target[:low] = shift[:low]
            if high < line:
                target[high:] = shift[high:]
            _line(pixels, scale[low:high], shift[low:high], target[low:high])


def cut(
    lines: Tensor, order: Tensor, offsets: Tensor, flips: Tensor, scale_C: Tensor, shift_C: Tensor, pad: int
) -> Tensor:
    """Crops image ``order[n]`` of ``lines`` [N, H, W * C] at ``offsets[:, n]``, flips it if ``flips[n]``, then applies
    each channel's scale and shift. The border of ``pad`` pixels is 0. The layout is channels-last."""
    height, line = lines.shape[1:]
    channels = scale_C.numel()
    out = torch.empty((len(order), height, line))
    scale, shift = (v.view(-1).repeat(line // channels) for v in (scale_C, shift_C))
    # Numba compiles once per array layout. The offsets of one batch are a strided slice, those of all images are not.
    arrays = [t.numpy() for t in (lines, order, offsets.contiguous(), flips, scale, shift, out)]
    spread(_cut, len(order), 1, height * line, lambda k: (*arrays, channels, pad))
    return out.view(len(order), height, -1, channels).movedim(-1, 1)
