"""Converts event recordings to T frames. A frame counts the events of one interval per pixel and polarity.

An example is stored as uint8 [T * 2, H, W] with channel 2 t + polarity. Code for images (augmentation, partition,
Bridge, ANN stems) treats it as an image with many channels; an SNN unfolds the time steps.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from asfedbridge.core.errors import BadInput
from asfedbridge.data.event_formats import Events

By = Literal["count", "time"]
MAX_COUNT = 255  # higher counts are clipped
BATCH_COUNTS = 1 << 23  # counts computed together; limits temporary memory
MAX_NAMES = 5  # damaged items listed by name in a note; the others are counted
SQUARES = torch.arange(256) ** 2


@dataclass(frozen=True)
class Framing:
    """How recordings are converted to frames. Ignored for static images."""

    steps: int = 10
    by: By = "count"


def frame_numbers(t: np.ndarray, framing: Framing) -> np.ndarray:
    """The frame of each event of one recording.

    By count: n // T events per frame, and the last frame also gets the remainder. If there are fewer events than
    frames, each event has its own frame. By time: intervals of equal length from the first to the last timestamp.
    """
    steps = framing.steps
    if framing.by == "count":
        each = max(1, len(t) // steps)
        return np.minimum(np.arange(len(t)) // each, steps - 1)
    since = t - t.min(initial=np.iinfo(np.int64).max)
    frame: np.ndarray = since * steps // (int(since.max(initial=0)) + 1)
    return frame


def frames_of(events: Events, side: int, size: int, framing: Framing) -> np.ndarray:
    """Frames [T * 2, size, size] of one recording of a ``side`` x ``side`` sensor. A smaller ``size`` adds up
    counts."""
    cell = _cells(events, side, size, frame_numbers(events.t, framing))
    return _counts(cell, (framing.steps * 2, size, size))


def frames_of_all(events: Events, offsets: np.ndarray, side: int, size: int, framing: Framing) -> np.ndarray:
    """Frames of several concatenated recordings. Recording k has the events ``offsets[k]:offsets[k + 1]``."""
    steps = framing.steps
    out = np.empty((len(offsets) - 1, steps * 2, size, size), np.uint8)
    batch = max(1, BATCH_COUNTS // out[0].size)
    for first in range(0, len(out), batch):
        edges = offsets[first : first + batch + 1]
        part = slice(edges[0], edges[-1])
        some = Events(*(array[part].astype(np.int64) for array in (events.x, events.y, events.p, events.t)))
        bounds = zip(edges - edges[0], edges[1:] - edges[0], strict=False)
        numbers = [frame_numbers(some.t[a:b], framing) + k * steps for k, (a, b) in enumerate(bounds)]
        cell = _cells(some, side, size, np.concatenate(numbers))
        out[first : first + batch] = _counts(cell, (len(edges) - 1, steps * 2, size, size))
    return out


def check_size(what: str, size: int, side: int) -> int:
    """Rejects frames larger than the sensor."""
    if size > side:
        raise BadInput(f"image_size={size}: {what} has a sensor of {side}x{side}; give at most that, or 0")
    return size


def scale(x_train: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation for ``Dataset``. The mean is 0, so that pixels without events stay 0. The standard
    deviation is the root mean square of the training frames, the same for all channels because an SNN uses one stem for
    all frames."""
    total = sum(int(torch.bincount(part.reshape(-1), minlength=256).dot(SQUARES)) for part in x_train.split(256))
    root = (total / x_train.numel()) ** 0.5 or 1.0
    channels = x_train.shape[1]
    return (0.0,) * channels, (root / 255,) * channels


def left_out(name: str, items: list[str]) -> tuple[str, ...]:
    if not items:
        return ()
    more = f" and {len(items) - MAX_NAMES} more" if len(items) > MAX_NAMES else ""
    return (f"{name}: omitted damaged items: {', '.join(items[:MAX_NAMES])}{more}",)


def _cells(events: Events, side: int, size: int, frame: np.ndarray) -> np.ndarray:
    """The index of each event's counter in the flattened frames."""
    row, column = events.y * size // side, events.x * size // side
    cell: np.ndarray = ((frame * 2 + events.p) * size + row) * size + column
    return cell


def _counts(cell: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    counts = np.bincount(cell, minlength=int(np.prod(shape)))
    return np.minimum(counts, MAX_COUNT).astype(np.uint8).reshape(shape)
