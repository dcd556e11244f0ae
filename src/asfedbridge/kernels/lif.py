"""CPU kernels for LIF neurons, with or without a preceding batch norm. Numba compiles them on first use.

All kernels work on float32 arrays [T, n]: one row per time step, channels innermost. Rows are processed in tiles of
whole pixels, so per-channel constants repeated to the tile length line up with every tile. The inner loops are plain
element-wise loops that the compiler vectorises, and a tile stays in the cache for all time steps. Each large array is
read or written once.

If an input has one row, that row is the current of every time step.
"""

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
TILE = 1024  # floats; the backward pass keeps several buffers of this size in the L1 cache
TILES_PER_FLUSH = 64  # tiles summed in single precision before the sum is added to a double
SURROGATES = ("triangle", "rectangle", "sigmoid", "atan")

jit: Any = numba.njit(nogil=True, cache=True, error_model="numpy")


@jit
def _charge(x: Any, scale: Any, shift: Any, residual: Any, before: Any, u: Any, decay: Any, threshold: Any) -> None:
    """Computes ``u``, the membrane before the reset, from the input and ``before``, its value at the previous step."""
    zero = np.float32(0)
    for i in range(u.shape[0]):
        current = x[i]
        if scale is not None:
            current = current * scale[i] + shift[i]
        if residual is not None:
            current = current + residual[i]
        rest = before[i]
        u[i] = current + decay * (zero if rest >= threshold else rest)


@jit
def _fire(x: Any, scale: Any, shift: Any, residual: Any, v: Any, s: Any, decay: Any, threshold: Any) -> None:
    """Computes the spikes ``s`` and updates ``v``, the membrane after the reset."""
    one, zero = np.float32(1), np.float32(0)
    for i in range(v.shape[0]):
        current = x[i]
        if scale is not None:
            current = current * scale[i] + shift[i]
        if residual is not None:
            current = current + residual[i]
        u = current + decay * v[i]
        s[i] = one if u >= threshold else zero
        v[i] = zero if u >= threshold else u


@jit
def _triangle(u: Any, slope: Any, threshold: Any, gamma: Any) -> None:
    zero, steep = np.float32(0), np.float32(1) / (gamma * gamma)
    for i in range(u.shape[0]):
        high = gamma - abs(u[i] - threshold)
        slope[i] = (high if high > zero else zero) * steep


@jit
def _rectangle(u: Any, slope: Any, threshold: Any, half_width: Any) -> None:
    zero, high = np.float32(0), np.float32(1) / (np.float32(2) * half_width)
    for i in range(u.shape[0]):
        slope[i] = high if abs(u[i] - threshold) < half_width else zero


@jit
def _sigmoid(u: Any, slope: Any, threshold: Any, alpha: Any) -> None:
    one = np.float32(1)
    for i in range(u.shape[0]):
        y = one / (one + np.exp(-alpha * (u[i] - threshold)))
        slope[i] = alpha * y * (one - y)


@jit
def _atan(u: Any, slope: Any, threshold: Any, alpha: Any) -> None:
    one, half, quarter_turn = np.float32(1), alpha / np.float32(2), np.float32(np.pi / 2) * alpha
    for i in range(u.shape[0]):
        z = quarter_turn * (u[i] - threshold)
        slope[i] = half / (one + z * z)


@jit
def _step_back(g: Any, u: Any, slope: Any, later: Any, out: Any, decay: Any, threshold: Any, reset: Any) -> None:
    """Gradient of one step's current. ``later`` holds decay times the gradient of the next step's membrane."""
    one, zero = np.float32(1), np.float32(0)
    for i in range(u.shape[0]):
        kept = (zero if u[i] >= threshold else one) - reset * u[i] * slope[i]
        d = g[i] * slope[i] + later[i] * kept
        out[i] = d
        later[i] = decay * d


@jit
def _add(x: Any, total: Any) -> None:
    for i in range(total.shape[0]):
        total[i] += x[i]


@jit
def _add_moments(x: Any, centre: Any, first: Any, second: Any) -> None:
    for i in range(x.shape[0]):
        d = x[i] - centre[i]
        first[i] += d
        second[i] += d * d


@jit
def _add_products(d: Any, x: Any, mean: Any, inverse: Any, first: Any, second: Any) -> None:
    for i in range(d.shape[0]):
        first[i] += d[i]
        second[i] += d[i] * ((x[i] - mean[i]) * inverse[i])


@jit
def _flush(first: Any, second: Any, sums: Any) -> None:
    """Adds the sums at each tile position to the double-precision sums of its channel, then resets them to zero."""
    channels = sums.shape[1]
    for i in range(first.shape[0]):
        sums[0, i % channels] += first[i]
        sums[1, i % channels] += second[i]
    first[:] = np.float32(0)
    second[:] = np.float32(0)


@jit
def moments(x: Any, centre: Any, sums: Any, begin: int, end: int) -> None:
    """Per-channel sums of x - centre and of its square."""
    tile = centre.shape[0]
    first, second = np.zeros_like(centre), np.zeros_like(centre)
    done = 0
    for t in range(x.shape[0]):
        for low in range(begin, end, tile):
            high = min(low + tile, end)
            m = high - low
            _add_moments(x[t, low:high], centre[:m], first[:m], second[:m])
            done += 1
            if done % TILES_PER_FLUSH == 0:
                _flush(first, second, sums)
    _flush(first, second, sums)


