"""Means over seeds, and paired differences to a reference with confidence intervals.

Runs with the same seed have the same shards and the same initial weights, so methods are compared seed by seed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any, Literal

from scipy.special import stdtrit

from asfedbridge.core import Column, table_columns
from asfedbridge.runs import ClientSummary, Summary

CONFIDENCE = 0.95
Shards = tuple[tuple[int, str, int, int], ...]


@dataclass(frozen=True)
class Difference:
    """The mean of paired differences and its t interval; a single pair has no interval."""

    mean: float
    low: float | None
    high: float | None
    n: int
    unit: Literal["seeds", "clients"]  # what the interval is taken over

    @property
    def excludes_zero(self) -> bool:
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.mean:+.2f}"
        return f"{self.mean:+.2f} [{self.low:.2f}, {self.high:.2f}]{'*' * self.excludes_zero}"

    def to_table(self) -> dict[str, Any]:
        return {**vars(self), "excludes_zero": self.excludes_zero}


@dataclass(frozen=True)
class Scores:
    """Accuracies of one run in percent, and what identifies its shards."""

    means: Mapping[str, float]  # by group: each kind, "all", and the columns that the method adds
    clients: Mapping[str, Mapping[int, float]] = field(default_factory=dict)  # by group (kinds and "all") and client id
    shards: Shards = ()  # id, kind, training and test images of each client
    partition: str = ""  # digest of the split; runs of early versions have none

    def same_shards(self, other: "Scores") -> bool:
        known = bool(self.partition and other.partition)
        return self.shards == other.shards and (not known or self.partition == other.partition)


def read_scores(summary: Summary, point: str | None = None) -> Scores:
    """A run's accuracies at its method's evaluation point, or at ``point`` (then only for groups)."""
    shards = tuple((c.id, c.kind, c.train, c.test) for c in summary.clients)
    if point is not None:
        return Scores(summary.points.get(point, {}), {}, shards, summary.partition_digest)
    clients: dict[str, dict[int, float]] = {}
    for c in summary.clients:
        if c.accuracy is not None:  # None: never drawn
            for group in (c.kind, "all"):
                clients.setdefault(group, {})[c.id] = c.accuracy
    shared = {key: means["all"] for key, means in summary.added.items() if key in _added() and "all" in means}
    return Scores({**summary.accuracy, **shared}, clients, shards, summary.partition_digest)


def worst_tenth(clients: Iterable[ClientSummary]) -> dict[str, float]:
    """The mean over the least accurate tenth of each group with several clients; a tenth is at least one client."""
    found: dict[str, list[float]] = {}
    for c in clients:
        if c.accuracy is not None:
            for group in (c.kind, "all"):
                found.setdefault(group, []).append(c.accuracy)
    return {g: fmean(sorted(v)[: max(1, round(len(v) / 10))]) for g, v in found.items() if len(v) > 1}


@dataclass(frozen=True)
class Series:
    """Runs of one specification that differ only in seed."""

    runs: Mapping[int, Scores]  # by seed

    @property
    def groups(self) -> list[str]:
        return order_groups(group for scores in self.runs.values() for group in scores.means)

    def values(self, group: str) -> list[float]:
        return [scores.means[group] for scores in self.runs.values() if group in scores.means]

    def mean(self, group: str) -> float | None:
        values = self.values(group)
        return fmean(values) if values else None

    def deviation(self, group: str) -> float | None:
        """Sample standard deviation over seeds."""
        values = self.values(group)
        return stdev(values) if len(values) > 1 else None

    def show(self, group: str) -> str:
        mean, deviation = self.mean(group), self.deviation(group)
        if mean is None:
            return "-"
        return f"{mean:.2f}" if deviation is None else f"{mean:.2f} ± {deviation:.2f}"

    def paired(self, reference: "Series", group: str) -> dict[int, float]:
        """Accuracy minus that of the reference, for each seed that both have on the same shards.

        A shared network is compared with that of the reference or, if it has none, with all its clients.
        """
        found = {}
        for seed, mine in self.runs.items():
            theirs = reference.runs.get(seed)
            if theirs is None or group not in mine.means or not mine.same_shards(theirs):
                continue
            other = "all" if group in _added() and group not in theirs.means else group
            if other in theirs.means:
                found[seed] = mine.means[group] - theirs.means[other]
        return found

    def difference(self, reference: "Series", group: str) -> Difference | None:
        """The paired difference, over seeds if there are several, else over the clients of the only seed."""
        by_seed = self.paired(reference, group)
        if not by_seed:
            return None
        (first, *others) = by_seed
        mine, theirs = (series.runs[first].clients.get(group, {}) for series in (self, reference))
        by_client = [mine[client] - theirs[client] for client in mine if client in theirs]
        if others or not by_client:
            return describe_differences(list(by_seed.values()), "seeds")
        return describe_differences(by_client, "clients")


def describe_differences(values: Sequence[float], unit: Literal["seeds", "clients"]) -> Difference:
    """Mean and t interval of independent differences."""
    mean, n = fmean(values), len(values)
    if n == 1:
        return Difference(mean, None, None, n, unit)
    margin = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * stdev(values) / n**0.5
    return Difference(mean, mean - margin, mean + margin, n, unit)


def order_groups(groups: Iterable[str]) -> list[str]:
    """Kinds by name, then all clients, then shared networks."""
    last = list(_added())
    return sorted(set(groups), key=lambda g: (last.index(g) + 1 if g in last else 0, g == "all", g))


def group_title(group: str) -> str:
    added = _added().get(group)
    return added.title if added else "all" if group == "all" else group.upper()


def _added() -> dict[str, Column]:
    """The columns that methods add to the clients' accuracies and that are averaged over seeds."""
    return {key: column for key, column in table_columns().items() if column.averaged}


def difference_columns(series: Sequence[Series], reference: Series | None, name: str) -> tuple[list[list[str]], str]:
    """Columns of a table, as a head and the cells of each series, and the note below the table.

    The columns hold the difference to the reference for each group of clients and for the fused prediction (against all
    clients of a reference without one), and the unit of the interval. Columns and note are empty without a reference or
    if no run can be paired with it.
    """
    hidden = {key for key, column in _added().items() if not column.compared}
    groups = [g for g in order_groups(g for s in series for g in s.groups) if g not in hidden]
    found = [
        {} if reference is None or s is reference else {g: s.difference(reference, g) for g in groups} for s in series
    ]
    note = explain_differences((row.get("all") for row in found), name)
    if not note:
        return [[] for _ in range(len(series) + 1)], ""
    columns = [[*(f"{group_title(g)} vs {name}" for g in groups), "interval over"]]
    for s, row in zip(series, found, strict=True):
        absent = "" if s is reference else "-"
        overall = row.get("all")
        over = f"{overall.n} {overall.unit}" if overall and overall.low is not None else absent
        columns.append([*(str(row[g]) if row.get(g) else absent for g in groups), over])
    return columns, note


def explain_differences(found: Iterable[Difference | None], name: str) -> str:
    """The note below a table of differences; empty if there are none."""
    units = {one.unit for one in found if one is not None}
    if not units:
        return ""
    words = [f"vs {name}: mean paired difference (same seed, same shards) with a {100 * CONFIDENCE:g} % t interval."]
    if "clients" in units:
        words.append("An interval over clients is of one seed: it says nothing about other seeds.")
    return " ".join([*words, "An asterisk (*) marks an interval that excludes zero."])
