"""File formats of event-camera recordings. An event is a change of brightness: pixel, polarity and time.

AEDAT-2.0 (DVS128, CIFAR10-DVS): header lines that start with `#`, the first one `#!AER-DAT2.0`; then, for each event, a
32-bit address and a 32-bit time in microseconds, both big-endian. In a DVS128 address, bit 0 is the polarity, bits 1 to
7 are x and bits 8 to 14 are y. Bit 15 marks events that are not from a pixel (signals at the camera's input pins).

N-MNIST: 40 bits per event, big-endian: x (8), y (8), polarity (1), time in microseconds (23).
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from asfedbridge.core.errors import BadInput
from asfedbridge.core.reading import read_bytes

AEDAT2 = b"#!AER-DAT2.0"
DVS128_SIDE, NMNIST_SIDE = 128, 34
NON_PIXEL_BIT, UNUSED_BITS = 0x8000, 0xFFFF0000  # of a DVS128 address
TIME_RANGE = 1 << 32  # microseconds after which the clock wraps around
MAX_BYTES = 64 << 20  # per recording; eight million events, whose arrays take a gigabyte


@dataclass(frozen=True, eq=False)
class Events:
    """One recording, in file order. Readers define the origin and the meaning of polarity 1."""

    x: np.ndarray
    y: np.ndarray
    p: np.ndarray
    t: np.ndarray  # microseconds

    def __len__(self) -> int:
        return len(self.x)


def read_aedat2(path: Path) -> Events:
    """Reads the pixel events of a DVS128. Unwraps 32-bit timestamps; smaller steps backwards are not changed."""
    content = _content(path)
    if not content.startswith(AEDAT2):
        start = content.split(b"\n", 1)[0][:20].strip()
        raise BadInput(f"{path}: starts with {start!r}, not {AEDAT2.decode()!r}: give an AEDAT-2.0 recording")
    begin = 0
    while content.startswith(b"#", begin):
        end = content.find(b"\n", begin)
        if end < 0:
            raise BadInput(f"{path}: ends in the header: copy the recording again")
        begin = end + 1
    if (len(content) - begin) % 8:
        raise BadInput(f"{path}: ends in the middle of an event: copy the recording again")
    address, stamp = np.frombuffer(content, ">u4", offset=begin).astype(np.int64).reshape(-1, 2).T
    if (address & UNUSED_BITS).any():
        raise BadInput(f"{path}: has addresses of more than 16 bits: give a recording of a DVS128 camera")
    time = stamp + TIME_RANGE * np.cumsum(np.diff(stamp, prepend=stamp[:1]) < -TIME_RANGE // 2)
    pixel = (address & NON_PIXEL_BIT) == 0
    address, time = address[pixel], time[pixel]
    return _some(path, Events((address & 0xFE) >> 1, (address & 0x7F00) >> 8, address & 1, time))


def read_cifar10_dvs(path: Path) -> Events:
    """Reads a recording of CIFAR10-DVS in the orientation of its image: y counts rows from the top, polarity 1 is ON.

    The camera's axes are mirrored and swapped relative to the image, and its polarity bit is 0 for increasing
    brightness (as in jAER). The publication does not document this; SpikingJelly uses the same conversion.
    """
    raw = read_aedat2(path)
    last = DVS128_SIDE - 1
    return Events(last - raw.y, last - raw.x, 1 - raw.p, raw.t)


def read_nmnist(path: Path) -> Events:
    content = _content(path)
    if len(content) % 5:
        raise BadInput(f"{path}: has {len(content)} bytes, not a multiple of 5 per event: copy the recording again")
    bytes_ = np.frombuffer(content, np.uint8).reshape(-1, 5).astype(np.int64)
    x, y, high, middle, low = bytes_.T
    events = _some(path, Events(x, y, high >> 7, (high & 0x7F) << 16 | middle << 8 | low))
    if max(x.max(), y.max()) >= NMNIST_SIDE:
        raise BadInput(
            f"{path}: has events up to x={x.max()}, y={y.max()}, outside the sensor of {NMNIST_SIDE}x{NMNIST_SIDE} "
            "pixels: copy the recording again"
        )
    return events


def _content(path: Path) -> bytes:
    return read_bytes(path, MAX_BYTES, "copy the recording again")


def _some(path: Path, events: Events) -> Events:
    if not len(events):
        raise BadInput(f"{path}: contains no events: copy the recording again or remove it")
    return events
