"""Tiles, and sums over tiles."""

import numpy as np
import pytest

from asfedbridge.kernels import lif as kernels


@pytest.mark.parametrize("channels", [1, 3, 16, 20, 130, 1023, 1024, 1025, 1500])
def test_a_tile_holds_whole_pixels(channels: int) -> None:
    tile = kernels.tile_of(channels)
    assert tile % channels == 0
    assert tile == channels or tile <= kernels.TILE
    values = np.arange(channels, dtype=np.float32)
    assert np.array_equal(kernels.repeat(values, tile), np.arange(tile) % channels)


@pytest.mark.parametrize(("channels", "pixels", "steps"), [(1, 1500, 2), (20, 53, 1), (20, 3500, 1), (1500, 40, 2)])
def test_moments_over_many_tiles(channels: int, pixels: int, steps: int) -> None:
    """Several flushes and a partial last tile: every value is counted exactly once."""
    x = np.random.default_rng(0).normal(1000, 1, (steps, pixels * channels)).astype(np.float32)
    tile = kernels.tile_of(channels)
    centre = kernels.repeat(x[0, :channels], tile)
    sums = np.zeros((2, channels))
    kernels.moments(x, centre, sums, 0, tile)
    kernels.moments(x, centre, sums, tile, x.shape[1])
    d = (x.astype(np.float64).reshape(-1, channels)) - centre[:channels]
    scale = (d**2).sum(axis=0)
    assert np.all(np.abs(sums[0] - d.sum(axis=0)) < 1e-6 * np.abs(d).sum(axis=0))
    assert np.all(np.abs(sums[1] - scale) < 2e-6 * scale)
