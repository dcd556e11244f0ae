"""Kernels of the sparse convolution: each spike adds its channel's patch of weights to the output around it.

``patches`` is [inputs, 3, 3, outputs], ordered by output position relative to the spike. ``image`` is the output,
[images, height, width, outputs]. Both are flat. With ``gradient``, the image around each spike is added to the patch
instead. Input channels are processed in blocks of ``block``, so that their patches stay in the cache for all images.
The sums at a pixel stay in registers while the spikes of up to 64 channels are added.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from asfedbridge.kernels.lif import jit

LANES = 16  # spikes read at a time; channel counts must be multiples of it
GROUP = 64  # channels whose spikes are packed into one 64-bit word
VECTOR = 8  # floats per register


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, offset: Any, lanes: int) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [offset]), ir.VectorType(ir.FloatType(), lanes).as_pointer())


def _spikes_16(typing: Any, x: Any, i: Any) -> Any:
    """Packs 16 spikes into bits: bit k is set if x[i + k] is not zero."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        vector = builder.load(_pointer(context, builder, signature.args[0], values[0], values[1], LANES), align=4)
        bits = builder.fcmp_unordered("!=", vector, ir.Constant(vector.type, [0.0] * LANES))
        return builder.zext(builder.bitcast(bits, ir.IntType(LANES)), ir.IntType(64))

    return types.uint64(x, types.intp), generate


