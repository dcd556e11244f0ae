"""The table of an experiment, the paper's values beside ours: Markdown, CSV and LaTeX."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from asfedbridge.methods import REFERENCE
from asfedbridge.paper.experiments import Cell, Experiment
from asfedbridge.paper.reproduce import job_of
from asfedbridge.report.statistics import (
    Difference,
    Series,
    difference_columns,
    explain_differences,
    group_title,
    order_groups,
    read_scores,
)
from asfedbridge.report.tables import Rows, Titled, decimals, render_titled

MAX_TABLES = 4  # an experiment with more columns gets one table with the means over all clients
REFERENCES = (REFERENCE, "complete")  # rows that the others of their table are compared with


@dataclass(frozen=True)
class Result:
    """A cell after its runs, by finished seed."""

    cell: Cell
    series: Series
    failure: str = ""

    @property
    def count(self) -> int:
        return len(self.series.runs)

    def show(self, group: str) -> str:
        if self.failure and group == "all" and not self.count:
            return "failed"
        return self.series.show(group)

    def against_paper(self, group: str) -> float | None:
        mean, reported = self.series.mean(group), self.cell.reported.get(group)
        return None if mean is None or reported is None else mean - reported


def collect(cells: Sequence[Cell], seeds: Sequence[int], out: Path, failures: Mapping[Path, str]) -> list[Result]:
    results = []
    for cell in cells:
        jobs = [job_of(cell, seed, out) for seed in seeds]
        runs = {job.spec.seed: read_scores(summary, cell.point) for job in jobs if (summary := job.summary())}
        failure = next((failures[job.folder] for job in jobs if job.folder in failures), "")
        results.append(Result(cell, Series(runs), failure))
    return results


def render(experiment: Experiment, results: Sequence[Result], command: str, measured: Sequence[Titled] = ()) -> str:
    """The whole page as Markdown; ``measured`` are tables of analyses."""
    parts = [f"# {experiment.title}", f"The paper: {experiment.claim}", f"```\n{command}\n```"]
    parts += [render_titled(one, markdown=True) for one in [*tables(results), *measured]]
    failed = [f"- {r.cell.row}, {r.cell.column}: {r.failure}" for r in results if r.failure]
    if failed:
        parts.append("Failed:\n\n" + "\n".join(failed))
    return "\n\n".join(parts) + "\n"


def tables(results: Sequence[Result]) -> list[Titled]:
    """A table for each column; where there are many columns, one of all, and one of differences."""
    columns = list(dict.fromkeys(r.cell.column for r in results))
    if len(columns) > MAX_TABLES:
        return _side_by_side(results, columns)
    return [_table(name, [r for r in results if r.cell.column == name]) for name in columns]


def _table(title: str, results: Sequence[Result]) -> Titled:
    groups = order_groups(g for r in results for g in (*r.series.groups, *r.cell.reported))
    known = [g for g in groups if any(g in r.cell.reported for r in results)]
    ours = _ranks({r.cell.row: r.series.mean("all") for r in results})
    theirs = _ranks({r.cell.row: r.cell.reported.get("all") for r in results})
    differences, note = difference_columns([r.series for r in results], *_reference(results))
    head = ["", *map(group_title, groups), *differences[0], "n", *(f"paper {group_title(g)}" for g in known)]
    rows = [[*head, *(["all vs paper", "rank", "paper rank"] if known else ["rank"])]]
    for r, columns in zip(results, differences[1:], strict=True):
        cells = [r.cell.row, *(r.show(g) for g in groups), *columns, str(r.count)]
        cells += [decimals(r.cell.reported.get(g)) for g in known]
        cells += [_signed(r.against_paper("all"))] if known else []
        cells += [ours.get(r.cell.row, "-")] + ([theirs.get(r.cell.row, "-")] if known else [])
        rows.append(cells)
    return Titled(title, rows, note)


def _reference(results: Sequence[Result]) -> tuple[Series | None, str]:
    """The runs that the others of their column are compared with, and the name of their row."""
    return next(((r.series, r.cell.row) for r in results if r.cell.row in REFERENCES and r.count), (None, ""))


def _side_by_side(results: Sequence[Result], columns: Sequence[str]) -> list[Titled]:
    """Means over all clients; below them their differences to the reference of each column."""
    rows, differences, found = [["", *columns]], [["", *columns]], list[Difference | None]()
    references = {c: _reference([r for r in results if r.cell.column == c]) for c in columns}
    for row in dict.fromkeys(r.cell.row for r in results):
        by_column = {r.cell.column: r for r in results if r.cell.row == row}
        rows.append([row, *(by_column[c].show("all") if c in by_column else "-" for c in columns)])
        if row not in REFERENCES:
            gains = [_gain(by_column[c], references[c][0], "all") if c in by_column else None for c in columns]
            differences.append([row, *(str(gain) if gain else "-" for gain in gains)])
            found += gains
    name = next((name for _, name in references.values() if name), "")
    note = explain_differences(found, name)
    return [Titled("", rows), *([Titled(f"All clients vs {name}", differences, note)] if note else [])]


def _gain(result: Result, reference: Series | None, group: str) -> Difference | None:
    if reference is None or result.series is reference:
        return None
    return result.series.difference(reference, group)


def _ranks(values: Mapping[str, float | None]) -> dict[str, str]:
    """1 for the best; rows without a value have none."""
    known = sorted((v for v in values.values() if v is not None), reverse=True)
    return {row: str(known.index(v) + 1) for row, v in values.items() if v is not None}


def to_csv(results: Sequence[Result]) -> str:
    """One line per row, column and group of clients."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    ours = ["row", "column", "clients", "mean", "sd", "seeds", "paper", "vs_paper", "failure"]
    writer.writerow([*ours, "reference", "difference", "low", "high", "n", "unit", "by_seed"])
    references = {c: _reference([r for r in results if r.cell.column == c]) for c in {r.cell.column for r in results}}
    for r in results:
        reference, name = references[r.cell.column]
        for group in order_groups([*r.series.groups, *r.cell.reported]) or ["all"]:
            spread = [_plain(r.series.mean(group)), _plain(r.series.deviation(group)), r.count]
            paper = [_plain(r.cell.reported.get(group)), _plain(r.against_paper(group))]
            line = [r.cell.row, r.cell.column, group, *spread, *paper, r.failure, name]
            if (found := _gain(r, reference, group)) and reference:
                seeds = " ".join(f"{value:+.4f}" for value in r.series.paired(reference, group).values())
                numbers = [_plain(found.mean), _plain(found.low), _plain(found.high)]
                line += [*numbers, found.n, found.unit, seeds]
            writer.writerow(line + [""] * (len(ours) + 7 - len(line)))
    return text.getvalue()