@jit
def forward(
    x: Any, scale: Any, shift: Any, residual: Any, s: Any, tile: int, decay: Any, threshold: Any, begin: int, end: int
) -> None:
    """Spikes of columns ``begin`` to ``end`` of every row."""
    v = np.empty(tile, np.float32)
    for low in range(begin, end, tile):
        high = min(low + tile, end)
        m = high - low
        v[:] = np.float32(0)
        for t in range(s.shape[0]):
            row = x[min(t, x.shape[0] - 1), low:high]
            if scale is None:
                _fire(row, None, None, None, v[:m], s[t, low:high], decay, threshold)
            elif residual is None:
                _fire(row, scale[:m], shift[:m], None, v[:m], s[t, low:high], decay, threshold)
            else:
                _fire(row, scale[:m], shift[:m], residual[t, low:high], v[:m], s[t, low:high], decay, threshold)


@jit
def backward(
    x: Any,
    scale: Any,
    shift: Any,
    residual: Any,
    mean: Any,
    inverse: Any,
    g: Any,
    out: Any,
    sums: Any,
    tile: int,
    decay: Any,
    threshold: Any,
    surrogate: int,
    sharpness: Any,
    reset: Any,
    begin: int,
    end: int,
) -> None:
    """Writes the gradient of the currents to ``out``; recomputes the membranes. With a norm, also adds the gradients of
    its bias and weight to ``sums``."""
    T = g.shape[0]
    u = np.empty((T, tile), np.float32)
    slope, later = np.empty(tile, np.float32), np.empty(tile, np.float32)
    rest, d = np.zeros(tile, np.float32), np.empty(tile, np.float32)
    first, second = np.zeros(tile, np.float32), np.zeros(tile, np.float32)
    shared = x.shape[0] < T
    done = 0
    for low in range(begin, end, tile):
        high = min(low + tile, end)
        m = high - low
        for t in range(T):
            row = x[min(t, x.shape[0] - 1), low:high]
            before = rest[:m] if t == 0 else u[t - 1, :m]
            if scale is None:
                _charge(row, None, None, None, before, u[t, :m], decay, threshold)
            elif residual is None:
                _charge(row, scale[:m], shift[:m], None, before, u[t, :m], decay, threshold)
            else:
                _charge(row, scale[:m], shift[:m], residual[t, low:high], before, u[t, :m], decay, threshold)
        later[:] = np.float32(0)
        for t in range(T - 1, -1, -1):
            if surrogate == 0:
                _triangle(u[t, :m], slope[:m], threshold, sharpness)
            elif surrogate == 1:
                _rectangle(u[t, :m], slope[:m], threshold, sharpness)
            elif surrogate == 2:
                _sigmoid(u[t, :m], slope[:m], threshold, sharpness)
            else:
                _atan(u[t, :m], slope[:m], threshold, sharpness)
            into = d[:m] if shared and t < T - 1 else out[min(t, out.shape[0] - 1), low:high]
            _step_back(g[t, low:high], u[t, :m], slope[:m], later[:m], into, decay, threshold, reset)
            if shared and t < T - 1:
                _add(into, out[0, low:high])
            if mean is not None and not shared:
                _add_products(into, x[t, low:high], mean[:m], inverse[:m], first[:m], second[:m])
                done += 1
        if mean is not None:
            if shared:
                _add_products(out[0, low:high], x[0, low:high], mean[:m], inverse[:m], first[:m], second[:m])
                done += 1
            if done >= TILES_PER_FLUSH:
                _flush(first, second, sums)
                done = 0
    if mean is not None:
        _flush(first, second, sums)


@jit
def _affine(d: Any, x: Any, a: Any, b: Any, c: Any, out: Any) -> None:
    for i in range(d.shape[0]):
        if out is None:
            d[i] = d[i] * a[i] + x[i] * b[i] + c[i]
        else:
            out[i] = d[i] * a[i] + x[i] * b[i] + c[i]


@jit
def combine(d: Any, x: Any, a: Any, b: Any, c: Any, out: Any, begin: int, end: int) -> None:
    """Computes d * a + x * b + c with per-channel constants, the second half of a batch norm's gradient.

    If ``out`` is None, the result overwrites ``d``. Passing ``d`` as ``out`` would prevent vectorisation.
    """
    tile = a.shape[0]
    for t in range(d.shape[0]):
        for low in range(begin, end, tile):
            high = min(low + tile, end)
            m = high - low
            if out is None:
                _affine(d[t, low:high], x[t, low:high], a[:m], b[:m], c[:m], None)
            else:
                _affine(d[t, low:high], x[t, low:high], a[:m], b[:m], c[:m], out[t, low:high])


def tile_of(channels: int) -> int:
    """Tile length in floats: as many whole pixels as fit into ``TILE``, at least one."""
    return channels * max(1, TILE // channels)


def repeat(values: Any, tile: int) -> Array:
    """Per-channel constants repeated over a tile."""
    return np.tile(np.asarray(values, np.float32), tile // len(values))
