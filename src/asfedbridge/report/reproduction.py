"""The table of an experiment, the paper's values beside ours: Markdown, CSV and LaTeX."""

import csv
import io
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from asfedbridge.experiments.catalogue import Cell, Experiment
from asfedbridge.experiments.reproduce import job_of
from asfedbridge.report.tables import Rows, decimals, render_markdown

MANY = 4  # more columns than this are laid side by side, with the mean over all clients only
REFERENCES = ("standalone", "complete")  # rows that the others of their table are compared with, seed by seed
BRIDGE = "bridge"  # beside the groups of clients: what is shared, with each client's own head


@dataclass(frozen=True)
class Result:
    """A cell after its runs: accuracies by group of clients, then by finished seed."""

    cell: Cell
    accuracies: Mapping[str, Mapping[int, float]]
    failure: str = ""

    @property
    def count(self) -> int:
        return len(self._values("all"))

    def _values(self, group: str) -> list[float]:
        return list(self.accuracies.get(group, {}).values())

    def mean(self, group: str) -> float | None:
        values = self._values(group)
        return statistics.fmean(values) if values else None

    def spread(self, group: str) -> float | None:
        """Sample standard deviation over seeds."""
        values = self._values(group)
        return statistics.stdev(values) if len(values) > 1 else None

    def shown(self, group: str) -> str:
        if self.failure and group == "all" and not self.count:
            return "failed"
        return _with_spread(self._values(group), ".2f")

    def gains(self, reference: "Result", group: str = "all") -> list[float]:
        """By how much it is ahead, on each seed that both have: the shards are the same, so their luck cancels.

        None where data are pooled, which is judged on other images. A Bridge is compared with the reference's own;
        where that has none, with its clients.
        """
        if self.cell.spec.method.pools_data:
            return []
        other = reference.accuracies.get(group) or reference.accuracies.get("all" if group == BRIDGE else group, {})
        mine = self.accuracies.get(group, {})
        return [mine[seed] - other[seed] for seed in mine if seed in other]

    def difference(self, group: str) -> float | None:
        mean, reported = self.mean(group), self.cell.reported.get(group)
        return None if mean is None or reported is None else mean - reported


def collect(cells: Sequence[Cell], seeds: Sequence[int], out: Path, failures: Mapping[Path, str]) -> list[Result]:
    results = []
    for cell in cells:
        jobs = [job_of(cell, seed, out) for seed in seeds]
        accuracies: dict[str, dict[int, float]] = {}
        for job in jobs:
            if summary := job.summary():
                bridge = {BRIDGE: summary[BRIDGE]["all"]} if BRIDGE in summary else {}
                for group, value in {**summary["accuracy"], **bridge}.items():
                    accuracies.setdefault(group, {})[job.spec.seed] = value
        failure = next((failures[job.folder] for job in jobs if job.folder in failures), "")
        results.append(Result(cell, accuracies, failure))
    return results


def render(
    experiment: Experiment, results: Sequence[Result], command: str, measured: Sequence[tuple[str, Rows]] = ()
) -> str:
    """The whole page as Markdown; ``measured`` are tables of analyses."""
    parts = [f"# {experiment.title}", f"The paper: {experiment.claim}", f"```\n{command}\n```"]
    for name, rows in [*tables(results), *measured]:
        parts.append(f"## {name}\n\n{render_markdown(rows)}" if name else render_markdown(rows))
    failed = [f"- {r.cell.row}, {r.cell.column}: {r.failure}" for r in results if r.failure]
    if failed:
        parts.append("Failed:\n\n" + "\n".join(failed))
    return "\n\n".join(parts) + "\n"


def tables(results: Sequence[Result]) -> list[tuple[str, Rows]]:
    """(column, its rows) for each column; one table of all where there are many columns."""
    columns = list(dict.fromkeys(r.cell.column for r in results))
    if len(columns) > MANY:
        return [("", _side_by_side(results, columns))]
    return [(name, _rows([r for r in results if r.cell.column == name])) for name in columns]


