"""Curves of a run over its rounds, from its records."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev
from typing import NamedTuple

from asfedbridge.core import MB, Column
from asfedbridge.runs import Record, ordered

Points = list[tuple[float, float]]
MAX_LOSS = 100.0  # a diverged client has a loss of any size; curves are cut here
MAX_TERMS = 24  # of the training loss; clients behind a network choose the names that they report
JUDGED = ("received.", "trained.")  # prefixes of the entries that evaluations add to a record


class Mean(NamedTuple):
    """A point of a curve over seeds."""

    x: float
    y: float
    deviation: float  # sample standard deviation; 0 for a single run


@dataclass(frozen=True)
class Curves:
    """Curves over rounds: accuracy in percent at the method's evaluation point, losses and costs."""

    groups: dict[str, Points] = field(default_factory=dict)
    clients: dict[int, Points] = field(default_factory=dict)
    added: dict[str, Points] = field(default_factory=dict)  # mean over clients, by key of the method's column
    losses: dict[str, Points] = field(default_factory=dict)  # on test images, by group, at the same point
    terms: dict[str, Points] = field(default_factory=dict)  # of the training loss, mean over clients
    traffic: dict[str, Points] = field(default_factory=dict)  # MB since the start
    megabytes: dict[float, float] = field(default_factory=dict)  # sent and received until an evaluation, by its round
    minutes: dict[float, float] = field(
        default_factory=dict
    )  # minutes of work of all clients until an evaluation, by its round


def average(curves: Sequence[Points]) -> list[Mean]:
    """The mean of several runs' curves, at the x that all of them have."""
    tables = [dict(curve) for curve in curves]
    shared = sorted(set.intersection(*(set(table) for table in tables))) if tables else []
    found = []
    for x in shared:
        ys = [table[x] for table in tables]
        found.append(Mean(x, fmean(ys), stdev(ys) if len(ys) > 1 else 0.0))
    return found


def trace(records: Iterable[Record], point: str, rounds: int, columns: Sequence[Column] = ()) -> Curves:
    """Curves of a run. A client that did not take part counts with its latest accuracy, as in the summary.

    ``columns``: the accuracies that the method reports beside those of the backbones.
    """
    by_round: dict[int, list[Record]] = {}
    for record in records:
        by_round.setdefault(record["round"], []).append(record)
    curves, latest, kinds = Curves(), dict[int, float](), dict[int, str]()
    beside: dict[str, dict[int, float]] = {column.key: {} for column in columns}  # latest, by client
    reports: Counter[str] = Counter()  # of terms
    up = down = 0
    seconds = 0.0
    for index, played in sorted(by_round.items()):
        at = float(index + (point == "trained"))  # `received` is evaluated before the training of the round
        seen = {r["client"]: _percent(r, f"{point}.accuracy") for r in played if f"{point}.accuracy" in r}
        latest |= seen
        kinds |= {r["client"]: r["kind"] for r in played}
        for client, accuracy in seen.items():
            curves.clients.setdefault(client, []).append((at, accuracy))
        if seen:
            values: dict[str, list[float]] = {}
            for client, accuracy in latest.items():
                for group in (kinds[client], "all"):
                    values.setdefault(group, []).append(accuracy)
            for group, accuracies in ordered({g: sum(v) / len(v) for g, v in values.items()}).items():
                curves.groups.setdefault(group, []).append((at, accuracies))
        for column in columns:
            where = column.point or point
            name = f"{where}.{column.predictor}_accuracy"
            found = {r["client"]: _percent(r, name) for r in played if name in r}
            if found:
                known = beside[column.key]
                known |= found
                x = float(index + (where == "trained"))
                curves.added.setdefault(column.key, []).append((x, sum(known.values()) / len(known)))
        for group, losses in _by_group(played, f"{point}.loss").items():
            curves.losses.setdefault(group, []).append((at, _cut(losses)))
        for name in sorted({name for r in played for name in r if _is_term(name, r[name])}):
            amounts = [float(r[name]) for r in played if name in r]
            curves.terms.setdefault(name, []).append((float(index + 1), _cut(amounts)))
            reports[name] += len(amounts)
        sent, worked = sum(r["uplink_bytes"] for r in played), sum(float(r.get("seconds", 0.0)) for r in played)
        down += sum(r["downlink_bytes"] for r in played)
        if point == "received":  # evaluated before the work of the round
            curves.megabytes[at], curves.minutes[at] = (up + down) / MB, seconds / 60
        up, seconds = up + sent, seconds + worked
        if point != "received":
            curves.megabytes[at], curves.minutes[at] = (up + down) / MB, seconds / 60
        for direction, total in (("up", up), ("down", down)):
            curves.traffic.setdefault(direction, [(0.0, 0.0)])
            if index >= rounds and len(curves.traffic[direction]) > 1:
                curves.traffic[direction].pop()  # the closing visit counts towards the last round
            curves.traffic[direction].append((float(min(index + 1, rounds)), total / MB))
    shown = {name for name, _ in reports.most_common(MAX_TERMS)}
    return replace(curves, terms={name: points for name, points in curves.terms.items() if name in shown})


def _cut(losses: Sequence[float]) -> float:
    """The mean of losses, each within the bounds of a curve."""
    return fmean(min(max(loss, -MAX_LOSS), MAX_LOSS) for loss in losses)


def _by_group(records: Sequence[Record], name: str) -> dict[str, list[float]]:
    """The values of an entry by kind of client."""
    found: dict[str, list[float]] = {}
    for record in records:
        if name in record:
            found.setdefault(record["kind"], []).append(float(record[name]))
    return dict(sorted(found.items()))


def _is_term(name: str, value: object) -> bool:
    """Whether an entry of a record is a term of the training loss, such as extract.kd."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and "." in name and not name.startswith(JUDGED)


def _percent(record: Record, name: str) -> float:
    value = record[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 100:
        raise ValueError(f"round {record['round']}, client {record['client']}: {name} must be a number from 0 to 100")
    return float(value)
