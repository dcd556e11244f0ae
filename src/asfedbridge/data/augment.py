"""Crop, flip and normalise a batch in one pass over its pixels: the machine code behind ``Shard``'s epochs."""

from typing import Any

import torch
from torch import Tensor

from asfedbridge.models.kernels import jit, spread


@jit
def _cut(
    images: Any, order: Any, offsets: Any, flips: Any, table: Any, out: Any, pad: int, begin: int, end: int
) -> None:
    channels, height, width = images.shape[1:]
    for n in range(begin, end):
        image = images[order[n]]
        # output column x shows image column first + step * x
        down, step = offsets[0, n] - pad, -1 if flips[n] else 1
        first = (width - 1 if flips[n] else 0) + offsets[1, n] - pad
        left = min(width, max(0, (first - width + 1) if flips[n] else -first))
        right = max(left, min(width, (first + 1) if flips[n] else width - first))
        for y in range(height):
            row = y + down
            inside = 0 <= row < height
            low, high = (left, right) if inside else (0, 0)
            for c in range(channels):
                border = table[c, 0]
                for x in range(low):
                    out[n, y, x, c] = border
                for x in range(high, width):
                    out[n, y, x, c] = border
                for x in range(low, high):
                    out[n, y, x, c] = table[c, image[c, row, first + step * x]]


def cut(images: Tensor, order: Tensor, offsets: Tensor, flips: Tensor, table_C256: Tensor, pad: int) -> Tensor:
    """Float images in channels-last layout: image ``order[n]`` shifted within a zero border, perhaps mirrored, each
    pixel looked up in its channel's table."""
    out = torch.empty((len(order), *images.shape[2:], images.shape[1]))
    arrays = [t.numpy() for t in (images, order, offsets, flips, table_C256, out)]
    spread(_cut, len(order), 1, images[0].numel(), lambda k: (*arrays, pad))
    return out.movedim(-1, 1)
