"""Scalars as TensorBoard event files, written directly: the format is small, the tensorboard package is not.

An event file is a sequence of TFRecords (length, masked CRC-32C of the length, bytes, masked CRC-32C of the bytes);
each record is an ``Event`` protocol buffer.
"""

import struct
import time
from collections.abc import Mapping
from pathlib import Path


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)  # the Castagnoli polynomial, reflected
        table.append(byte)
    return table


_TABLE = _crc_table()


def masked_crc(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _bytes_field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def encode_event(wall_time: float, step: int, scalars: Mapping[str, float]) -> bytes:
    """One TFRecord; without scalars it is the version record every file begins with."""
    event = b"\x09" + struct.pack("<d", wall_time) + b"\x10" + _varint(step)
    if scalars:
        values = [
            _bytes_field(1, _bytes_field(1, tag.encode()) + b"\x15" + struct.pack("<f", value))
            for tag, value in scalars.items()
        ]
        event += _bytes_field(5, b"".join(values))
    else:
        event += _bytes_field(3, b"brain.Event:2")
    length = struct.pack("<Q", len(event))
    return length + struct.pack("<I", masked_crc(length)) + event + struct.pack("<I", masked_crc(event))


class EventFile:
    """Appends scalars to a new event file in ``folder``; files of an earlier start are removed."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("events.out.tfevents.*"):
            old.unlink()
        now = time.time()
        self.path = folder / f"events.out.tfevents.{int(now)}.asfedbridge"
        self.path.write_bytes(encode_event(now, 0, {}))

    def add(self, step: int, scalars: Mapping[str, float]) -> None:
        with self.path.open("ab") as file:
            file.write(encode_event(time.time(), step, scalars))
