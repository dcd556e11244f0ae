"""Tensors as the arrays [steps, n] that the kernels read and write."""

import torch
from torch import Tensor

from asfedbridge.kernels.lif import Array


def rows(x: Tensor, steps: int, channels_last: bool) -> Array:
    """Views [steps * B, C, ...] as [steps, n]; copies only if the memory layout differs from the requested one."""
    x = x.detach()
    if channels_last and x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last):
        length = x.numel() // steps
        return x.as_strided((steps, length), (length, 1)).numpy()  # one view instead of three
    return (x.movedim(1, -1) if channels_last else x).reshape(steps, -1).contiguous().numpy()


def fresh(x: Tensor, count: int, channels_last: bool) -> Tensor:
    """Uninitialised memory for ``count`` images of the shape of ``x``."""
    if channels_last and x.dim() == 4:
        return torch.empty((count, *x.shape[1:]), dtype=x.dtype, memory_format=torch.channels_last)
    if channels_last:
        return x.new_empty((count, *x.shape[2:], x.shape[1])).movedim(-1, 1)
    return x.new_empty((count, *x.shape[1:]))
