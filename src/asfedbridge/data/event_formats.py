"""Recordings of event cameras: when and where a pixel saw the light change, and which way.

AEDAT-2.0 (DVS128, CIFAR10-DVS): lines of text that begin with `#`, the first `#!AER-DAT2.0`; then for each event a
big-endian 32-bit address and a 32-bit time in microseconds. Of a DVS128's address bit 0 is the polarity, bits 1 to 7
are x, bits 8 to 14 y; bit 15 marks what is no pixel (a signal at the camera's input pins).

N-MNIST: 40 bits for each event, big-endian: x (8), y (8), polarity (1), time in microseconds (23).
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from asfedbridge.core.errors import BadInput

AEDAT2 = b"#!AER-DAT2.0"
DVS128_SIDE, NMNIST_SIDE = 128, 34
NO_PIXEL, OTHER_CAMERA = 0x8000, 0xFFFF0000
WRAP = 1 << 32


@dataclass(frozen=True, eq=False)
class Events:
    """One recording, in the order of the file. Origin as in the file; polarity 1 is as the file has it."""

    x: np.ndarray
    y: np.ndarray
    p: np.ndarray
    t: np.ndarray  # microseconds

    def __len__(self) -> int:
        return len(self.x)


def read_aedat2(path: Path) -> Events:
    """The pixel events of a DVS128. Times that ran over 32 bits go on; smaller steps back are left as they are."""
    content = _content(path)
    if not content.startswith(AEDAT2):
        begins = content.split(b"\n", 1)[0][:20].strip()
        raise BadInput(f"{path}: begins with {begins!r}, not {AEDAT2.decode()!r}: give an AEDAT-2.0 recording")
    begin = 0
    while content.startswith(b"#", begin):
        end = content.find(b"\n", begin)
        if end < 0:
            raise BadInput(f"{path}: ends within its header: copy the recording again")
        begin = end + 1
    if (len(content) - begin) % 8:
        raise BadInput(f"{path}: cut off in the middle of an event: copy the recording again")
    address, stamp = np.frombuffer(content, ">u4", offset=begin).astype(np.int64).reshape(-1, 2).T
    if (address & OTHER_CAMERA).any():
        raise BadInput(f"{path}: addresses of more than 16 bits, which a DVS128 does not have: record with a DVS128")
    time = stamp + WRAP * np.cumsum(np.diff(stamp, prepend=stamp[:1]) < -WRAP // 2)
    pixel = (address & NO_PIXEL) == 0
    address, time = address[pixel], time[pixel]
    return _some(path, Events((address & 0xFE) >> 1, (address & 0x7F00) >> 8, address & 1, time))


def read_cifar10_dvs(path: Path) -> Events:
    """A recording of CIFAR10-DVS as its picture stood on the monitor, row y from the top, ON events as polarity 1.

    The camera's axes are mirrored and exchanged against the picture's, and its polarity bit is 0 where light grew (jAER
    reads it so). Recordings are published without a word on it; this is how SpikingJelly turns them.
    """
    raw = read_aedat2(path)
    last = DVS128_SIDE - 1
    return Events(last - raw.y, last - raw.x, 1 - raw.p, raw.t)


def read_nmnist(path: Path) -> Events:
    content = _content(path)
    if len(content) % 5:
        raise BadInput(f"{path}: {len(content)} bytes are no multiple of 5, cut off in an event: copy it again")
    bytes_ = np.frombuffer(content, np.uint8).reshape(-1, 5).astype(np.int64)
    x, y, high, middle, low = bytes_.T
    events = _some(path, Events(x, y, high >> 7, (high & 0x7F) << 16 | middle << 8 | low))
    if max(x.max(), y.max()) >= NMNIST_SIDE:
        raise BadInput(f"{path}: an event at x={x.max()}, y={y.max()} of {NMNIST_SIDE}x{NMNIST_SIDE}: copy it again")
    return events


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror}): copy the recording again") from error


def _some(path: Path, events: Events) -> Events:
    if not len(events):
        raise BadInput(f"{path}: holds no event: copy the recording again or remove it")
    return events
