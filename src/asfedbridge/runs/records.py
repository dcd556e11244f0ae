"""Records, one per client and round, and means over them."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from asfedbridge.core import payload
from asfedbridge.core.method import Method
from asfedbridge.core.task import ClientInfo, Point, Round, Upload
from asfedbridge.engines.failures import Event
from asfedbridge.runs.json_table import Entries

Record = Mapping[str, Any]
LARGEST_FLOAT = sys.float_info.max
IDENTITY = ("round", "client", "width")  # numbers that identify a record


@dataclass(frozen=True, eq=False)
class RoundRecord(Entries):
    """One client in one round; the closing visit has the index after the last round.

    Also a mapping of the entries of its line in ``rounds.jsonl``: ``record["trained.accuracy"]``.
    """

    round: int
    client: int
    kind: str
    uplink_bytes: int
    downlink_bytes: int
    entries: Mapping[str, Any] = field(repr=False)  # the whole line

    @property
    def metrics(self) -> dict[str, float]:
        """The numbers that the round produced: losses, accuracies, bytes, seconds."""
        return client_scalars(self.entries)


@dataclass(frozen=True, eq=False)
class EventRecord(Entries):
    """An event of a client behind a network: a line of ``rounds.jsonl``."""

    round: int
    event: str  # absent, lost, refused, returned ...
    client: int | None  # None: a node that is not a client of this run, or the round itself (void)
    reason: str
    entries: Mapping[str, Any] = field(repr=False)  # the whole line

    @property
    def subject(self) -> str:
        """The client, node or round of the event, in words."""
        if self.client is not None:
            return f"client {self.client}"
        return "the round" if self.event == "void" else "a node"


def parse_record(entries: Mapping[str, Any]) -> RoundRecord:
    """A record from its line; ValueError names an invalid entry."""
    kinds = {"round": int, "client": int, "kind": str, "uplink_bytes": int, "downlink_bytes": int}
    found = {"uplink_bytes": 0, "downlink_bytes": 0} | {k: entries[k] for k in kinds if k in entries}
    for name, kind in kinds.items():
        value = found.get(name)
        if type(value) is not kind or (isinstance(value, int) and not 0 <= value < 2**63):
            raise ValueError(f"{name} must be {'text' if kind is str else 'a whole number'}")
    for name, value in entries.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if name.endswith((".accuracy", ".loss")) and not number:
            raise ValueError(f"{name[:40]} must be a number")
        if number and not -LARGEST_FLOAT <= value <= LARGEST_FLOAT:
            raise ValueError(f"{name[:40]} must be a finite number")
    return RoundRecord(**found, entries=entries)


def make_records(
    rnd: Round, clients: Sequence[ClientInfo], sent: Mapping[int, int], ups: Mapping[int, Upload]
) -> list[RoundRecord]:
    """The records of all participants of a round; ``sent``: bytes of their downloads."""
    return [
        parse_record(
            {
                "round": rnd.index,
                "client": c.id,
                "kind": c.kind,
                "model": c.model,
                "width": c.width,
                "downlink_bytes": sent[c.id],
                "uplink_bytes": payload.size_in_bytes(ups[c.id].payload),
                **ups[c.id].metrics,
            }
        )
        for c in clients
    ]


def parse_event(entries: Mapping[str, Any]) -> EventRecord:
    """An event from its line; ValueError names an invalid entry."""
    kinds: dict[str, Any] = {"round": int, "event": str, "client": int | None, "reason": str}
    found: dict[str, Any] = {name: entries.get(name) for name in kinds}
    for name, kind in kinds.items():
        if isinstance(found[name], bool) or not isinstance(found[name], kind):
            raise ValueError(f"{name} must be {'text' if kind is str else 'a whole number'}")
    return EventRecord(**found, entries=entries)


def event_records(rnd: Round, events: Iterable[Event]) -> list[EventRecord]:
    """Events as lines of ``rounds.jsonl``, which ``folder.read_rounds`` skips."""
    return [parse_event({"round": rnd.index, "event": e.what, "client": e.client, "reason": e.reason}) for e in events]


def client_scalars(record: Record) -> dict[str, float]:
    """The numbers that a client's round produced: losses, accuracies, bytes, seconds."""
    return {k: float(v) for k, v in record.items() if isinstance(v, int | float) and k not in IDENTITY}


def group_means(records: Iterable[Record]) -> dict[str, dict[str, float]]:
    """For each number of a round: its mean over the clients of each kind, and over all."""
    values: dict[str, dict[str, list[float]]] = {}
    for record in records:
        for key, value in client_scalars(record).items():
            for group in (record["kind"], "all"):
                values.setdefault(key, {}).setdefault(group, []).append(value)
    return {key: {g: sum(v) / len(v) for g, v in groups.items()} for key, groups in values.items()}


def accuracy_at(records: Sequence[Record], point: Point, name: str = "accuracy") -> dict[str, float]:
    """Group means of the latest accuracy of every client at ``point``."""
    latest = {r["client"]: r for r in records if f"{point}.{name}" in r}
    return group_means(latest.values()).get(f"{point}.{name}", {})


def accuracies_after(records: Sequence[Record], played: int) -> dict[Point, dict[str, float]]:
    """Accuracies after ``played`` rounds: of the clients trained in the last one, and of their aggregate.

    An aggregate is received and evaluated in the next round.
    """
    rounds: dict[Point, int] = {"trained": played - 1, "received": played}
    return {
        point: ordered(accuracy_at([r for r in records if r["round"] == index], point))
        for point, index in rounds.items()
    }


def summarise(
    method: Method, clients: Sequence[ClientInfo], records: Sequence[Record], extra: Mapping[str, Any]
) -> dict[str, Any]:
    """The content of summary.json, which ``parse_summary`` reads.

    Accuracies are the latest of every client, at the method's evaluation point.
    """
    point = method.reports
    key = f"{point}.accuracy"
    latest = {r["client"]: r for r in records if key in r}
    by_round: dict[int, list[Record]] = {}
    for r in records:
        if key in r:
            by_round.setdefault(r["round"], []).append(r)
    # Only rounds that evaluated every client can be the best: a mean over some of them could be higher by chance.
    full = {i: group_means(rs)[key] for i, rs in by_round.items() if len(rs) == len(clients)}
    best = max(full, key=lambda i: (full[i]["all"], -i)) if full else None
    beside = {c.key: accuracy_at(records, c.point or point, f"{c.predictor}_accuracy") for c in method.columns()}
    return {
        **extra,
        "point": point,
        "accuracy": ordered(accuracy_at(records, point)),
        "points": {p: ordered(means) for p in get_args(Point) if (means := accuracy_at(records, p))},
        "best": None if best is None else {"round": best, **ordered(full[best])},
        **{name: ordered(means) for name, means in beside.items() if means},
        "clients": [
            {
                "id": c.id,
                "kind": c.kind,
                "model": c.model,
                "width": c.width,
                "T": c.T,
                "bits": c.bits,
                "accuracy": latest[c.id][key] if c.id in latest else None,  # never drawn
                "train": c.train_size,
                "test": c.test_size,
            }
            for c in clients
        ],
        "payload_mb": max((r["uplink_bytes"] for r in records), default=0) / payload.MB,
        "uplink_bytes": sum(r["uplink_bytes"] for r in records),
        "downlink_bytes": sum(r["downlink_bytes"] for r in records),
    }


def ordered(means: Mapping[str, float]) -> dict[str, float]:
    """Kinds in alphabetical order, then ``all``."""
    return {group: means[group] for group in sorted(means, key=lambda g: (g == "all", g))}
