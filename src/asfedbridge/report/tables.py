"""Tables of finished runs, as text for the terminal or as Markdown."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from asfedbridge.core import BadInput, table_columns
from asfedbridge.data import describe_partition
from asfedbridge.report.statistics import group_title
from asfedbridge.runs import IN_PYTHON, ON_NODES, SUMMARY, Summary, read_summary

Rows = list[list[str]]


class Titled(NamedTuple):
    """A table with its title, and the line under it that explains it."""

    title: str
    rows: Rows
    note: str = ""


def render_text(rows: Rows) -> str:
    """Columns side by side, the first to the left, numbers to the right; the first row is the head."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join([row[0].ljust(widths[0]), *cells[1:]]))
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def render_markdown(rows: Rows) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    rule = "|" + "---|" + "---:|" * (len(rows[0]) - 1)
    return "\n".join([lines[0], rule, *lines[1:]])


def render_titled(table: Titled, markdown: bool) -> str:
    """Title, table and note, with empty lines between."""
    title = f"## {table.title}" if markdown and table.title else table.title
    return "\n\n".join(filter(None, (title, (render_markdown if markdown else render_text)(table.rows), table.note)))


def run_rows(summaries: Sequence[Summary]) -> Rows:
    """One row per run: group accuracies at the end, at the point the method is judged at."""
    groups = sorted({g for s in summaries for g in s.accuracy}, key=lambda g: (g == "all", g))
    head = ["method", "data", "split", "seed", *(g.upper() if g != "all" else "all" for g in groups)]
    found = [column for column in table_columns().values() if any(column.key in s.added for s in summaries)]
    shown = [(column, group) for column in found for group in (groups if column.by_kind else ["all"])]
    beside = [f"{column.title} {group_title(group)}" if column.by_kind else column.title for column, group in shown]
    rows = [[*head, "best all", *beside, "point", "BN", "payload MB", "minutes"]]
    for s in summaries:
        rows.append(
            [
                s.method,
                name_data(s),
                name_split(s),
                str(s.seed),
                *(decimals(s.accuracy.get(g)) for g in groups),
                decimals((s.best or {}).get("all")),
                *(decimals(s.added.get(column.key, {}).get(group)) for column, group in shown),
                s.point,
                s.bn_buffers,
                f"{s.payload_mb:.2f}",
                f"{s.wall_seconds / 60:.1f}",
            ]
        )
    return rows


def client_rows(summary: Summary) -> Rows:
    rows = [["client", "kind", "model", "train", "test", "accuracy"]]
    for c in summary.clients:
        option = {"snn": f" T={c.T}", "qnn": f" b={c.bits}"}.get(c.kind, "")
        model = f"{c.model}@{c.width:g}{option}"
        rows.append([str(c.id), c.kind, model, str(c.train), str(c.test), decimals(c.accuracy)])
    return rows


def name_split(summary: Summary) -> str:
    """How the data are split, and what clients are judged on if not the test images."""
    own = summary.partition in (IN_PYTHON, ON_NODES)
    split = "their own" if own else describe_partition(summary.partition, summary.alpha, "Dir")
    return split + (f", validation {summary.holdout:g}" if summary.holdout else "")


def find_summaries(folders: Sequence[Path]) -> list[Summary]:
    """Summaries of all finished runs in these folders and below them, in order of path."""
    return list(find_runs(folders).values())


def find_runs(folders: Sequence[Path]) -> dict[Path, Summary]:
    """The same, by run folder; a run that is found twice is there once."""
    found: dict[Path, Summary] = {}
    for folder in folders:
        if not folder.is_dir():
            raise BadInput(f"{folder}: there is no such folder")
        for file in sorted(folder.rglob(SUMMARY)):
            if file.parent not in found and (summary := read_summary(file.parent)):
                found[file.parent] = summary
    if not found:
        raise BadInput(f"{', '.join(map(str, folders))}: no finished run here (no summary.json)")
    return found


def name_data(summary: Summary) -> str:
    """npz:cifar10.npz for npz:some/long/way/cifar10.npz."""
    kind, colon, path = summary.data.partition(":")
    return f"{kind}{colon}{Path(path).name}" if path else summary.data


def decimals(value: float | None, digits: int = 2) -> str:
    """As it stands in a cell; a dash where there is none."""
    return "-" if value is None else f"{value:.{digits}f}"
