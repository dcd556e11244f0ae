"""Analyses of runs as tables: one row a run, one a snapshot, and the correlations over runs."""

from collections.abc import Sequence
from typing import Any

from asfedbridge.report.tables import Rows, decimals, render_text

HEADS = {"cka": "CKA", "mmd": "MMD^2", "gradients": "cos"}


def render_analyses(found: dict[str, Any]) -> str:
    """All that is worth reading at once; the rest is in the files."""
    runs = found["runs"]
    parts = [render_text(_rows(runs, ["method", "seed", "point", "all"], _name_run))]
    for run in runs:
        if run["by_round"]:
            rows = _rows(run["by_round"], ["round", "trained", "received"], _name_snapshot)
            parts.append(f"{run['folder']}, by round\n{render_text(rows)}")
        if not run["reproduced"]:
            parts.append(f"{run['folder']}: accuracies differ from the summary's; other machine, torch or threads?")
    for table in found["correlation"]:
        if rows := _correlation_rows(table):
            parts.append(f"correlation with accuracy on {table['data']}\n{render_text(rows)}")
    return "\n\n".join(parts)


def _rows(entries: Sequence[dict[str, Any]], names: list[str], name: Any) -> Rows:
    columns = {(m, b): None for m in HEADS for e in entries for b in e[m]["blocks"]}
    order = sorted(columns, key=lambda c: (list(HEADS).index(c[0]), c[1] == "cross", c[1]))
    rows = [[*names, *(f"{HEADS[measure]} {block}" for measure, block in order)]]
    for entry in entries:
        rows.append([*name(entry), *(_number(entry[m]["blocks"].get(b, {}).get("mean")) for m, b in order)])
    return rows


def _name_run(run: dict[str, Any]) -> list[str]:
    return [run["method"], str(run["seed"]), run["point"], f"{run['reported']:.2f}"]


def _name_snapshot(entry: dict[str, Any]) -> list[str]:
    return [str(entry["round"]), *(decimals(entry["accuracy"][p].get("all")) for p in ("trained", "received"))]


def _correlation_rows(table: dict[str, Any]) -> Rows:
    known = [(m, b, v) for m in HEADS for b, v in table[m].items() if v["r"] is not None]
    rows = [[f"{HEADS[m]} {b}", f"{v['r']:+.3f}", str(v["n"])] for m, b, v in known]
    return [["measure", "r", "runs"], *rows] if rows else []


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}" if abs(value) >= 0.01 or value == 0 else f"{value:.1e}"