def _each_bit(builder: Any, bits: Any, sums: Sequence[Any], body: Callable[[Any, Sequence[Any]], Sequence[Any]]) -> Any:
    """Emits a loop ``sums = body(k, sums)`` over the set bits k, with ``sums`` in registers; one bit must be set."""
    before = builder.block
    loop, after = (builder.function.append_basic_block(name) for name in ("bit", "done"))
    builder.branch(loop)
    builder.position_at_end(loop)
    left, *inner = (builder.phi(value.type) for value in (bits, *sums))
    lowest = builder.cttz(left, ir.Constant(ir.IntType(1), 1))
    results = body(lowest, inner)
    rest = builder.and_(left, builder.sub(left, ir.Constant(left.type, 1)))
    for phi, first, later in zip((left, *inner), (bits, *sums), (rest, *results), strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(later, loop)
    builder.cbranch(builder.icmp_unsigned("!=", rest, ir.Constant(left.type, 0)), loop, after)
    builder.position_at_end(after)
    return results


def _make(lanes: int, gradient: bool, lines: int = 1) -> Any:
    """Makes image[i : i + lanes] += sum of patches[j + k * stride :][:lanes] over the set bits k, or the reverse.

    The reverse (``gradient``) adds the image to each of these patches. With two lines, the second line starts at
    i + ``line`` in the image and directly after the first in a patch. This is LLVM code because a loop in Python would
    be compiled with run-time checks that image and patches do not overlap.
    """

    def add(typing: Any, image: Any, i: Any, line: Any, patches: Any, j: Any, stride: Any, bits: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            _, i, line, _, j, stride, bits = values

            def vectors(argument: int, start: Any, count: int) -> list[Any]:
                starts = [builder.add(start, ir.Constant(start.type, o)) for o in range(0, count, VECTOR)]
                kind, array = signature.args[argument], values[argument]
                return [_pointer(context, builder, kind, array, start, VECTOR) for start in starts]

            def patch(k: Any) -> list[Any]:
                return vectors(3, builder.add(j, builder.mul(k, stride)), lanes * lines)

            def gather(k: Any, sums: Sequence[Any]) -> Sequence[Any]:
                return [builder.fadd(total, builder.load(p, align=4)) for total, p in zip(sums, patch(k), strict=True)]

            def give(k: Any, _: Sequence[Any]) -> Sequence[Any]:
                for value, p in zip(here, patch(k), strict=True):
                    builder.store(builder.fadd(builder.load(p, align=4), value), p, align=4)
                return []

            image = vectors(0, i, lanes)
            if lines == 2:
                image += vectors(0, builder.add(i, line), lanes)
            here = [builder.load(p, align=4) for p in image]
            if gradient:
                _each_bit(builder, bits, [], give)
            else:
                for p, total in zip(image, _each_bit(builder, bits, here, gather), strict=True):
                    builder.store(total, p, align=4)
            return context.get_dummy_value()

        return types.void(image, *[types.intp] * 2, patches, *[types.intp] * 2, types.uint64), generate

    return intrinsic(add)


_spikes: Any = intrinsic(_spikes_16)
_sum_96, _sum_48, _sum_32, _sum_16 = (_make(lanes, gradient=False) for lanes in (96, 48, 32, 16))
_give_96, _give_48, _give_32, _give_16 = (_make(lanes, gradient=True) for lanes in (96, 48, 32, 16))
_sum_2x48, _give_2x48 = (_make(48, gradient, lines=2) for gradient in (False, True))


@jit
def _row(image: Any, i: int, patches: Any, j: int, run: int, stride: int, bits: Any, gradient: bool) -> None:
    """Processes ``run`` contiguous sums in pieces that fit into the registers."""
    end = i + run
    while i + 96 <= end:
        if gradient:
            _give_96(image, i, 0, patches, j, stride, bits)
        else:
            _sum_96(image, i, 0, patches, j, stride, bits)
        i, j = i + 96, j + 96
    while i + 48 <= end:
        if gradient:
            _give_48(image, i, 0, patches, j, stride, bits)
        else:
            _sum_48(image, i, 0, patches, j, stride, bits)
        i, j = i + 48, j + 48
    while i + 32 <= end:
        if gradient:
            _give_32(image, i, 0, patches, j, stride, bits)
        else:
            _sum_32(image, i, 0, patches, j, stride, bits)
        i, j = i + 32, j + 32
    if i < end:
        if gradient:
            _give_16(image, i, 0, patches, j, stride, bits)
        else:
            _sum_16(image, i, 0, patches, j, stride, bits)


@jit
def _word(spikes: Any, i: int, channels: int) -> Any:
    """Packs the spikes of up to 64 channels into one word."""
    bits = _spikes(spikes, i)
    for k in range(LANES, channels, LANES):
        bits |= _spikes(spikes, i + k) << np.uint64(k)
    return bits


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
    """Stride 1, images ``begin`` to ``end``."""
    run, line = 3 * outputs, width * outputs
    for low in range(0, inputs, block):
        high = min(low + block, inputs)
        for n in range(begin, end):
            if low == 0 and not gradient:
                image[n * height * line : (n + 1) * height * line] = np.float32(0)
            for y in range(height):
                top, bottom = 0 if y > 0 else 1, 3 if y < height - 1 else 2
                for x in range(width):
                    left, right = 0 if x > 0 else outputs, run if x < width - 1 else 2 * outputs
                    pixel = (n * height + y) * width + x
                    corner = (pixel - width - 1) * outputs + left
                    narrow = outputs == LANES and right - left == run and bottom - top == 3
                    for group in range(low, high, GROUP):
                        bits = _word(spikes, pixel * inputs + group, min(GROUP, high - group))
                        if bits == 0:
                            continue
                        patch = group * 3 * run + left
                        if narrow:  # two rows fit into the registers at once
                            if gradient:
                                _give_2x48(image, corner, line, patches, patch, 3 * run, bits)
                                _give_48(image, corner + 2 * line, 0, patches, patch + 2 * run, 3 * run, bits)
                            else:
                                _sum_2x48(image, corner, line, patches, patch, 3 * run, bits)
                                _sum_48(image, corner + 2 * line, 0, patches, patch + 2 * run, 3 * run, bits)
                            continue
                        for j in range(top, bottom):
                            i = corner + j * line
                            _row(image, i, patches, patch + j * run, right - left, 3 * run, bits, gradient)


@jit
def scatter_strided(
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
    """Stride 2. A spike in an even row or column contributes to one output through the middle weight, a spike in an odd
    one to the outputs on both sides. A row of ``patches`` holds the two side weights, then the middle one."""
    lines, line = (height + 1) // 2, (width + 1) // 2 * outputs
    for low in range(0, inputs, block):
        high = min(low + block, inputs)
        for n in range(begin, end):
            if low == 0 and not gradient:
                image[n * lines * line : (n + 1) * lines * line] = np.float32(0)
            for y in range(height):
                top = 0 if y % 2 else 1
                bottom = 3 if y < height - 1 else 2  # an odd last row has no output below
                for x in range(width):
                    column = x // 2 * outputs
                    left = 0 if x % 2 else 2 * outputs
                    run = min(2 * outputs, line - column) if x % 2 else outputs
                    pixel = (n * height + y) * width + x
                    for group in range(low, high, GROUP):
                        bits = _word(spikes, pixel * inputs + group, min(GROUP, high - group))
                        if bits == 0:
                            continue
                        patch = group * 9 * outputs + left
                        for j in range(top, bottom, 2):
                            i = (n * lines + (y - 1 + j) // 2) * line + column
                            _row(image, i, patches, patch + j * 3 * outputs, run, 9 * outputs, bits, gradient)
