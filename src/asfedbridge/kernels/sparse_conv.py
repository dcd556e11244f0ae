"""Sparse 3x3 convolution of spikes. The forward pass and the weight gradient cost work in proportion to the spikes.

A spike at pixel q of channel i adds the i-th 3x3 patch of weights to the outputs around q. In the weight gradient it
adds the output gradients around q to the i-th patch. With channels innermost, a patch is three runs of 3 * outputs
contiguous numbers, so each spike costs a few wide additions and no multiplication (``scatter``). Above a certain firing
rate, estimated from a sample of the batch, torch's dense convolution is faster and is used instead. The input gradient
is always dense.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from asfedbridge.kernels import openmp
from asfedbridge.kernels.lif import Array, jit
from asfedbridge.kernels.scatter import LANES, scatter, scatter_strided

DENSE_FORWARD, DENSE_BACKWARD = 0.35, 0.5  # firing rates above which the dense convolution is faster
SAMPLE_EVERY = 8  # the firing rate is estimated from every eighth image
PATCH_BYTES = 300 << 10  # of weight patches processed at a time, so that they stay in the cache


def fits(conv: nn.Conv2d) -> bool:
    return (
        conv.kernel_size == (3, 3)
        and conv.stride in ((1, 1), (2, 2))
        and conv.padding == conv.dilation == (1, 1)
        and conv.padding_mode == "zeros"
        and conv.groups == 1
        and conv.bias is None
        and conv.in_channels % LANES == conv.out_channels % LANES == 0
    )


def firing_rate(spikes: Tensor) -> float:
    """Fraction of ones in a sample of the images."""
    return spikes[::SAMPLE_EVERY].mean().item()


def _flat(x: Tensor) -> Array:
    if x.is_contiguous(memory_format=torch.channels_last):
        return x.detach().as_strided((x.numel(),), (1,)).numpy()
    # The kernel needs contiguous memory; reshape alone may return a strided view, for example of an expanded gradient.
    return x.detach().movedim(1, -1).reshape(-1).contiguous().numpy()


def _scatter(spikes: Tensor, patches: list[Array], image: Array, outputs: int, stride: int, gradient: bool) -> None:
    count, inputs, height, width = spikes.shape
    x = _flat(spikes)
    block = max(LANES, min(inputs, PATCH_BYTES // (9 * outputs * 4) // LANES * LANES))
    sizes = height, width, inputs, outputs, block, gradient
    kernel = scatter if stride == 1 else scatter_strided
    openmp.spread(kernel, count, 1, image.size // count, lambda k: (x, patches[k], image, *sizes))


# The kernel column for each patch column, by stride. With stride 1 the kernel is rotated by 180 degrees: a spike at q
# contributes to output q + (1, 1) through weight (0, 0). With stride 2 both sides come first, then the middle.
KERNEL_COLUMNS = {1: (2, 1, 0), 2: (2, 0, 1)}


BLOCK = 16  # channels: a block of weights stays in the L1 cache while it is transposed


@jit
def _transpose(weight: Any, patches: Any, columns: Any, back: bool) -> None:
    """``weight`` is [outputs, 3, 3, inputs], ``patches`` is [inputs, 3, 3, outputs]."""
    outputs, inputs = weight.shape[0], weight.shape[3]
    for low in range(0, inputs, BLOCK):
        for first in range(0, outputs, BLOCK):
            for row in range(3):
                for column in range(3):
                    tap = columns[column]
                    for i in range(low, min(low + BLOCK, inputs)):
                        for o in range(first, min(first + BLOCK, outputs)):
                            if back:
                                weight[o, 2 - row, tap, i] = patches[i, row, column, o]
                            else:
                                patches[i, row, column, o] = weight[o, 2 - row, tap, i]


def _copy_patches(patches: Tensor, weight: Tensor, stride: int, back: bool) -> None:
    """Copies ``weight`` [outputs, inputs, 3, 3] to ``patches`` [inputs, 3, 3, outputs], or ``back`` to a weight in
    channels-last layout."""
    rows = weight.detach().movedim(1, -1)
    _transpose((rows if back else rows.contiguous()).numpy(), patches.numpy(), KERNEL_COLUMNS[stride], back)


def _forward(spikes: Tensor, weight: Tensor, stride: int, rate: float) -> Tensor:
    if rate > DENSE_FORWARD:
        return torch.conv2d(spikes, weight, padding=1, stride=stride)
    count, _, height, width = spikes.shape
    image = spikes.new_empty(count, -(-height // stride), -(-width // stride), len(weight))
    patches = weight.new_empty(weight.shape[1], 3, 3, len(weight))
    _copy_patches(patches, weight, stride, back=False)
    same = [patches.view(-1).numpy()] * torch.get_num_threads()
    _scatter(spikes, same, image.view(-1).numpy(), len(weight), stride, gradient=False)
    return image.movedim(-1, 1)


def _backward(
    grad: Tensor, spikes: Tensor, weight: Tensor, how: tuple[int, float], wanted: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of spikes and weight, or None where ``wanted`` is false."""
    stride, rate = how
    dense = rate > DENSE_BACKWARD
    which = [wanted[0], wanted[1] and dense, False]
    d_spikes, d_weight, _ = torch.ops.aten.convolution_backward(
        grad, spikes, weight, None, (stride, stride), (1, 1), (1, 1), False, (0, 0), 1, which
    )
    if wanted[1] and not dense:
        outputs, inputs = weight.shape[:2]
        # allocated by torch, which aligns memory; numpy does not
        partial = weight.new_zeros(torch.get_num_threads(), inputs, 3, 3, outputs)
        _scatter(spikes, [p.view(-1).numpy() for p in partial], _flat(grad), outputs, stride, gradient=True)
        d_weight = torch.empty_like(weight, memory_format=torch.channels_last)
        _copy_patches(partial[0] if len(partial) == 1 else partial.sum(dim=0), d_weight, stride, back=True)
    return d_spikes, d_weight


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, spikes: Tensor, weight: Tensor, stride: int) -> Tensor:
        ctx.save_for_backward(spikes, weight)
        ctx.how = stride, firing_rate(spikes)
        return _forward(spikes, weight, *ctx.how)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        spikes, weight = ctx.saved_tensors
        return *_backward(grad, spikes, weight, ctx.how, ctx.needs_input_grad), None


