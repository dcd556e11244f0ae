"""Scalars and hyper-parameters as TensorBoard event files, written directly: the format is small, the tensorboard
package is not.

An event file is a sequence of TFRecords (length, masked CRC-32C of the length, bytes, masked CRC-32C of the bytes);
each record is an ``Event`` protocol buffer.
"""

import struct
import time
from collections.abc import Mapping
from pathlib import Path

Hparam = str | float | bool
EMPTY_TENSOR = b"\x08\x01\x12\x02\x12\x00"  # TensorProto: float32, shape (0,)


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


def _double_field(number: int, value: float) -> bytes:
    return _varint(number << 3 | 1) + struct.pack("<d", value)


def encode_event(wall_time: float, step: int, scalars: Mapping[str, float]) -> bytes:
    """One TFRecord; without scalars it is the version record every file begins with."""
    if not scalars:
        return _encode_record(wall_time, step, _bytes_field(3, b"brain.Event:2"))
    values = [
        _bytes_field(1, _bytes_field(1, tag.encode()) + b"\x15" + struct.pack("<f", value))
        for tag, value in scalars.items()
    ]
    return _encode_record(wall_time, step, _bytes_field(5, b"".join(values)))


def encode_hparams_start(wall_time: float, hparams: Mapping[str, Hparam]) -> bytes:
    """The record of the HParams plugin that a session begins with: its hyper-parameters (``SessionStartInfo``)."""
    entries = [
        _bytes_field(1, _bytes_field(1, key.encode()) + _bytes_field(2, _encode_hparam(value)))
        for key, value in hparams.items()
    ]
    return _encode_hparams(wall_time, "session_start_info", 3, b"".join(entries) + _double_field(5, wall_time))


def encode_hparams_end(wall_time: float) -> bytes:
    """The record of the HParams plugin that a session ends with: it succeeded (``SessionEndInfo``)."""
    return _encode_hparams(wall_time, "session_end_info", 4, b"\x08\x01" + _double_field(2, wall_time))


def _encode_hparams(wall_time: float, name: str, field: int, content: bytes) -> bytes:
    data = _bytes_field(field, content)  # HParamsPluginData; its version, 0, is left out
    metadata = _bytes_field(1, _bytes_field(1, b"hparams") + _bytes_field(2, data))
    value = _bytes_field(1, f"_hparams_/{name}".encode()) + _bytes_field(9, metadata) + _bytes_field(8, EMPTY_TENSOR)
    return _encode_record(wall_time, 0, _bytes_field(5, _bytes_field(1, value)))


def _encode_hparam(value: Hparam) -> bytes:
    """A ``google.protobuf.Value``."""
    if isinstance(value, bool):
        return bytes([4 << 3, value])
    return _bytes_field(3, value.encode()) if isinstance(value, str) else _double_field(2, value)


def _encode_record(wall_time: float, step: int, content: bytes) -> bytes:
    event = _double_field(1, wall_time) + b"\x10" + _varint(step) + content
    length = struct.pack("<Q", len(event))
    return length + struct.pack("<I", masked_crc(length)) + event + struct.pack("<I", masked_crc(event))


class EventFile:
    """Appends to a new event file in ``folder``; files of an earlier start are removed."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("events.out.tfevents.*"):
            old.unlink()
        now = time.time()
        self.path = folder / f"events.out.tfevents.{int(now)}.asfedbridge"
        self.path.write_bytes(encode_event(now, 0, {}))

    def add(self, step: int, scalars: Mapping[str, float]) -> None:
        self._append(encode_event(time.time(), step, scalars))

    def add_hparams(self, hparams: Mapping[str, Hparam]) -> None:
        """For TensorBoard's HPARAMS tab, which compares runs; call it once, before the first scalars."""
        self._append(encode_hparams_start(time.time(), hparams))

    def end_hparams(self) -> None:
        self._append(encode_hparams_end(time.time()))

    def _append(self, record: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(record)
