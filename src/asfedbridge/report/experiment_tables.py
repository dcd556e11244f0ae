"""Tables of an experiment with the paper's values beside ours, as Markdown, CSV and LaTeX."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from asfedbridge.methods import REFERENCE
from asfedbridge.paper.grid import Cell, Experiment
from asfedbridge.paper.reproduce import job_of
from asfedbridge.report import escaping
from asfedbridge.report.statistics import (
    Difference,
    Series,
    difference_columns,
    explain_differences,
    group_title,
    order_groups,
    read_scores,
)
from asfedbridge.report.tables import Titled, decimals, render_csv, render_latex, render_titled

MAX_TABLES = 4  # an experiment with more columns gets one table with the means over all clients
REFERENCES = (REFERENCE, "complete")  # the other rows of a table are compared with one of these


@dataclass(frozen=True)
class Result:
    """The finished runs of a cell."""

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
    failed = [escaping.to_markdown(f"{r.cell.row}, {r.cell.title}: {r.failure}") for r in results if r.failure]
    if failed:
        parts.append("Failed:\n\n" + "\n".join(f"- {line}" for line in failed))
    return "\n\n".join(parts) + "\n"


def tables(results: Sequence[Result]) -> list[Titled]:
    """One table for each column; for more than ``MAX_TABLES`` columns, one of all means and one of differences."""
    columns = {r.cell.column: r.cell.title for r in results}
    if len(columns) > MAX_TABLES:
        return _side_by_side(results, columns)
    return [_table(title, [r for r in results if r.cell.column == name]) for name, title in columns.items()]


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
    """The series with which the other rows of a column are compared, and its row name."""
    return next(((r.series, r.cell.row) for r in results if r.cell.row in REFERENCES and r.count), (None, ""))


def _side_by_side(results: Sequence[Result], columns: Mapping[str, str]) -> list[Titled]:
    """Means over all clients, then their differences to the reference of each column."""
    head, found = ["", *columns.values()], list[Difference | None]()
    rows, differences = [head], [head]
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
    """1 is the best; rows without a value have no rank."""
    known = sorted((v for v in values.values() if v is not None), reverse=True)
    return {row: str(known.index(v) + 1) for row, v in values.items() if v is not None}


def to_csv(results: Sequence[Result]) -> str:
    """One line per row, column and group of clients."""
    ours = ["row", "column", "clients", "mean", "sd", "seeds", "paper", "vs_paper", "failure"]
    rows = [[*ours, "reference", "difference", "low", "high", "n", "unit", "by_seed", "data"]]
    references = {c: _reference([r for r in results if r.cell.column == c]) for c in {r.cell.column for r in results}}
    for r in results:
        reference, name = references[r.cell.column]
        for group in order_groups([*r.series.groups, *r.cell.reported]) or ["all"]:
            spread = [_plain(r.series.mean(group)), _plain(r.series.deviation(group)), str(r.count)]
            paper = [_plain(r.cell.reported.get(group)), _plain(r.against_paper(group))]
            line = [r.cell.row, r.cell.title, group, *spread, *paper, r.failure, name]
            if (found := _gain(r, reference, group)) and reference:
                seeds = " ".join(f"{value:+.4f}" for value in r.series.paired(reference, group).values())
                numbers = [_plain(found.mean), _plain(found.low), _plain(found.high)]
                line += [*numbers, str(found.n), found.unit, seeds]
            rows.append([*line, *[""] * (len(ours) + 7 - len(line)), r.cell.spec.data])
    return render_csv(rows)


def tables_to_csv(titled: Sequence[Titled]) -> str:
    """Tables with the same head as a single one; the first column holds their titles."""
    head = ["table", "row", *titled[0].rows[0][1:]]
    return render_csv([head, *([one.title, *row] for one in titled for row in one.rows[1:])])


def to_latex(experiment: Experiment, results: Sequence[Result], measured: Sequence[Titled] = ()) -> str:
    """One booktabs table per column."""
    shown = [*tables(results), *measured]
    return (
        "\n\n".join(
            render_latex(one._replace(title=f"{experiment.title}{': ' if one.title else ''}{one.title}"))
            for one in shown
        )
        + "\n"
    )


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.2f}"


def _plain(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
