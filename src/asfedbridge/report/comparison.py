"""Methods compared over the runs of any folders: means over seeds, and paired differences to Standalone.

Runs are pooled only where they differ in nothing but seed and method.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from asfedbridge.core import METHODS
from asfedbridge.methods import REFERENCE
from asfedbridge.report.settings import METHOD, Fields, name_changes
from asfedbridge.report.statistics import Scores, Series, difference_columns, group_title, order_groups, read_scores
from asfedbridge.report.tables import Titled, name_data, name_split
from asfedbridge.runs import Summary, later_fields

Table = dict[str, Any]
ASIDE = ("seed", "checkpoint_every", "snapshot_every", "diagnose_every")  # runs that differ in these are pooled
IN_TITLE = ("data", "partition", "alpha", "holdout")


class Entry(NamedTuple):
    """A finished run: its summary and its specification."""

    summary: Summary
    fields: Fields


@dataclass(frozen=True)
class Comparison:
    """Methods on the same data, split and fleet, under the same protocol."""

    title: str
    methods: Mapping[str, Series]  # by method, with the fields in which its settings differ
    repeated: int = 0  # runs left out because they have the method, setting and seed of another

    @property
    def reference(self) -> Series | None:
        return self.methods.get(REFERENCE)

    def to_titled(self) -> Titled:
        series = list(self.methods.values())
        groups = order_groups(g for s in series for g in s.groups)
        differences, note = difference_columns(series, self.reference, REFERENCE)
        rows = [["method", *map(group_title, groups), *differences[0], "n"]]
        for (name, s), columns in zip(self.methods.items(), differences[1:], strict=True):
            rows.append([name, *(s.show(g) for g in groups), *columns, str(len(s.runs))])
        notes = ["Mean ± sample standard deviation over n seeds.", note]
        notes += [f"Repeated runs left out: {self.repeated}."] if self.repeated else []
        return Titled(self.title, rows, " ".join(filter(None, notes)))

    def to_table(self) -> Table:
        return {
            "title": self.title,
            "reference": REFERENCE if self.reference else None,
            "repeated": self.repeated,
            "methods": {name: self._describe(series) for name, series in self.methods.items()},
        }

    def _describe(self, series: Series) -> Table:
        entry: Table = {"seeds": list(series.runs), "mean": {}, "sd": {}, "difference": {}}
        for group in series.groups:
            entry["mean"][group] = series.mean(group)
            entry["sd"][group] = series.deviation(group)
            if self.reference and series is not self.reference:
                found = series.difference(self.reference, group)
                entry["difference"][group] = found.to_table() if found else None
        return entry


def compare(entries: Sequence[Entry]) -> list[Comparison]:
    """A comparison for each protocol that has a method with several seeds, or one to be compared with Standalone."""
    protocols: dict[str, list[Entry]] = {}
    for entry in entries:
        protocols.setdefault(_protocol(entry), []).append(entry)
    titles = _titles([members[0] for members in protocols.values()])
    found = [_compare(title, members) for title, members in zip(titles, protocols.values(), strict=True)]
    return [one for one in found if _says_something(one)]


def _protocol(entry: Entry) -> str:
    """What runs must share to be pooled: the specification without seed and method, and the data themselves."""
    summary = entry.summary
    known = [(key, summary.get(key)) for key in (*IN_TITLE, "rounds", "data_fingerprint")]
    # Only a run without a specification is known by its clients: where data are pooled they are not the fleet's.
    clients = [(c.id, c.kind, c.model, c.width, c.T) for c in summary.clients]
    return repr([known, sorted(_shared(entry).items()) or clients])


def _complete(fields: Fields) -> Fields:
    """With the default values of fields that the run's version did not know yet."""
    cls = METHODS.get(str(fields.get("method.name")))
    return {**later_fields(cls), **fields} if fields else {}


def _shared(entry: Entry) -> Fields:
    return {k: v for k, v in _complete(entry.fields).items() if k not in ASIDE and not k.startswith(METHOD)}


def _own(entry: Entry) -> Fields:
    """The fields of the run's method."""
    return {k: v for k, v in sorted(_complete(entry.fields).items()) if k.startswith(METHOD)}


def _titles(firsts: Sequence[Entry]) -> list[str]:
    """Data and split, and what else sets protocols apart."""
    changes = name_changes([{k: v for k, v in _shared(e).items() if k not in IN_TITLE} for e in firsts])
    titles = []
    for entry, change in zip(firsts, changes, strict=True):
        titles.append(", ".join(filter(None, (name_data(entry.summary), name_split(entry.summary), change))))
    alike = Counter(titles)
    return [
        f"{title}, data {entry.summary.data_fingerprint or 'unknown':.8}" if alike[title] > 1 else title
        for title, entry in zip(titles, firsts, strict=True)
    ]


def _compare(title: str, entries: Sequence[Entry]) -> Comparison:
    """Every method is a row; one that occurs with several settings is a row for each."""
    settings: dict[str, dict[str, list[Entry]]] = {}
    for entry in entries:
        settings.setdefault(entry.summary.method, {}).setdefault(repr(_own(entry)), []).append(entry)
    methods: dict[str, Series] = {}
    for method, found in settings.items():
        changes = name_changes([_own(members[0]) for members in found.values()])
        for change, members in zip(changes, found.values(), strict=True):
            runs: dict[int, Scores] = {}
            for entry in members:
                runs.setdefault(entry.summary.seed, read_scores(entry.summary))
            name = f"{method} ({change})" if change else method
            methods[name if name not in methods else f"{name} #{len(methods)}"] = Series(runs)
    repeated = len(entries) - sum(len(series.runs) for series in methods.values())
    return Comparison(title, methods, repeated)


def _says_something(one: Comparison) -> bool:
    series, reference = one.methods.values(), one.reference
    paired = reference and any(s is not reference and s.paired(reference, "all") for s in series)
    return bool(paired) or any(len(s.runs) > 1 for s in series)
