"""Overview of several runs: methods over seeds, filters, all curves in one chart, and a sortable table."""

from collections.abc import Sequence

from asfedbridge.core import MB
from asfedbridge.report.comparison import Comparison
from asfedbridge.report.comparison_chart import comparison_chart
from asfedbridge.report.html_tables import cells, scrolling, text_columns, titled_table
from asfedbridge.report.markup import Markup, join, tag
from asfedbridge.report.runs import Run, describe_settings
from asfedbridge.report.statistics import worst_tenth
from asfedbridge.report.tables import Rows, decimals, run_rows

FILTERS = ("method", "setting", "data", "split", "seed")


def overview(runs: Sequence[Run], compared: Sequence[Comparison], max_points: int) -> Markup | None:
    """None for a single run, whose section shows everything."""
    if len(runs) < 2:
        return None
    rows = comparison_rows(runs)
    return join(
        tag("h2", "Methods over seeds") if compared else None,
        [titled_table(one.to_titled(), "h3") for one in compared],
        tag("h2", "Compare"),
        _filters(rows),
        comparison_chart(runs, max_points),
        tag("h2", "All runs"),
        tag("p", "Click a column to sort by it.", class_="quiet script"),
        _sortable(rows),
    )


def comparison_rows(runs: Sequence[Run]) -> Rows:
    """The table of `asfedbridge report` with settings, the paper's values, the worst clients and traffic added."""
    rows = run_rows([run.summary for run in runs])
    place = rows[0].index("all") + 1
    for row, run in zip(rows[1:], runs, strict=True):
        if not run.finished:
            row[rows[0].index("minutes")], row[rows[0].index("rounds")] = "-", f"{run.summary.course} so far"
        elif run.stopped:
            row[rows[0].index("rounds")] += ", stopped early"
        ours, theirs = run.summary.accuracy.get("all"), run.reported.get("all")
        beside = ["-", "-"] if theirs is None or ours is None else [f"{theirs:.2f}", f"{ours - theirs:+.2f}"]
        row[place:place] = [*beside, decimals(worst_tenth(run.summary.clients).get("all"))]
        row += [f"{count / MB:.2f}" for count in (run.summary.uplink_bytes, run.summary.downlink_bytes)]
    rows[0][place:place] = ["paper all", "difference", "worst tenth"]
    rows[0] += ["up MB", "down MB"]
    for row, text in zip(rows, ["setting", *describe_settings(runs)], strict=True):
        row.insert(1, text)
    return _without_empty(rows)


def _without_empty(rows: Rows) -> Rows:
    """Leave out columns without any value."""
    empty = [i for i in range(1, len(rows[0])) if all(row[i] in ("", "-") for row in rows[1:])]
    return [[cell for i, cell in enumerate(row) if i not in empty] for row in rows]


def _filters(rows: Rows) -> Markup:
    fields = []
    for name in FILTERS:
        if name not in rows[0]:
            continue
        column = rows[0].index(name)
        values = sorted(
            {row[column] for row in rows[1:]}, key=lambda v: (not v.isdigit(), int(v) if v.isdigit() else v)
        )
        if len(values) > 1:
            options = [tag("option", "any", value="*"), *(tag("option", v or "(none)", value=v) for v in values)]
            fields.append(tag("label", f"{name} ", tag("select", options, data_column=column)))
    fields.append(tag("label", "text ", tag("input", type="search", id="search", placeholder="part of a row")))
    shown = tag("output", f"{len(rows) - 1} of {len(rows) - 1} runs", id="shown")
    return tag("form", fields, shown, id="filters", class_="script")


def _sortable(rows: Rows) -> Markup:
    sides = text_columns(rows)
    head = [
        tag("th", tag("button", name, type="button"), scope="col", class_=side)
        for name, side in zip(rows[0], sides, strict=True)
    ]
    body = []
    for i, row in enumerate(rows[1:]):
        first = tag("th", tag("a", row[0], href=f"#run-{i}"), scope="row")
        body.append(tag("tr", first, cells(row, sides), data_run=f"run-{i}"))
    content = tag("table", tag("thead", tag("tr", head)), tag("tbody", body), id="runs", class_="sortable")
    return scrolling(content, tall=True)