def _rows(results: Sequence[Result]) -> Rows:
    groups = sorted({g for r in results for g in (*r.accuracies, *r.cell.reported)}, key=_place)
    known = [g for g in groups if any(g in r.cell.reported for r in results)]
    ours = _ranks({r.cell.row: r.mean("all") for r in results})
    theirs = _ranks({r.cell.row: r.cell.reported.get("all") for r in results})
    reference = _reference(results)
    gain = [f"to {reference.cell.row}"] if reference else []
    head = ["", *(_title(g) for g in groups), *gain, "n", *(f"paper {_title(g)}" for g in known)]
    rows = [[*head, *(["difference", "rank", "paper rank"] if known else ["rank"])]]
    for r in results:
        cells = [r.cell.row, *(r.shown(g) for g in groups), *_gain(r, reference), str(r.count)]
        cells += [decimals(r.cell.reported.get(g)) for g in known]
        cells += [_signed(r.difference("all"))] if known else []
        cells += [ours.get(r.cell.row, "-")] + ([theirs.get(r.cell.row, "-")] if known else [])
        rows.append(cells)
    return rows


def _reference(results: Sequence[Result]) -> Result | None:
    """The row that the others are compared with, where there are others."""
    return next((r for r in results if r.cell.row in REFERENCES and r.count), None) if len(results) > 1 else None


def _gain(result: Result, reference: Result | None) -> list[str]:
    if reference is None:
        return []
    return [""] if result is reference else [_with_spread(result.gains(reference), "+.2f")]


def _side_by_side(results: Sequence[Result], columns: Sequence[str]) -> Rows:
    rows = [["", *columns]]
    for row in dict.fromkeys(r.cell.row for r in results):
        by_column = {r.cell.column: r for r in results if r.cell.row == row}
        rows.append([row, *(by_column[c].shown("all") if c in by_column else "-" for c in columns)])
    return rows


def _ranks(values: Mapping[str, float | None]) -> dict[str, str]:
    """1 for the best; rows without a value have none."""
    known = sorted((v for v in values.values() if v is not None), reverse=True)
    return {row: str(known.index(v) + 1) for row, v in values.items() if v is not None}


def to_csv(results: Sequence[Result]) -> str:
    """One line per row, column and group of clients."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        ["row", "column", "clients", "mean", "spread", "n", "paper", "difference", "failure", "reference", "gains"]
    )
    references = {c: _reference([r for r in results if r.cell.column == c]) for c in {r.cell.column for r in results}}
    for r in results:
        reference = references[r.cell.column]
        for group in dict.fromkeys([*r.accuracies, *r.cell.reported]) or ["all"]:
            numbers = (r.mean(group), r.spread(group))
            values = [_plain(v) for v in (*numbers, r.cell.reported.get(group), r.difference(group))]
            gains = " ".join(f"{gain:+.4f}" for gain in r.gains(reference, group)) if reference else ""
            against = [reference.cell.row if reference else "", gains]
            writer.writerow([r.cell.row, r.cell.column, group, *values[:2], r.count, *values[2:], r.failure, *against])
    return text.getvalue()


def rows_to_csv(rows: Rows) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def tables_to_csv(named: Sequence[tuple[str, Rows]]) -> str:
    """Tables with the same head as one, their names in a column of its own."""
    head = ["table", "row", *named[0][1][0][1:]]
    return rows_to_csv([head, *([name, *row] for name, rows in named for row in rows[1:])])


def to_latex(experiment: Experiment, results: Sequence[Result], measured: Sequence[tuple[str, Rows]] = ()) -> str:
    """One booktabs table per column."""
    parts = []
    for name, rows in [*tables(results), *measured]:
        lines = [" & ".join(_escape(cell) for cell in row) + r" \\" for row in rows]
        title = _escape(f"{experiment.title}{': ' if name else ''}{name}")
        parts.append(
            "\n".join(
                [
                    rf"\begin{{table}}[t]\centering\caption{{{title}}}",
                    rf"\begin{{tabular}}{{l{'r' * (len(rows[0]) - 1)}}}",
                    r"\toprule",
                    lines[0],
                    r"\midrule",
                    *lines[1:],
                    r"\bottomrule",
                    r"\end{tabular}\end{table}",
                ]
            )
        )
    return "\n\n".join(parts) + "\n"


def _escape(text: str) -> str:
    return text.replace("%", r"\%").replace("_", r"\_").replace("±", r"$\pm$").replace("^", r"\^{}")


def _place(group: str) -> tuple[bool, bool, str]:
    """Kinds by name, then all of them, then the Bridge."""
    return group == BRIDGE, group == "all", group


def _title(group: str) -> str:
    return {"all": "all", BRIDGE: "Bridge"}.get(group, group.upper())


def _with_spread(values: Sequence[float], form: str) -> str:
    """The mean; of several values with their sample standard deviation."""
    if not values:
        return "-"
    mean = format(statistics.fmean(values), form)
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.2f}"


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.2f}"


def _plain(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
