"""Writes scalars and hyper-parameters as TensorBoard event files, without the large tensorboard package.

An event file is a sequence of TFRecords (length, masked CRC-32C of the length, bytes, masked CRC-32C of the bytes);
each record is an ``Event`` protocol buffer.
"""

import math
import struct
import time
from collections.abc import Mapping
from pathlib import Path

from asfedbridge.engines.files import append_through, make_folder, remove_file

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


def _float32(value: float) -> bytes:
    """Values beyond the range of float32 become infinite; ``struct`` would raise an error."""
    try:
        return struct.pack("<f", value)
    except (OverflowError, struct.error):  # for a float or an int
        return struct.pack("<f", math.inf if value > 0 else -math.inf)


def encode_event(wall_time: float, step: int, scalars: Mapping[str, float]) -> bytes:
    """One TFRecord; without scalars, the version record with which every file begins."""
    if not scalars:
        return _encode_record(wall_time, step, _bytes_field(3, b"brain.Event:2"))
    values = [
        _bytes_field(1, _bytes_field(1, tag.encode()) + b"\x15" + _float32(value)) for tag, value in scalars.items()
    ]
    return _encode_record(wall_time, step, _bytes_field(5, b"".join(values)))


def encode_hparams_start(wall_time: float, hparams: Mapping[str, Hparam]) -> bytes:
    """The first record of a session of the HParams plugin: its hyper-parameters (``SessionStartInfo``)."""
    entries = [
        _bytes_field(1, _bytes_field(1, key.encode()) + _bytes_field(2, _encode_hparam(value)))
        for key, value in hparams.items()
    ]
    return _encode_hparams(wall_time, "session_start_info", 3, b"".join(entries) + _double_field(5, wall_time))


def encode_hparams_end(wall_time: float) -> bytes:
    """The last record of a session of the HParams plugin: it succeeded (``SessionEndInfo``)."""
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
    """A new event file in ``folder``; those of earlier starts of the run are removed.

    It is flushed to the disk when it ends: until then it can be written again from the records.
    """

    def __init__(self, folder: Path) -> None:
        make_folder(folder)
        for old in folder.glob("events.out.tfevents.*.asfedbridge"):
            remove_file(old)
        now = time.time()
        self.path = folder / f"events.out.tfevents.{int(now)}.asfedbridge"
        append_through(self.path, encode_event(now, 0, {}))

    def add(self, step: int, scalars: Mapping[str, float]) -> None:
        self._append(encode_event(time.time(), step, scalars))

    def add_hparams(self, hparams: Mapping[str, Hparam]) -> None:
        """For TensorBoard's HPARAMS tab, which compares runs. Call it once, before the first scalars."""
        self._append(encode_hparams_start(time.time(), hparams))

    def end_hparams(self) -> None:
        append_through(self.path, encode_hparams_end(time.time()))

    def _append(self, record: bytes) -> None:
        append_through(self.path, record, flush=False)
