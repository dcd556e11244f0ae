"""Random resized crops for training and central crops for evaluation, from stored images of any size.

This is the ImageNet protocol (Szegedy et al., CVPR 2015; He et al., CVPR 2016). A training image is a random box with 8
to 100 % of the area and an aspect ratio of 3/4 to 4/3, scaled to size x size. A test image is scaled to 8/7 of the size
(256 for 224) and cropped to its centre. Scaling is bilinear and antialiased, without rounding to 8 bits in between.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from asfedbridge.kernels.dispatch import installed

RESIZED = "resized-crop+flip"  # the name of this augmentation
AREA, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
ATTEMPTS = 10  # boxes drawn per image; the first one inside the image is used, or the whole image if there is none


def enlarged(size: int) -> int:
    """The size to which an image is scaled before the central crop."""
    return round(size * 8 / 7)


def draw_boxes(count: int, side: int, generator: torch.Generator) -> Tensor:
    """Top, left, height and width of a box in each square image, in pixels, int64 [4, count]."""
    area, ratio, top, left = torch.rand((4, ATTEMPTS, count), generator=generator, dtype=torch.float64)
    area = side * side * (AREA[0] + (AREA[1] - AREA[0]) * area)
    ratio = torch.exp(math.log(RATIO[0]) + (math.log(RATIO[1]) - math.log(RATIO[0])) * ratio)
    heights, widths = (area / ratio).sqrt().round(), (area * ratio).sqrt().round()
    fits = (heights >= 1) & (heights <= side) & (widths >= 1) & (widths <= side)
    drawn = torch.stack([(top * (side - heights + 1)).floor(), (left * (side - widths + 1)).floor(), heights, widths])
    first = fits.byte().argmax(0)
    boxes = drawn.gather(1, first.expand(4, 1, count))[:, 0]
    whole = torch.tensor([0, 0, side, side]).double().view(4, 1)
    return torch.where(fits.any(0), boxes, whole).long()


def scale_boxes(x: Tensor, boxes: Tensor, flips: Tensor, size: int, scale_C: Tensor, shift_C: Tensor) -> Tensor:
    """Scales the box of each image to size x size, flips it if ``flips``, then applies each channel's scale and
    shift."""
    return _scaled(x, boxes, flips, size, size, scale_C, shift_C)


def scale_centres(x: Tensor, size: int, scale_C: Tensor, shift_C: Tensor) -> Tensor:
    """Scales each image to 8/7 of ``size`` and crops its centre."""
    whole = torch.tensor([0, 0, *x.shape[2:]]).view(4, 1).expand(4, len(x))
    return _scaled(x, whole, torch.zeros(len(x), dtype=torch.bool), size, enlarged(size), scale_C, shift_C)


def _scaled(x: Tensor, boxes: Tensor, flips: Tensor, size: int, full: int, scale_C: Tensor, shift_C: Tensor) -> Tensor:
    if installed("numba"):
        from asfedbridge.kernels.resize import resample

        return resample(x, boxes, flips, size, full, scale_C, shift_C)
    return resample_plainly(x, boxes, flips, size, full).mul_(scale_C).add_(shift_C)


def resample_plainly(x: Tensor, boxes: Tensor, flips: Tensor, size: int, full: int) -> Tensor:
    """The reference for ``kernels.resize``: scales each box to full x full, crops the central size x size, and flips
    it."""
    out = torch.empty((len(x), x.shape[1], size, size), memory_format=torch.channels_last)
    margin = (full - size) // 2
    for n, (image, (top, left, height, width)) in enumerate(zip(x, boxes.T.tolist(), strict=True)):
        box = image[None, :, top : top + height, left : left + width].float()
        scaled = F.interpolate(box, (full, full), mode="bilinear", antialias=True)
        scaled = scaled[0, :, margin : margin + size, margin : margin + size]
        out[n] = scaled.flip(2) if flips[n] else scaled
    return out
