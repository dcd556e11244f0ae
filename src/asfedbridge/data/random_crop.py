"""Large images from stored ones of any size: random resized crops for training, a central crop for evaluation.

The protocol of ImageNet (Szegedy et al., CVPR 2015; He et al., CVPR 2016): a training image is a random box of 8 to
100 % of the area and a ratio of 3/4 to 4/3, scaled to size x size; an evaluated one is scaled to 8/7 of the size (256
for 224) and cut to its centre. Scaling is bilinear and antialiased, and pixels are not rounded to 8 bits on the way.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from asfedbridge.kernels.dispatch import installed

RESIZED = "resized-crop+flip"  # the augmentation of that name
AREA, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
ATTEMPTS = 10  # boxes drawn for an image; the first that lies within it is taken, else the whole image


def enlarged(size: int) -> int:
    """What an image is scaled to before its centre is cut out."""
    return round(size * 8 / 7)


def draw_boxes(count: int, side: int, generator: torch.Generator) -> Tensor:
    """[4, count]: top, left, height and width of a box within each square image, in whole pixels."""
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
    """The box of each image scaled to size x size, perhaps mirrored; values times their channel's scale plus shift."""
    return _scaled(x, boxes, flips, size, size, scale_C, shift_C)


def scale_centres(x: Tensor, size: int, scale_C: Tensor, shift_C: Tensor) -> Tensor:
    """Each image scaled to 8/7 of ``size`` and cut to its centre."""
    whole = torch.tensor([0, 0, *x.shape[2:]]).view(4, 1).expand(4, len(x))
    return _scaled(x, whole, torch.zeros(len(x), dtype=torch.bool), size, enlarged(size), scale_C, shift_C)


def _scaled(x: Tensor, boxes: Tensor, flips: Tensor, size: int, full: int, scale_C: Tensor, shift_C: Tensor) -> Tensor:
    if installed("numba"):
        from asfedbridge.kernels.resize import resample

        return resample(x, boxes, flips, size, full, scale_C, shift_C)
    return resample_plainly(x, boxes, flips, size, full).mul_(scale_C).add_(shift_C)


def resample_plainly(x: Tensor, boxes: Tensor, flips: Tensor, size: int, full: int) -> Tensor:
    """One image after the other: its box scaled to full x full, of that the central size x size, mirrored or not."""
    out = torch.empty((len(x), x.shape[1], size, size), memory_format=torch.channels_last)
    margin = (full - size) // 2
    for n, (image, (top, left, height, width)) in enumerate(zip(x, boxes.T.tolist(), strict=True)):
        box = image[None, :, top : top + height, left : left + width].float()
        scaled = F.interpolate(box, (full, full), mode="bilinear", antialias=True)
        scaled = scaled[0, :, margin : margin + size, margin : margin + size]
        out[n] = scaled.flip(2) if flips[n] else scaled
    return out
