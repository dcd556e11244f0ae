"""Data sets of event recordings in one NumPy archive: `npz:PATH` with flat arrays.

x, y, p and t of all events, one recording after the other; recording k is offsets[k]:offsets[k + 1]. labels and split
("train" or "test") have one entry per recording. Optional: classes (names), sensor_size (width, height), client (the
client of each recording, for partition=assigned).
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
from asfedbridge.data.memory import check_bytes, check_memory
from asfedbridge.data.npz import class_names, labels, with_clients
from asfedbridge.data.npz_archive import npz_names, open_npz

KEYS = ("x", "y", "p", "t", "offsets", "labels", "split")
EVENT_BYTES = 64  # memory per event during the conversion to frames: eight int64 arrays
BOUNDS = {"x": 2**16, "y": 2**16, "t": 2**53}  # pixels, microseconds; larger values would overflow


def holds_events(path: Path) -> bool:
    """True if the archive contains event recordings. Other errors are found when it is read."""
    return {"t", "offsets"} <= npz_names(path)


def load_npz_events(name: str, path: Path, image_size: int, framing: Framing, skip_damaged: bool) -> Dataset:
    with open_npz(path, KEYS, ("classes", "sensor_size", "client")) as archive:
        check_events(str(path), archive.declared)
        arrays = archive.read_all()
    return frame_arrays(name, str(path), arrays, image_size, framing, skip_damaged)


def frame_arrays(
    name: str, where: str, arrays: Mapping[str, np.ndarray], image_size: int, framing: Framing, skip_damaged: bool
) -> Dataset:
    """Converts recordings in memory to a data set of frames. Error messages start with ``where``."""
    events, offsets = _checked_events(where, arrays)
    y, split = labels(where, "labels", arrays["labels"]), arrays["split"]
    if len(y) != len(offsets) - 1 or len(y) != len(split):
        counts = f"{len(offsets) - 1} recordings, {len(y)} labels, {len(split)} entries of split"
        raise BadInput(f"{where}: {counts}: store one label and one split for each recording")
    halves = [split == half if split.dtype.kind == "U" else split == half.encode() for half in ("train", "test")]
    if split.dtype.kind not in "US" or not (halves[0] | halves[1]).all():
        raise BadInput(f"{where}: split contains other values: store 'train' or 'test' for each recording")
    side = _sensor(where, events, arrays.get("sensor_size"))
    size = check_size(name, image_size or side, side)
    check_shape(f"{where}: frames", size, size)  # before the frames are made
    check_memory(where, len(y), 2 * framing.steps, size, "lower image_size or T")
    longest = int(np.diff(offsets).max())
    check_bytes(f"{where}: a recording of {longest} events", longest * EVENT_BYTES, "split the recording")
    empty = np.flatnonzero(np.diff(offsets) == 0)
    if len(empty) and not skip_damaged:
        raise refusal(f"{where}: recording {empty[0]} contains no events", len(empty))
    rows = torch.from_numpy(frames_of_all(events, offsets, side, size, framing))
    good = np.diff(offsets) > 0
    train, test = ((rows[half], y[half]) for half in (torch.from_numpy(half & good) for half in halves))
    for half, (_, own) in (("train", train), ("test", test)):
        if not len(own):
            raise BadInput(f"{where}: split has no '{half}' recording: store at least one of each")
    classes = class_names(where, arrays.get("classes"), train[1], test[1])
    data = assemble(name, train, test, classes, "crop", 0, scale(train[0]))
    if "client" in arrays:
        client = arrays["client"]
        if client.shape != (len(y),):
            raise BadInput(f"{where}: client has shape {client.shape}: store one for each of {len(y)} recordings")
        data = with_clients(where, data, *(client[half & good] for half in halves))
    return replace(data, frames=framing.steps, notes=left_out(name, [f"recording {k}" for k in empty]))


def check_events(where: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Checks types and shapes, not values."""
    for key in [key for key in KEYS[:5] if key in arrays]:
        array = arrays[key]
        if array.dtype.kind not in "iub" or array.ndim != 1:
            raise BadInput(f"{where}: {key} is {array.dtype} of shape {array.shape}: store integers in one dimension")
    counts = [len(arrays[key]) for key in ("x", "y", "p", "t")]
    if len(set(counts)) > 1:
        raise BadInput(f"{where}: x, y, p, t have {', '.join(map(str, counts))} entries: store one of each per event")


def check_values(where: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Checks that values are in the range of a camera."""
    for key, array in arrays.items():
        if array.size == 0 or array.min() < 0:
            raise BadInput(f"{where}: {key} is empty or contains negative numbers: write the file again")
        if key in BOUNDS and array.max() >= BOUNDS[key]:
            raise BadInput(f"{where}: {key} contains {array.max()}: store values below {BOUNDS[key]}")
    if arrays["p"].max() > 1:
        raise BadInput(f"{where}: p contains the polarity {arrays['p'].max()}: store 0 and 1")


def _checked_events(where: str, arrays: Mapping[str, np.ndarray]) -> tuple[Events, np.ndarray]:
    check_events(where, arrays)
    x, y, p, t, offsets = (arrays[key] for key in KEYS[:5])
    check_values(where, {key: arrays[key] for key in KEYS[:5]})
    offsets = offsets.astype(np.int64)
    if offsets[0] != 0 or offsets[-1] != len(x) or (np.diff(offsets) < 0).any():
        raise BadInput(
            f"{where}: offsets are invalid: store increasing numbers from 0 to the number of events, {len(x)}"
        )
    return Events(x, y, p, t), offsets


def _sensor(where: str, events: Events, given: np.ndarray | None) -> int:
    used = int(max(events.x.max(), events.y.max())) + 1
    if given is None:
        return used
    if given.ndim != 1 or len(given) < 2 or given.dtype.kind not in "iu" or given[0] != given[1] or given[0] < used:
        raise BadInput(
            f"{where}: sensor_size is {given.tolist()}: store two equal integers, at least {used} to include all events"
        )
    return int(given[0])
