"""3x3 convolution of spikes, event by event: work in proportion to the spikes, forward and in the weights' gradient.

A spike at pixel q of channel i adds the i-th 3x3 patch of weights to the outputs around q; in the weights' gradient it
adds the output gradients around q to the i-th patch. With channels innermost, a patch is three runs of 3 * outputs
contiguous numbers, so each spike costs a few wide additions and no multiplication. Where spikes are too dense for
that to pay (a fraction of the input is looked at), the dense convolution of the library does the work. The gradient
of the input is dense in any case.
"""

from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from asfedbridge.models import openmp
from asfedbridge.models.kernels import Array, jit

LANES = 16  # channel counts must be multiples: one mask of 16 spikes, one chunk of 16 sums
DENSE_FORWARD, DENSE_BACKWARD = 0.2, 0.32  # firing rates above which the dense convolution is faster
SAMPLE = 8  # the rate is estimated on every eighth image
CACHE = 128 << 10  # bytes of weight patches worked on at a time


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, offset: Any, lanes: int) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [offset]), ir.VectorType(ir.FloatType(), lanes).as_pointer())


def _make_add(lanes: int) -> Any:
    """target[i : i + lanes] += source[j : j + lanes] as straight vector code.

    Written as a loop, the compiler would have to prove on every run that the two do not overlap.
    """

    def add(typing: Any, target: Any, i: Any, source: Any, j: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            to = _pointer(context, builder, signature.args[0], values[0], values[1], lanes)
            of = _pointer(context, builder, signature.args[2], values[2], values[3], lanes)
            builder.store(builder.fadd(builder.load(to, align=4), builder.load(of, align=4)), to, align=4)
            return context.get_dummy_value()

        return types.void(target, types.intp, source, types.intp), generate

    return intrinsic(add)


def _spikes_16(typing: Any, x: Any, i: Any) -> Any:
    """Bit k says whether x[i + k] is a spike."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        vector = builder.load(_pointer(context, builder, signature.args[0], values[0], values[1], LANES), align=4)
        bits = builder.fcmp_unordered("!=", vector, ir.Constant(vector.type, [0.0] * LANES))
        return builder.zext(builder.bitcast(bits, ir.IntType(LANES)), ir.IntType(32))

    return types.uint32(x, types.intp), generate


def _lowest_bit(typing: Any, bits: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.zext(builder.cttz(values[0], ir.Constant(ir.IntType(1), 1)), ir.IntType(64))

    return types.intp(types.uint32), generate


_add_48, _add_16 = _make_add(3 * LANES), _make_add(LANES)
_spikes: Any = intrinsic(_spikes_16)
_lowest: Any = intrinsic(_lowest_bit)


@jit
def scatter(
    spikes: Any,
    patches: Any,
    image: Any,
    height: int,
    width: int,
    inputs: int,
    outputs: int,
    block: int,
    gradient: bool,
    begin: int,
    end: int,
) -> None:
    """Images ``begin`` .. ``end``: sum up patches in ``image`` where spikes are; as a ``gradient``, add to patches.

    ``patches`` is [inputs, 3, 3, outputs], ordered by where a spike's contribution goes; input channels are taken
    ``block`` at a time, so that their patches stay in the cache while the images pass.
    """
    run, line = 3 * outputs, width * outputs
    for low in range(0, inputs, block):
        for n in range(begin, end):
            if low == 0 and not gradient:
                image[n * height * line : (n + 1) * height * line] = np.float32(0)
            for y in range(height):
                top, bottom = 0 if y > 0 else 1, 3 if y < height - 1 else 2
                for x in range(width):
                    left, right = 0 if x > 0 else outputs, run if x < width - 1 else 2 * outputs
                    pixel = (n * height + y) * width + x
                    corner = (pixel - width - 1) * outputs
                    inside = bottom - top == 3 and right - left == run
                    for group in range(low, min(low + block, inputs), LANES):
                        bits = _spikes(spikes, pixel * inputs + group)
                        while bits != 0:
                            patch = (group + _lowest(bits)) * 3 * run
                            bits = bits & (bits - np.uint32(1))
                            if inside and run == 3 * LANES:  # the narrowest, where loops would cost most
                                if gradient:
                                    _add_48(patches, patch, image, corner)
                                    _add_48(patches, patch + run, image, corner + line)
                                    _add_48(patches, patch + 2 * run, image, corner + 2 * line)
                                else:
                                    _add_48(image, corner, patches, patch)
                                    _add_48(image, corner + line, patches, patch + run)
                                    _add_48(image, corner + 2 * line, patches, patch + 2 * run)
                                continue
                            for j in range(top, bottom):
                                here, there = corner + j * line, patch + j * run
                                if right - left == run:
                                    for k in range(0, run, 3 * LANES):
                                        if gradient:
                                            _add_48(patches, there + k, image, here + k)
                                        else:
                                            _add_48(image, here + k, patches, there + k)
                                else:
                                    for k in range(left, right, LANES):
                                        if gradient:
                                            _add_16(patches, there + k, image, here + k)
                                        else:
                                            _add_16(image, here + k, patches, there + k)


def fits(conv: nn.Conv2d) -> bool:
    return (
        conv.kernel_size == (3, 3)
        and conv.stride == conv.padding == conv.dilation == (1, 1)
        and conv.padding_mode == "zeros"
        and conv.groups == 1
        and conv.bias is None
        and conv.in_channels % LANES == conv.out_channels % LANES == 0
    )


def firing_rate(spikes: Tensor) -> float:
    return spikes[::SAMPLE].mean().item()


def _flat(x: Tensor) -> Array:
    # The kernel reads memory by address; reshaping alone may give a strided view, as of an expanded gradient.
    return x.detach().movedim(1, -1).reshape(-1).contiguous().numpy()


def _scatter(spikes: Tensor, patches: list[Array], image: Array, outputs: int, gradient: bool) -> None:
    count, inputs, height, width = spikes.shape
    x = _flat(spikes)
    block = max(LANES, min(inputs, CACHE // (9 * outputs * 4) // LANES * LANES))
    sizes = height, width, inputs, outputs, block, gradient
    openmp.spread(scatter, count, 1, image.size // count, lambda k: (x, patches[k], image, *sizes))


class _EventConvolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, spikes: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(spikes, weight)
        ctx.rate = firing_rate(spikes)
        if ctx.rate > DENSE_FORWARD:
            return torch.conv2d(spikes, weight, padding=1)
        count, _, height, width = spikes.shape
        image = spikes.new_empty(count, height, width, len(weight))
        # A spike at q reaches output q + (1, 1) through weight (0, 0), so patches are flipped kernels.
        patches = weight.detach().flip(2, 3).permute(1, 2, 3, 0).reshape(-1).numpy()
        _scatter(spikes, [patches] * torch.get_num_threads(), image.view(-1).numpy(), len(weight), gradient=False)
        return image.movedim(-1, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        spikes, weight = ctx.saved_tensors
        dense = ctx.rate > DENSE_BACKWARD
        wanted = [ctx.needs_input_grad[0], ctx.needs_input_grad[1] and dense, False]
        d_spikes, d_weight, _ = torch.ops.aten.convolution_backward(
            grad, spikes, weight, None, (1, 1), (1, 1), (1, 1), False, (0, 0), 1, wanted
        )
        if ctx.needs_input_grad[1] and not dense:
            outputs, inputs = weight.shape[:2]
            # torch aligns memory, numpy does not
            partial = weight.new_zeros(torch.get_num_threads(), inputs, 3, 3, outputs)
            _scatter(spikes, [p.view(-1).numpy() for p in partial], _flat(grad), outputs, gradient=True)
            d_weight = partial.sum(dim=0).permute(3, 0, 1, 2).flip(2, 3).contiguous(memory_format=torch.channels_last)
        return d_spikes, d_weight


def convolve(conv: nn.Conv2d, spikes: Tensor) -> Tensor:
    """``conv`` of a tensor of zeros and ones."""
    out: Tensor = _EventConvolution.apply(spikes, conv.weight) if len(spikes) else conv(spikes)
    return out
