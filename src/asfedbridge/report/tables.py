"""Tables of finished runs, as text for the terminal, Markdown, CSV or LaTeX."""

import csv
import io
import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from asfedbridge.core import BadInput, is_there, printable, table_columns
from asfedbridge.data import describe_partition
from asfedbridge.report.escaping import to_csv_cell, to_latex, to_markdown
from asfedbridge.report.statistics import group_title
from asfedbridge.runs import IN_PYTHON, ON_NODES, SUMMARY, Summary, read_summary

Rows = list[list[str]]
GAP = "  "  # between columns


class Titled(NamedTuple):
    """A table with its title, and a note that explains it."""

    title: str
    rows: Rows
    note: str = ""


def render_text(rows: Rows, width: int | None = None) -> str:
    """Aligned columns: the first to the left, the others to the right. The first row is the head.

    ``width`` is that of the terminal by default. If the table is wider, the words of the head are put below each other;
    if that is not enough, the columns are shown in several blocks, each with the first columns that tell rows apart.
    """
    width = width or terminal_width()
    head, *body = [[printable(cell) for cell in row] for row in rows]
    places = range(len(head))
    cells = [max((len(row[i]) for row in body), default=0) for i in places]
    widths = [max(cells[i], len(head[i])) for i in places]
    titles = [[title] for title in head]
    if width and _total(widths) > width:
        titles = [title.split() or [""] for title in head]
        widths = [max(cells[i], *map(len, titles[i])) for i in places]
    blocks = _blocks(widths, width, _keys(body, widths, width)) if width else [list(places)]
    return "\n\n".join(_block(titles, body, widths, block) for block in blocks)


def terminal_width() -> int | None:
    """Columns of the terminal that stdout is; None if it is a file or a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _keys(body: Rows, widths: Sequence[int], width: int) -> int:
    """The number of first columns that tell the rows apart; 1 if these need more than half of the width."""
    for count in range(1, len(widths)):
        if _total(widths[:count]) > width / 2:
            break
        if len({tuple(row[:count]) for row in body}) == len(body):
            return count
    return 1


def _blocks(widths: Sequence[int], width: int, keys: int) -> list[list[int]]:
    """Places of columns that fit together, the first ``keys`` in every block."""
    blocks = [list(range(keys))]
    for place in range(keys, len(widths)):
        if len(blocks[-1]) > keys and _total([widths[i] for i in (*blocks[-1], place)]) > width:
            blocks.append(list(range(keys)))
        blocks[-1].append(place)
    return blocks


def _block(titles: Sequence[Sequence[str]], body: Rows, widths: Sequence[int], block: Sequence[int]) -> str:
    height = max(len(titles[i]) for i in block)
    head = [[([""] * (height - len(titles[i])) + list(titles[i]))[line] for i in block] for line in range(height)]
    lines = []
    for row in [*head, *([row[i] for i in block] for row in body)]:
        cells = [cell.rjust(widths[i]) for cell, i in zip(row, block, strict=True)]
        lines.append(GAP.join([row[0].ljust(widths[block[0]]), *cells[1:]]))
    return "\n".join([*lines[:height], "-" * len(lines[0]), *lines[height:]])


def render_csv(rows: Rows) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([to_csv_cell(cell) for cell in row] for row in rows)
    return text.getvalue()


def render_latex(table: Titled) -> str:
    """A table for the package booktabs."""
    lines = [" & ".join(map(to_latex, row)) + r" \\" for row in table.rows]
    return "\n".join(
        [
            rf"\begin{{table}}[t]\centering\caption{{{to_latex(table.title)}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(table.rows[0]) - 1)}}}",
            r"\toprule",
            lines[0],
            r"\midrule",
            *lines[1:],
            r"\bottomrule",
            r"\end{tabular}",
            *([rf"\par\footnotesize {to_latex(table.note)}"] if table.note else []),
            r"\end{table}",
        ]
    )


def render_markdown(rows: Rows) -> str:
    lines = ["| " + " | ".join(map(to_markdown, row)) + " |" for row in rows]
    rule = "|" + "---|" + "---:|" * (len(rows[0]) - 1)
    return "\n".join([lines[0], rule, *lines[1:]])


def render_titled(table: Titled, markdown: bool) -> str:
    """Title, table and note, separated by empty lines."""
    escape = to_markdown if markdown else printable
    title = f"{'## ' if markdown else ''}{escape(table.title)}" if table.title else ""
    rows = (render_markdown if markdown else render_text)(table.rows)
    note, width = escape(table.note), terminal_width()
    note = note if markdown or not width else textwrap.fill(note, width)
    return "\n\n".join(filter(None, (title, rows, note)))


def run_rows(summaries: Sequence[Summary]) -> Rows:
    """One row per run: final accuracies of groups, at the method's evaluation point.

    If a run was stopped early, a column shows how many of its rounds were played.
    """
    groups = sorted({g for s in summaries for g in s.accuracy}, key=lambda g: (g == "all", g))
    head = ["method", "data", "split", "seed", *(g.upper() if g != "all" else "all" for g in groups)]
    found = [column for column in table_columns().values() if any(column.key in s.added for s in summaries)]
    shown = [(column, group) for column in found for group in (groups if column.by_kind else ["all"])]
    beside = [f"{column.title} {group_title(group)}" if column.by_kind else column.title for column, group in shown]
    stopped = any(s.stopped_early for s in summaries)
    rows = [[*head, "best all", *beside, *(["rounds"] if stopped else []), "point", "BN", "payload MB", "minutes"]]
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
                *([s.course] if stopped else []),
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
    """How the data are split, and the share of validation images if clients are evaluated on those."""
    own = summary.partition in (IN_PYTHON, ON_NODES)
    split = "own data" if own else describe_partition(summary.partition, summary.alpha, "Dir")
    return split + (f", validation {summary.holdout:g}" if summary.holdout else "")


def find_summaries(folders: Sequence[Path]) -> list[Summary]:
    """Summaries of all finished runs in these folders and below them, sorted by path in each."""
    return list(find_runs(folders).values())


def find_runs(folders: Sequence[Path], required: bool = True) -> dict[Path, Summary]:
    """The same, by run folder; a run found twice is listed once. ``required``: raise BadInput if there is none."""
    found: dict[Path, Summary] = {}
    for folder in folders:
        if not (is_there(folder) and folder.is_dir()):
            raise BadInput(f"{folder}: no such folder; give run folders, or folders of runs")
        for file in find_files(folder, SUMMARY):
            if file.parent not in found and (summary := read_summary(file.parent)):
                found[file.parent] = summary
    if not found and required:
        raise BadInput(f"{', '.join(map(str, folders))}: no finished run here (no summary.json); give other folders")
    return found


def find_files(folder: Path, name: str) -> list[Path]:
    """All files of this name in a folder and below, sorted; symbolic links to folders are not followed."""
    try:
        return sorted(folder.rglob(name))
    except RecursionError:
        raise BadInput(f"{folder}: folders are nested too deeply; name the run folders themselves") from None


def name_data(summary: Summary) -> str:
    """The data source without folders: npz:cifar10.npz for npz:some/path/cifar10.npz."""
    kind, colon, path = summary.data.partition(":")
    return f"{kind}{colon}{Path(path).name}" if path else summary.data


def decimals(value: float | None, digits: int = 2) -> str:
    """A number as the text of a cell; a dash for None."""
    return "-" if value is None else f"{value:.{digits}f}"
