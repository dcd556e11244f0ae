"""Curves of a run over its rounds, from its records."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from asfedbridge.core import MB, Column
from asfedbridge.runs import Record, ordered

Points = list[tuple[float, float]]


@dataclass(frozen=True)
class Curves:
    """Over rounds played: accuracy in percent at the point the method is judged at, and MB since the start."""

    groups: dict[str, Points] = field(default_factory=dict)
    clients: dict[int, Points] = field(default_factory=dict)
    added: dict[str, Points] = field(default_factory=dict)  # mean over clients, by key of the method's column
    traffic: dict[str, Points] = field(default_factory=dict)


def trace(records: Iterable[Record], point: str, rounds: int, columns: Sequence[Column] = ()) -> Curves:
    """Curves of a run. Who did not take part counts with its newest accuracy, as in the summary.

    ``columns``: what the method shows beside the accuracy of the backbones.
    """
    by_round: dict[int, list[Record]] = {}
    for record in records:
        by_round.setdefault(record["round"], []).append(record)
    curves, newest, kinds = Curves(), dict[int, float](), dict[int, str]()
    beside: dict[str, dict[int, float]] = {column.key: {} for column in columns}  # newest, by client
    up = down = 0
    for index, played in sorted(by_round.items()):
        at = float(index + (point == "trained"))  # at `received` nothing of this round has happened yet
        seen = {r["client"]: _percent(r, f"{point}.accuracy") for r in played if f"{point}.accuracy" in r}
        newest |= seen
        kinds |= {r["client"]: r["kind"] for r in played}
        for client, accuracy in seen.items():
            curves.clients.setdefault(client, []).append((at, accuracy))
        if seen:
            values: dict[str, list[float]] = {}
            for client, accuracy in newest.items():
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
        up += sum(r["uplink_bytes"] for r in played)
        down += sum(r["downlink_bytes"] for r in played)
        for direction, total in (("up", up), ("down", down)):
            curves.traffic.setdefault(direction, [(0.0, 0.0)])
            if index >= rounds and len(curves.traffic[direction]) > 1:
                curves.traffic[direction].pop()  # the closing visit ends the last round
            curves.traffic[direction].append((float(min(index + 1, rounds)), total / MB))
    return curves


def _percent(record: Record, name: str) -> float:
    value = record[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 100:
        raise ValueError(f"round {record['round']}, client {record['client']}: {name} must be a number from 0 to 100")
    return float(value)
