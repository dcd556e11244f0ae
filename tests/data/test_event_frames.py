import numpy as np
import pytest
import torch

from asfedbridge.core.errors import BadInput
from asfedbridge.data.event_formats import Events
from asfedbridge.data.event_frames import By, Framing, check_size, frames_of, frames_of_all, scale


def recording(count: int, seed: int = 0, side: int = 34) -> Events:
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, side, (2, count))
    return Events(x, y, rng.integers(0, 2, count), np.sort(rng.integers(500, 5000, count)))


def counted(events: Events, side: int, size: int, T: int, by: By) -> np.ndarray:
    """A plain loop over the events."""
    out = np.zeros((T * 2, size, size), np.int64)
    n, first, last = len(events), int(min(events.t)), int(max(events.t))
    for k in range(n):
        if by == "count":
            frame = k if n < T else min(k // (n // T), T - 1)
        else:
            frame = int((int(events.t[k]) - first) * T / (last - first + 1))
        row, column = int(events.y[k] * size / side), int(events.x[k] * size / side)
        out[frame * 2 + events.p[k], row, column] += 1
    return np.minimum(out, 255).astype(np.uint8)


@pytest.mark.parametrize("by", ["count", "time"])
@pytest.mark.parametrize(
    ("count", "side", "size", "T"),
    [(1000, 34, 34, 10), (997, 34, 17, 10), (500, 128, 48, 4), (3, 34, 34, 5), (1, 8, 8, 3), (7, 8, 8, 1)],
)
def test_frames_match_a_plain_loop(count: int, side: int, size: int, T: int, by: By) -> None:
    events = recording(count, side=side)
    found = frames_of(events, side, size, Framing(T, by))
    assert found.dtype == np.uint8
    assert np.array_equal(found, counted(events, side, size, T, by))
    assert found.sum() == count


@pytest.mark.parametrize("by", ["count", "time"])
def test_frames_of_all_matches_frames_of(by: By, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asfedbridge.data.event_frames.BATCH_COUNTS", 3 * 4 * 8 * 8)  # three at a time
    sizes = [5, 300, 0, 2, 77, 40, 1, 9]
    parts = [recording(n, seed, side=16) for seed, n in enumerate(sizes)]
    small = (np.uint8, np.uint8, np.uint8, np.uint32)  # the types of archives; sums must not overflow
    flat = Events(
        *(np.concatenate([getattr(p, a) for p in parts]).astype(kind) for a, kind in zip("xypt", small, strict=True))
    )
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    found = frames_of_all(flat, offsets, 16, 8, Framing(2, by))
    for k, part in enumerate(parts):
        expected = counted(part, 16, 8, 2, by) if sizes[k] else np.zeros((4, 8, 8))
        assert np.array_equal(found[k], expected)


def test_counts_are_clipped_at_255() -> None:
    same = np.zeros(600, np.int64)
    found = frames_of(Events(same, same, same, same), 8, 8, Framing(2))
    assert found[0, 0, 0] == found[2, 0, 0] == 255
    assert found.sum() == 2 * 255


def test_unsorted_timestamps_by_time() -> None:
    zero = np.zeros(4, np.int64)
    found = frames_of(Events(zero, zero, zero, np.array([10, 19, 12, 17])), 8, 8, Framing(2, "time"))
    assert found[0::2, 0, 0].tolist() == [2, 2]


def test_scale_keeps_zero_and_gives_mean_square_one() -> None:
    x = torch.from_numpy(np.stack([frames_of(recording(900, s), 34, 34, Framing(3)) for s in range(4)]))
    mean, std = scale(x)
    assert mean == (0.0,) * 6
    assert len(set(std)) == 1
    seen = (x / 255 - torch.tensor(mean).view(-1, 1, 1)) / torch.tensor(std).view(-1, 1, 1)
    assert seen.square().mean().item() == pytest.approx(1.0, rel=1e-5)
    assert torch.equal(seen == 0, x == 0)
    assert scale(torch.zeros(2, 4, 8, 8, dtype=torch.uint8))[1][0] > 0


def test_frames_larger_than_the_sensor() -> None:
    assert check_size("set", 34, 34) == 34
    with pytest.raises(BadInput, match=r"image_size=35: set has a sensor of 34x34"):
        check_size("set", 35, 34)
