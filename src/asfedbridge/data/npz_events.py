"""Sets of event recordings in one NumPy archive: `npz:PATH` with flat arrays.

x, y, p, t of all events, one recording after the other: number k is offsets[k]:offsets[k + 1]; labels and split
("train", "test") of each recording. Optional: classes (names), sensor_size (width, height), client (the client of each
recording, for partition=assigned).
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from asfedbridge.core.errors import BadInput
from asfedbridge.data.dataset import Dataset, assemble, check_shape
from asfedbridge.data.decode_cache import refusal
from asfedbridge.data.event_formats import Events
from asfedbridge.data.event_frames import Framing, check_size, frames_of_all, left_out, scale
from asfedbridge.data.npz import class_names, labels, read_arrays, with_clients

KEYS = ("x", "y", "p", "t", "offsets", "labels", "split")
LIMITS = {"x": 2**16, "y": 2**16, "t": 2**53}  # pixels, microseconds: beyond them arithmetic would overflow


def holds_events(path: Path) -> bool:
    """Whether an archive looks like one of recordings; whatever else is wrong with it is found when it is read."""
    try:
        with path.open("rb") as file:
            return {"t", "offsets"} <= set(np.load(file, allow_pickle=False).files)
    except Exception:  # also a single array, which has no names
        return False


def load_npz_events(name: str, path: Path, image_size: int, framing: Framing, skip_damaged: bool) -> Dataset:
    arrays = read_arrays(path, KEYS, ("classes", "sensor_size", "client"))
    return frame_arrays(name, str(path), arrays, image_size, framing, skip_damaged)


def frame_arrays(
    name: str, where: str, arrays: Mapping[str, np.ndarray], image_size: int, framing: Framing, skip_damaged: bool
) -> Dataset:
    """The frames of recordings in memory; ``where`` is where they come from, for messages."""
    events, offsets = _checked_events(where, arrays)
    y, split = labels(where, "labels", arrays["labels"]), arrays["split"]
    if len(y) != len(offsets) - 1 or len(y) != len(split):
        counts = f"{len(offsets) - 1} recordings, {len(y)} labels, {len(split)} entries of split"
        raise BadInput(f"{where}: {counts}: store one label and one split for each recording")
    halves = [split == half if split.dtype.kind == "U" else split == half.encode() for half in ("train", "test")]
    if split.dtype.kind not in "US" or not (halves[0] | halves[1]).all():
        raise BadInput(f"{where}: split must be 'train' or 'test' for each recording")
    side = _sensor(where, events, arrays.get("sensor_size"))
    size = check_size(name, image_size or side, side)
    check_shape(f"{where}: frames", size, size)  # before there are any
    empty = np.flatnonzero(np.diff(offsets) == 0)
    if len(empty) and not skip_damaged:
        raise refusal(f"{where}: recording {empty[0]} holds no event", len(empty))
    rows = torch.from_numpy(frames_of_all(events, offsets, side, size, framing))
    good = np.diff(offsets) > 0
    train, test = ((rows[half], y[half]) for half in (torch.from_numpy(half & good) for half in halves))
    for half, (_, own) in (("train", train), ("test", test)):
        if not len(own):
            raise BadInput(f"{where}: split has no '{half}' recording: store some of either")
    classes = class_names(where, arrays.get("classes"), train[1], test[1])
    data = assemble(name, train, test, classes, "crop", 0, scale(train[0]))
    if "client" in arrays:
        client = arrays["client"]
        if client.shape != (len(y),):
            raise BadInput(f"{where}: client has shape {client.shape}: store one for each of {len(y)} recordings")
        data = with_clients(where, data, *(client[half & good] for half in halves))
    return replace(data, frames=framing.steps, notes=left_out(name, [f"recording {k}" for k in empty]))


def _checked_events(where: str, arrays: Mapping[str, np.ndarray]) -> tuple[Events, np.ndarray]:
    x, y, p, t, offsets = (arrays[key] for key in KEYS[:5])
    for key, array in zip(KEYS, (x, y, p, t, offsets), strict=False):
        if array.dtype.kind not in "iub" or array.ndim != 1:
            raise BadInput(
                f"{where}: {key} is {array.dtype} of shape {array.shape}: store whole numbers, one per event"
            )
        if array.size == 0 or array.min() < 0:
            raise BadInput(f"{where}: {key} is empty or holds negative numbers: write the file again")
        if key in LIMITS and array.max() >= LIMITS[key]:
            raise BadInput(f"{where}: {key} holds {array.max()}, which no camera has: write the file again")
    if not len(x) == len(y) == len(p) == len(t):
        raise BadInput(
            f"{where}: x, y, p, t have {len(x)}, {len(y)}, {len(p)}, {len(t)} events: store all four of each"
        )
    if p.max() > 1:
        raise BadInput(f"{where}: p holds the polarity {p.max()}: store 0 and 1")
    offsets = offsets.astype(np.int64)
    if offsets[0] != 0 or offsets[-1] != len(x) or (np.diff(offsets) < 0).any():
        raise BadInput(f"{where}: offsets must rise from 0 to the number of events, {len(x)}")
    return Events(x, y, p, t), offsets


def _sensor(where: str, events: Events, given: np.ndarray | None) -> int:
    used = int(max(events.x.max(), events.y.max())) + 1
    if given is None:
        return used
    if given.ndim != 1 or len(given) < 2 or given.dtype.kind not in "iu" or given[0] != given[1] or given[0] < used:
        raise BadInput(
            f"{where}: sensor_size is {given.tolist()} and events reach {used - 1}: store a square that fits"
        )
    return int(given[0])
