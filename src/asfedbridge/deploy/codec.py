"""The content of messages: one flat array per payload, a few plain values about it, and the client's metrics.

Names and shapes are never read from a message: both sides know what the method declares.
"""

import re
from collections.abc import Mapping
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from asfedbridge.core import Codec, GuardError, Payload, Shapes, from_buffer, one_line, to_buffer

KIND = "asfedbridge.flat"  # bytes of `core.flat`, without a header to parse
RECORDS = {"payload": ArrayRecord, "about": ConfigRecord, "metrics": MetricRecord}
METRIC_NAME = re.compile(r"[a-z][a-z0-9_.]{0,63}")
MAX_METRICS = 64
# The range of a reported metric, by the end of its name; all others must fit into a float32, as in the records.
RANGES = {"accuracy": (0.0, 100.0), "fused_weight": (0.0, 1.0), "seconds": (0.0, 1e9)}
FLOAT32 = (-3.4028234663852886e38, 3.4028234663852886e38)
# Keys of a client's record in rounds.jsonl that the server writes and a client must not overwrite.
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
    """The encoded payload, still to be decoded and checked; GuardError for anything that `pack` would not produce."""
    for name, kind in RECORDS.items():
        if type(content.get(name)) is not kind:
            raise GuardError(f"{what}: the message has no record '{name}'")
    if len(content) != len(RECORDS):
        raise GuardError(f"{what}: the message has {len(content)} records, not {len(RECORDS)}")
    record: Any = content["payload"]
    if list(record) != ["flat"] or (record["flat"].stype, record["flat"].dtype) != (KIND, "uint8"):
        raise GuardError(f"{what}: expected one array of {KIND} as the payload")
    payload = from_buffer(record["flat"].data, declared, codec, what)
    return payload, dict(content["about"]), _metrics(content["metrics"], what)


def _metrics(record: Any, what: str) -> dict[str, float]:
    if len(record) > MAX_METRICS:
        raise GuardError(f"{what}: {len(record)} metrics reported, at most {MAX_METRICS} are accepted")
    metrics: dict[str, float] = {}
    for name, value in record.items():
        if not METRIC_NAME.fullmatch(name) or name in OURS:
            raise GuardError(f"{what}: {name[:70]!r} is not a valid name of a metric")
        least, most = next((ends for ending, ends in RANGES.items() if name.endswith(ending)), FLOAT32)
        if type(value) not in (int, float) or not least <= value <= most:  # also refuses NaN
            told = one_line(str(value), 40)
            raise GuardError(f"{what}: metric '{name}' is {told}, expected a number from {least:g} to {most:g}")
        metrics[name] = value
    return metrics


def read_count(about: About, name: str, least: int, most: int, what: str) -> int:
    value = about.get(name)
    if type(value) is not int or not least <= value <= most:
        raise GuardError(f"{what}: {name}={one_line(str(value), 40)} is not a whole number from {least} to {most}")
    return value
