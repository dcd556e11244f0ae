"""Text tables of analyses: one row per run, one per snapshot, and correlations over runs."""

from collections.abc import Mapping, Sequence

from asfedbridge.analysis import CROSS
from asfedbridge.core import printable
from asfedbridge.report.tables import Rows, decimals, render_text
from asfedbridge.runs import Analyses, Analysis, DataCorrelation, Measure, RoundAnalysis

HEADS = {"cka": "CKA", "mmd": "MMD^2", "gradients": "cos"}


def render_analyses(found: Analyses) -> str:
    """Block means and correlations; matrices and firing rates are in the analysis files."""
    parts = [
        render_text(_rows(["method", "seed", "point", "all"], [(_name_run(run), run.measures) for run in found.runs]))
    ]
    for run in found.runs:
        if run.by_round:
            rows = _rows(["round", "trained", "received"], [(_name_snapshot(e), e.measures) for e in run.by_round])
            parts.append(f"{printable(run.folder)}, by round\n{render_text(rows)}")
        if not run.reproduced:
            parts.append(
                f"{printable(run.folder)}: accuracies differ from the summary; another machine, torch or threads?"
            )
    for table in found.correlation:
        if rows := _correlation_rows(table):
            parts.append(f"correlation with accuracy on {printable(table.data)}\n{render_text(rows)}")
    return "\n\n".join(parts)


def _rows(names: Sequence[str], entries: Sequence[tuple[list[str], Mapping[str, Measure]]]) -> Rows:
    """One row per entry: its cells under ``names``, then its block means."""
    columns = {(m, b): None for m in HEADS for _, measures in entries for b in measures[m].blocks}
    order = sorted(columns, key=lambda c: (list(HEADS).index(c[0]), c[1] == CROSS, c[1]))
    rows = [[*names, *(f"{HEADS[measure]} {block}" for measure, block in order)]]
    for cells, measures in entries:
        rows.append([*cells, *(_number(measures[m].mean(b)) for m, b in order)])
    return rows


def _name_run(run: Analysis) -> list[str]:
    return [run.method, str(run.seed), run.point, f"{run.reported:.2f}"]


def _name_snapshot(entry: RoundAnalysis) -> list[str]:
    return [str(entry.round), *(decimals(entry.accuracy.get(p, {}).get("all")) for p in ("trained", "received"))]


def _correlation_rows(table: DataCorrelation) -> Rows:
    known = [(m, b, c) for m in HEADS for b, c in table.measures[m].items()]
    rows = [[f"{HEADS[m]} {b}", f"{c.r:+.3f}", str(c.n)] for m, b, c in known if c.r is not None]
    return [["measure", "r", "runs"], *rows] if rows else []


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}" if abs(value) >= 0.01 or value == 0 else f"{value:.1e}"
