"""Recordings written byte by byte, as their format is defined."""

import struct
from pathlib import Path

import numpy as np
import pytest

from asfedbridge.core.errors import BadInput
from asfedbridge.data.event_formats import Events, read_aedat2, read_cifar10_dvs, read_nmnist

HEADER = b"#!AER-DAT2.0\r\n# This is a raw AE data file\r\n# x = # y\r\n"
SEEN = [(0, 0, 0, 7), (127, 0, 1, 8), (0, 127, 0, 8), (3, 64, 1, 1000), (127, 127, 1, 2**32 - 1)]  # x, y, p, t


def aedat(events: list[tuple[int, int, int, int]], header: bytes = HEADER) -> bytes:
    return header + b"".join(struct.pack(">II", y << 8 | x << 1 | p, t) for x, y, p, t in events)


def nmnist(events: list[tuple[int, int, int, int]]) -> bytes:
    return b"".join(bytes([x, y]) + (p << 23 | t).to_bytes(3, "big") for x, y, p, t in events)


def listed(events: Events) -> list[tuple[int, ...]]:
    return list(zip(*(a.tolist() for a in (events.x, events.y, events.p, events.t)), strict=True))


def save(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "recording"
    path.write_bytes(content)
    return path


def check_rejected(path: Path, read: object, *words: str) -> None:
    with pytest.raises(BadInput) as caught:
        read(path)  # type: ignore[operator]
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"{path}: ")
    assert all(word in message for word in words)


def test_aedat_reads_every_event(tmp_path: Path) -> None:
    assert listed(read_aedat2(save(tmp_path, aedat(SEEN)))) == SEEN
    one_line = aedat(SEEN, b"#!AER-DAT2.0\n")
    assert listed(read_aedat2(save(tmp_path, one_line))) == SEEN


def test_event_that_looks_like_a_header_line(tmp_path: Path) -> None:
    """The reader checks only the first byte of a line, and no DVS128 address starts with '#'."""
    odd = [(17, 35, 1, 0x23232323), (5, 10, 0, 0x230A0A23)]
    assert listed(read_aedat2(save(tmp_path, aedat(odd)))) == odd


def test_aedat_omits_events_that_are_not_from_a_pixel(tmp_path: Path) -> None:
    trigger = struct.pack(">II", 0x8000 | 5 << 8 | 3, 9)
    content = aedat(SEEN[:2]) + trigger + aedat(SEEN[2:], b"")
    assert listed(read_aedat2(save(tmp_path, content))) == SEEN


def test_aedat_unwraps_timestamps(tmp_path: Path) -> None:
    stamps = [2**32 - 2, 2**32 - 1, 0, 5, 4, 2**32 - 9, 3]  # the step back by 1 is kept; the last one wraps again
    events = read_aedat2(save(tmp_path, aedat([(1, 2, 0, t) for t in stamps])))
    wrap = 2**32
    assert events.t.tolist() == [wrap - 2, wrap - 1, wrap, wrap + 5, wrap + 4, 2 * wrap - 9, 2 * wrap + 3]


def test_damaged_aedat_files_are_rejected(tmp_path: Path) -> None:
    for cut in (1, 4, 7):
        check_rejected(save(tmp_path, aedat(SEEN)[:-cut]), read_aedat2, "ends in the middle of an event")
    check_rejected(save(tmp_path, HEADER), read_aedat2, "no event")
    check_rejected(save(tmp_path, HEADER + b"# no end"), read_aedat2, "ends in the header")
    check_rejected(save(tmp_path, b""), read_aedat2, "b''", "AEDAT-2.0")
    check_rejected(save(tmp_path, aedat(SEEN, b"#!AER-DAT3.1\r\n")), read_aedat2, "#!AER-DAT3.1", "AEDAT-2.0")
    check_rejected(save(tmp_path, aedat(SEEN, b"")), read_aedat2, "AEDAT-2.0")
    check_rejected(save(tmp_path, HEADER + struct.pack(">II", 0x10000, 5)), read_aedat2, "more than 16 bits")
    check_rejected(tmp_path / "nowhere", read_aedat2, "no such file")


def test_cifar10_dvs_orientation_and_polarity(tmp_path: Path) -> None:
    """Rows are the camera's x and columns its y, both reversed; polarity bit 0 is ON."""
    found = listed(read_cifar10_dvs(save(tmp_path, aedat([(0, 0, 0, 1), (127, 0, 1, 2), (10, 100, 1, 3)]))))
    assert found == [(127, 127, 1, 1), (127, 0, 0, 2), (27, 117, 0, 3)]


def test_nmnist_reads_every_event(tmp_path: Path) -> None:
    seen = [(0, 0, 0, 0), (33, 0, 1, 255), (0, 33, 0, 256), (7, 9, 1, 65535), (1, 2, 0, 65536), (33, 33, 1, 2**23 - 1)]
    assert listed(read_nmnist(save(tmp_path, nmnist(seen)))) == seen


def test_damaged_nmnist_files_are_rejected(tmp_path: Path) -> None:
    good = nmnist([(1, 2, 0, 5), (3, 4, 1, 6)])
    for cut in (1, 2, 3, 4):
        check_rejected(save(tmp_path, good[:-cut]), read_nmnist, f"{10 - cut} bytes", "not a multiple of 5")
    check_rejected(save(tmp_path, b""), read_nmnist, "no event")
    check_rejected(save(tmp_path, good + nmnist([(34, 0, 0, 7)])), read_nmnist, "x=34", "34x34")
    check_rejected(save(tmp_path, good + nmnist([(0, 34, 0, 7)])), read_nmnist, "y=34", "34x34")
    check_rejected(tmp_path / "nowhere", read_nmnist, "no such file")


def test_many_events(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    (x, y), p = rng.integers(0, 128, (2, 5000)).tolist(), rng.integers(0, 2, 5000).tolist()
    seen = list(zip(x, y, p, range(5000), strict=True))
    assert listed(read_aedat2(save(tmp_path, aedat(seen)))) == seen
