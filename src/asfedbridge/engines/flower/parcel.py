"""What crosses the network: one flat array for a payload, a few plain values about it, and the numbers of a client.

Names and shapes are never read from a message. Both sides know what the method declares; a message brings the numbers,
and for methods that may send a part of it one bit for each declared tensor.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from asfedbridge.core.payload import GuardError, Payload, Shapes

KIND = "asfedbridge.float32"  # little-endian numbers and nothing else: no header that would have to be parsed
RECORDS = {"payload": ArrayRecord, "about": ConfigRecord, "metrics": MetricRecord}
METRIC_NAME = re.compile(r"[a-z][a-z0-9_.]{0,63}")
MOST_METRICS = 64
# Of a client's record in rounds.jsonl: what a client reports must not overwrite what the server knows.
OURS = {"round", "client", "kind", "model", "width", "downlink_bytes", "uplink_bytes", "event", "reason"}
About = Mapping[str, Any]


def pack(payload: Payload, declared: Shapes, about: About, metrics: Mapping[str, float] | None = None) -> RecordDict:
    names = [name for name in declared if name in payload]
    flat = [np.ascontiguousarray(payload[name].numpy(), "<f4").reshape(-1) for name in names]
    data = np.concatenate(flat).tobytes() if flat else b""
    array = Array(dtype="float32", shape=(len(data) // 4,), stype=KIND, data=data)
    present = _to_bits([name in payload for name in declared])
    content = RecordDict({"payload": ArrayRecord({"flat": array})})
    content["about"] = ConfigRecord({**about, "present": present})
    content["metrics"] = MetricRecord(dict(metrics or {}))
    return content


def unpack(content: RecordDict, declared: Shapes, partial: bool, what: str) -> tuple[Payload, About, dict[str, float]]:
    """GuardError for everything that `pack` would not have made; whether numbers are finite is the guard's affair."""
    for name, kind in RECORDS.items():
        if type(content.get(name)) is not kind:
            raise GuardError(f"{what}: the message has no record '{name}'")
    if len(content) != len(RECORDS):
        raise GuardError(f"{what}: the message has {len(content)} records, not {len(RECORDS)}")
    about: dict[str, Any] = dict(content["about"])
    present = _from_bits(about.pop("present", None), len(declared), what)
    if not (partial or all(present)):
        raise GuardError(f"{what}: some of what was declared is missing")
    shapes = {name: shape for (name, shape), there in zip(declared.items(), present, strict=True) if there}
    return _cut(_numbers(content["payload"], shapes, what), shapes), about, _metrics(content["metrics"], what)


def _numbers(record: Any, shapes: Shapes, what: str) -> np.ndarray:
    if list(record) != ["flat"]:
        raise GuardError(f"{what}: a payload is one array")
    array, count = record["flat"], sum(math.prod(shape) for shape in shapes.values())
    if (array.stype, array.dtype) != (KIND, "float32"):
        raise GuardError(f"{what}: a payload is {KIND}, not {str(array.stype)[:40]}")
    if len(array.data) != 4 * count:
        raise GuardError(f"{what}: {len(array.data)} bytes, {4 * count} were declared")
    return np.frombuffer(array.data, "<f4").astype(np.float32)  # a copy: what comes from outside is read-only


def _cut(flat: np.ndarray, shapes: Shapes) -> Payload:
    payload: Payload = {}
    start = 0
    for name, shape in shapes.items():
        end = start + math.prod(shape)
        payload[name] = torch.from_numpy(flat[start:end].copy()).reshape(shape)
        start = end
    return payload


def _metrics(record: Any, what: str) -> dict[str, float]:
    if len(record) > MOST_METRICS:
        raise GuardError(f"{what}: {len(record)} numbers reported, at most {MOST_METRICS} are taken")
    metrics: dict[str, float] = {}
    for name, value in record.items():
        if not METRIC_NAME.fullmatch(name) or name in OURS:
            raise GuardError(f"{what}: {name[:70]!r} is no name for a number that a client reports")
        if type(value) not in (int, float) or not math.isfinite(value):
            raise GuardError(f"{what}: '{name}' is reported as {str(value)[:40]}, not as a finite number")
        metrics[name] = value
    return metrics


def _to_bits(flags: list[bool]) -> bytes:
    return np.packbits(np.array(flags, bool)).tobytes()


def _from_bits(content: Any, count: int, what: str) -> list[bool]:
    if type(content) is not bytes or len(content) != -(-count // 8):
        raise GuardError(f"{what}: it does not say which tensors it brings")
    flags = np.unpackbits(np.frombuffer(content, np.uint8)).astype(bool)
    if flags[count:].any():
        raise GuardError(f"{what}: it brings tensors that were not declared")
    return [bool(flag) for flag in flags[:count]]


def read_count(about: About, name: str, least: int, most: int, what: str) -> int:
    value = about.get(name)
    if type(value) is not int or not least <= value <= most:
        raise GuardError(f"{what}: {name}={str(value)[:40]} is not a whole number from {least} to {most}")
    return value
