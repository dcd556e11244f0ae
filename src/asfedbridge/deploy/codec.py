"""What crosses the network: one flat array for a payload, a few plain values about it, and the numbers of a client.

Names and shapes are never read from a message: both sides know what the method declares.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from asfedbridge.core import Codec, GuardError, Payload, Shapes, from_buffer, to_buffer
from asfedbridge.deploy.messages import one_line

KIND = "asfedbridge.flat"  # bytes of `core.flat`: no header that would have to be parsed
RECORDS = {"payload": ArrayRecord, "about": ConfigRecord, "metrics": MetricRecord}
METRIC_NAME = re.compile(r"[a-z][a-z0-9_.]{0,63}")
MOST_METRICS = 64
# Of a client's record in rounds.jsonl: what a client reports must not overwrite what the server knows.
OURS = {"round", "client", "kind", "model", "width", "downlink_bytes", "uplink_bytes", "event", "reason"}
About = Mapping[str, Any]


def pack(payload: Payload, declared: Shapes, about: About, metrics: Mapping[str, float] | None = None) -> RecordDict:
    data = to_buffer(payload, declared)
    array = Array(dtype="uint8", shape=(len(data),), stype=KIND, data=data)
    content = RecordDict({"payload": ArrayRecord({"flat": array})})
    content["about"] = ConfigRecord(dict(about))
    content["metrics"] = MetricRecord(dict(metrics or {}))
    return content


def unpack(content: RecordDict, declared: Shapes, codec: Codec, what: str) -> tuple[Payload, About, dict[str, float]]:
    """The payload as it travels, to be decoded past the guard; GuardError for everything that `pack` would not make."""
    for name, kind in RECORDS.items():
        if type(content.get(name)) is not kind:
            raise GuardError(f"{what}: the message has no record '{name}'")
    if len(content) != len(RECORDS):
        raise GuardError(f"{what}: the message has {len(content)} records, not {len(RECORDS)}")
    record: Any = content["payload"]
    if list(record) != ["flat"] or (record["flat"].stype, record["flat"].dtype) != (KIND, "uint8"):
        raise GuardError(f"{what}: a payload is one array of {KIND}")
    payload = from_buffer(record["flat"].data, declared, codec, what)
    return payload, dict(content["about"]), _metrics(content["metrics"], what)


def _metrics(record: Any, what: str) -> dict[str, float]:
    if len(record) > MOST_METRICS:
        raise GuardError(f"{what}: {len(record)} numbers reported, at most {MOST_METRICS} are taken")
    metrics: dict[str, float] = {}
    for name, value in record.items():
        if not METRIC_NAME.fullmatch(name) or name in OURS:
            raise GuardError(f"{what}: {name[:70]!r} is no name for a number that a client reports")
        if type(value) not in (int, float) or not math.isfinite(value):
            raise GuardError(f"{what}: '{name}' is reported as {one_line(str(value), 40)}, not as a finite number")
        metrics[name] = value
    return metrics


def read_count(about: About, name: str, least: int, most: int, what: str) -> int:
    value = about.get(name)
    if type(value) is not int or not least <= value <= most:
        raise GuardError(f"{what}: {name}={one_line(str(value), 40)} is not a whole number from {least} to {most}")
    return value