class _Fork(torch.autograd.Function):
    """A convolution and, as a second output, the input itself or its 1x1 convolution with the same stride.

    One node adds the second branch's input gradient in place; two nodes would each allocate one.
    """

    @staticmethod
    def forward(
        ctx: Any, spikes: Tensor, weight: Tensor, side_weight: Tensor | None, stride: int
    ) -> tuple[Tensor, Tensor]:
        ctx.how = stride, firing_rate(spikes)
        out = _forward(spikes, weight, *ctx.how)
        if side_weight is None:
            ctx.save_for_backward(spikes, weight)
            return out, spikes.view_as(spikes)
        # A slice instead of a strided convolution avoids a bug in oneDNN: see models.parts.Shortcut.
        corners = spikes[:, :, ::stride, ::stride].contiguous(memory_format=torch.channels_last)
        ctx.save_for_backward(spikes, weight, corners, side_weight)
        return out, torch.conv2d(corners, side_weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, side: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        spikes, weight, *rest = ctx.saved_tensors
        stride, _ = ctx.how
        d_spikes, d_weight = _backward(grad, spikes, weight, ctx.how, ctx.needs_input_grad)
        d_side = None
        if rest:
            wanted = [ctx.needs_input_grad[0], ctx.needs_input_grad[2], False]
            side, d_side, _ = torch.ops.aten.convolution_backward(
                side, *rest, None, (1, 1), (0, 0), (1, 1), False, (0, 0), 1, wanted
            )
        if d_spikes is not None:
            d_spikes[:, :, ::stride, ::stride].add_(side)
        return d_spikes, d_weight, d_side, None


def convolve(conv: nn.Conv2d, spikes: Tensor) -> Tensor:
    """Computes ``conv(spikes)`` for a tensor of zeros and ones."""
    out: Tensor = _Convolution.apply(spikes, conv.weight, conv.stride[0])
    return out


def fork(conv: nn.Conv2d, side: nn.Conv2d | None, spikes: Tensor) -> tuple[Tensor, Tensor]:
    """Returns ``conv(spikes)`` and ``side(spikes)``, or ``spikes`` itself without ``side``; for zeros and ones."""
    out: tuple[Tensor, Tensor] = _Fork.apply(spikes, conv.weight, side and side.weight, conv.stride[0])
    return out