def rows_to_csv(rows: Rows) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def tables_to_csv(titled: Sequence[Titled]) -> str:
    """Tables with the same head as one, their titles in a column of its own."""
    head = ["table", "row", *titled[0].rows[0][1:]]
    return rows_to_csv([head, *([one.title, *row] for one in titled for row in one.rows[1:])])


def to_latex(experiment: Experiment, results: Sequence[Result], measured: Sequence[Titled] = ()) -> str:
    """One booktabs table per column."""
    parts = []
    for title, rows, note in [*tables(results), *measured]:
        lines = [" & ".join(_escape(cell) for cell in row) + r" \\" for row in rows]
        caption = _escape(f"{experiment.title}{': ' if title else ''}{title}")
        parts.append(
            "\n".join(
                [
                    rf"\begin{{table}}[t]\centering\caption{{{caption}}}",
                    rf"\begin{{tabular}}{{l{'r' * (len(rows[0]) - 1)}}}",
                    r"\toprule",
                    lines[0],
                    r"\midrule",
                    *lines[1:],
                    r"\bottomrule",
                    r"\end{tabular}",
                    *([rf"\par\footnotesize {_escape(note)}"] if note else []),
                    r"\end{table}",
                ]
            )
        )
    return "\n\n".join(parts) + "\n"


def _escape(text: str) -> str:
    return text.replace("%", r"\%").replace("_", r"\_").replace("±", r"$\pm$").replace("^", r"\^{}")


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.2f}"


def _plain(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
