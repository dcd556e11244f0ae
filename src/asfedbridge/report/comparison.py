"""Compares methods over the runs of any folders: means over seeds, and paired differences to Standalone.

Runs are pooled only if they differ in nothing but seed and method.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from asfedbridge.methods import REFERENCE
from asfedbridge.report.settings import METHOD, Fields, name_changes
from asfedbridge.report.statistics import Scores, Series, difference_columns, group_title, order_groups, read_scores
from asfedbridge.report.tables import Titled, name_data, name_split
from asfedbridge.runs import Summary

Table = dict[str, Any]
IGNORED_FIELDS = (
    "seed",
    "checkpoint_every",
    "keep_checkpoints",
    "snapshot_every",
    "diagnose_every",
    "client_files",
)  # runs that differ in these are pooled
IN_TITLE = ("data", "partition", "alpha", "holdout")


class Entry(NamedTuple):
    """A finished run: its summary and its specification."""

    summary: Summary
    fields: Fields


@dataclass(frozen=True)
class Comparison:
    """Methods on the same data, split and fleet, under the same protocol."""

    title: str
    methods: Mapping[str, Series]  # by row name: the method, and the fields in which its settings differ
    repeated: int = 0  # runs left out because another run has the same method, setting and seed
    stopped: int = 0  # runs that were stopped early
    settings: int = 1  # the largest number of settings of one method

    @property
    def reference(self) -> Series | None:
        return self.methods.get(REFERENCE)

    @property
    def baseline(self) -> str:
        """The row that the others are compared with: Standalone or, in a table without it, the first of several."""
        return REFERENCE if self.reference or len(self.methods) < 2 else next(iter(self.methods))

    def to_titled(self) -> Titled:
        series = list(self.methods.values())
        groups = order_groups(g for s in series for g in s.groups)
        differences, note = difference_columns(series, self.methods.get(self.baseline), self.baseline)
        rows = [["method", *map(group_title, groups), *differences[0], "n"]]
        for (name, s), columns in zip(self.methods.items(), differences[1:], strict=True):
            rows.append([name, *(s.show(g) for g in groups), *columns, str(len(s.runs))])
        notes = ["Mean ± sample standard deviation over n seeds.", note]
        notes += [f"Repeated runs left out: {self.repeated}."] if self.repeated else []
        notes += [f"Runs that were stopped early: {self.stopped}."] if self.stopped else []
        return Titled(self.title, rows, " ".join(filter(None, notes)))

    def to_table(self) -> Table:
        return {
            "title": self.title,
            "reference": self.baseline if self.baseline in self.methods else None,
            "repeated": self.repeated,
            "stopped_early": self.stopped,
            "methods": {name: self._describe(series) for name, series in self.methods.items()},
        }

    def _describe(self, series: Series) -> Table:
        entry: Table = {"seeds": list(series.runs), "mean": {}, "sd": {}, "difference": {}}
        for group in series.groups:
            entry["mean"][group] = series.mean(group)
            entry["sd"][group] = series.deviation(group)
            baseline = self.methods.get(self.baseline)
            if baseline and series is not baseline:
                found = series.difference(baseline, group)
                entry["difference"][group] = found.to_table() if found else None
        return entry


def compare(entries: Sequence[Entry]) -> list[Comparison]:
    """One comparison for each protocol with a method that has several seeds or can be compared with Standalone.

    Without Standalone, runs on the same shards under several protocols are settings of a sweep and share a comparison.
    """
    protocols: dict[str, list[Entry]] = {}
    for entry in entries:
        protocols.setdefault(_protocol(entry), []).append(entry)
    groups: dict[str, list[Entry]] = {}
    for protocol, members in protocols.items():
        alone = any(entry.summary.method == REFERENCE for entry in members)
        apart = alone or not members[0].fields
        groups.setdefault(protocol if apart else repr(_data(members[0].summary)), []).extend(members)
    titles = _titles([members[0] for members in groups.values()])
    found = [_compare(title, members) for title, members in zip(titles, groups.values(), strict=True)]
    return [one for one in found if _is_informative(one)]


def _data(summary: Summary) -> list[tuple[str, Any]]:
    return [(key, summary.get(key)) for key in (*IN_TITLE, "data_fingerprint")]


def _protocol(entry: Entry) -> str:
    """What runs must share to be pooled: the data, and the specification without seed and method."""
    summary = entry.summary
    known = [*_data(summary), ("rounds", summary.rounds)]
    # Clients count only without a specification: those of a method that pools the data are not the fleet's.
    clients = [(c.id, c.kind, c.model, c.width, c.T) for c in summary.clients]
    return repr([known, sorted(_shared(entry).items()) or clients])


def _shared(entry: Entry) -> Fields:
    return {k: v for k, v in entry.fields.items() if k not in IGNORED_FIELDS and not k.startswith(METHOD)}


def _setting(entry: Entry) -> Fields:
    """All fields in which a row may differ from the others of its method."""
    return {k: v for k, v in sorted(entry.fields.items()) if k not in (*IGNORED_FIELDS, *IN_TITLE)}


def _titles(firsts: Sequence[Entry]) -> list[str]:
    """Data, split and the other fields in which protocols differ."""
    changes = name_changes([{k: v for k, v in _shared(e).items() if k not in IN_TITLE} for e in firsts])
    titles = []
    for entry, change in zip(firsts, changes, strict=True):
        titles.append(", ".join(filter(None, (name_data(entry.summary), name_split(entry.summary), change))))
    counts = Counter(titles)
    return [
        f"{title}, data {entry.summary.data_fingerprint or 'unknown':.8}" if counts[title] > 1 else title
        for title, entry in zip(titles, firsts, strict=True)
    ]


def _compare(title: str, entries: Sequence[Entry]) -> Comparison:
    """One row for each method, or for each setting of a method that occurs with several."""
    settings: dict[str, dict[str, list[Entry]]] = {}
    for entry in entries:
        settings.setdefault(entry.summary.method, {}).setdefault(repr(_setting(entry)), []).append(entry)
    methods: dict[str, Series] = {}
    for method, found in settings.items():
        changes = name_changes([_setting(members[0]) for members in found.values()])
        for change, members in zip(changes, found.values(), strict=True):
            runs: dict[int, Scores] = {}
            for entry in members:
                runs.setdefault(entry.summary.seed, read_scores(entry.summary))
            name = f"{method} ({change})" if change else method
            methods[name if name not in methods else f"{name} #{len(methods)}"] = Series(runs)
    repeated = len(entries) - sum(len(series.runs) for series in methods.values())
    return Comparison(
        title,
        methods,
        repeated,
        sum(entry.summary.stopped_early is not None for entry in entries),
        max(map(len, settings.values())),
    )


def _is_informative(one: Comparison) -> bool:
    series, reference = one.methods.values(), one.reference
    paired = reference and any(s is not reference and s.paired(reference, "all") for s in series)
    return bool(paired) or one.settings > 1 or any(len(s.runs) > 1 for s in series)


def comparison_records(compared: Sequence[Comparison]) -> list[list[str]]:
    """A table for programs: one row for each comparison, method and group of clients."""
    head = ["comparison", "method", "clients", "mean", "sd", "seeds", "baseline"]
    rows = [[*head, "difference", "low", "high", "n", "unit"]]
    for one in compared:
        table = one.to_table()
        for name, entry in table["methods"].items():
            for group, mean in entry["mean"].items():
                found = entry["difference"].get(group) or {}
                values = [mean, entry["sd"][group], len(entry["seeds"]), table["reference"] if found else None]
                values += [found.get(key) for key in ("mean", "low", "high", "n", "unit")]
                rows.append([one.title, name, group, *("" if value is None else str(value) for value in values)])
    return rows
