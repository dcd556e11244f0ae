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


@dataclass(frozen=True)
class Result:
    """A cell after its runs: one accuracy per finished seed and group of clients."""

    cell: Cell
    accuracies: Mapping[str, list[float]]
    failure: str = ""

    @property
    def count(self) -> int:
        return len(self.accuracies.get("all", []))

    def mean(self, group: str) -> float | None:
        values = self.accuracies.get(group, [])
        return statistics.fmean(values) if values else None

    def spread(self, group: str) -> float | None:
        """Sample standard deviation over seeds."""
        values = self.accuracies.get(group, [])
        return statistics.stdev(values) if len(values) > 1 else None

    def shown(self, group: str) -> str:
        mean, spread = self.mean(group), self.spread(group)
        if mean is None:
            return "failed" if self.failure and group == "all" else "-"
        return f"{mean:.2f}" if spread is None else f"{mean:.2f} ± {spread:.2f}"

    def difference(self, group: str) -> float | None:
        mean, reported = self.mean(group), self.cell.reported.get(group)
        return None if mean is None or reported is None else mean - reported


def collect(cells: Sequence[Cell], seeds: Sequence[int], out: Path, failures: Mapping[Path, str]) -> list[Result]:
    results = []
    for cell in cells:
        jobs = [job_of(cell, seed, out) for seed in seeds]
        accuracies: dict[str, list[float]] = {}
        for summary in filter(None, (job.summary() for job in jobs)):
            for group, value in summary["accuracy"].items():
                accuracies.setdefault(group, []).append(value)
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
    groups = sorted({g for r in results for g in (*r.accuracies, *r.cell.reported)}, key=lambda g: (g == "all", g))
    known = [g for g in groups if any(g in r.cell.reported for r in results)]
    ours = _ranks({r.cell.row: r.mean("all") for r in results})
    theirs = _ranks({r.cell.row: r.cell.reported.get("all") for r in results})
    head = ["", *(_title(g) for g in groups), "n", *(f"paper {_title(g)}" for g in known)]
    rows = [[*head, *(["difference", "rank", "paper rank"] if known else ["rank"])]]
    for r in results:
        cells = [r.cell.row, *(r.shown(g) for g in groups), str(r.count)]
        cells += [decimals(r.cell.reported.get(g)) for g in known]
        cells += [_signed(r.difference("all"))] if known else []
        cells += [ours.get(r.cell.row, "-")] + ([theirs.get(r.cell.row, "-")] if known else [])
        rows.append(cells)
    return rows


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
    writer.writerow(["row", "column", "clients", "mean", "spread", "n", "paper", "difference", "failure"])
    for r in results:
        for group in dict.fromkeys([*r.accuracies, *r.cell.reported]) or ["all"]:
            numbers = (r.mean(group), r.spread(group))
            values = [_plain(v) for v in (*numbers, r.cell.reported.get(group), r.difference(group))]
            writer.writerow([r.cell.row, r.cell.column, group, *values[:2], r.count, *values[2:], r.failure])
    return text.getvalue()


def rows_to_csv(rows: Rows) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


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


def _title(group: str) -> str:
    return group if group == "all" else group.upper()


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.2f}"


def _plain(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
