"""Many runs at a glance: filters, all curves over one another, a table to sort, and methods over seeds."""

from collections.abc import Sequence

from asfedbridge.core import MB
from asfedbridge.report.charts import Line, figure, group_name, legend, line_chart, thin
from asfedbridge.report.comparison import Entry, compare
from asfedbridge.report.markup import Markup, join, tag
from asfedbridge.report.palette import Style, cycle
from asfedbridge.report.runs import Run, describe_settings
from asfedbridge.report.sections import cells, text_columns, titled_table
from asfedbridge.report.tables import Rows, run_rows

FILTERS = ("method", "setting", "data", "split", "seed")


def overview(runs: Sequence[Run], most: int) -> Markup | None:
    """Nothing for one run: its own section says all."""
    if len(runs) < 2:
        return None
    rows = comparison_rows(runs)
    compared = compare([Entry(run.summary, run.fields) for run in runs])
    return join(
        tag("h2", "Compare"),
        _filters(rows),
        _curves(runs, most),
        tag("h2", "All runs"),
        tag("p", "Click a column to sort by it.", class_="quiet script"),
        _sortable(rows),
        tag("h2", "Methods over seeds") if compared else None,
        [titled_table(one.to_titled(), "h3") for one in compared],
    )


def comparison_rows(runs: Sequence[Run]) -> Rows:
    """The table of `asfedbridge report`, with what sets runs apart, the paper's values and bytes that moved."""
    rows = run_rows([run.summary for run in runs])
    place = rows[0].index("all") + 1
    for row, run in zip(rows[1:], runs, strict=True):
        theirs = run.reported.get("all")
        ours = run.summary.accuracy.get("all")
        beside = ["-", "-"] if theirs is None or ours is None else [f"{theirs:.2f}", f"{ours - theirs:+.2f}"]
        row[place:place] = beside
        row += [f"{count / MB:.2f}" for count in (run.summary.uplink_bytes, run.summary.downlink_bytes)]
    rows[0][place:place] = ["paper all", "difference"]
    rows[0] += ["up MB", "down MB"]
    for row, text in zip(rows, ["setting", *describe_settings(runs)], strict=True):
        row.insert(1, text)
    return _without_empty(rows)


def _without_empty(rows: Rows) -> Rows:
    """Columns that say nothing are left out."""
    empty = [i for i in range(1, len(rows[0])) if all(row[i] in ("", "-") for row in rows[1:])]
    return [[cell for i, cell in enumerate(row) if i not in empty] for row in rows]


def series_styles(runs: Sequence[Run]) -> tuple[list[str], dict[str, Style]]:
    """For each run the name of its line, one for all seeds and data sets; and the style of each name."""
    splits = len({run.split for run in runs}) > 1
    names = []
    for run, setting in zip(runs, describe_settings(runs), strict=True):
        words = [run.summary.method, setting, run.split if splits else ""]
        names.append(", ".join(word for word in words if word))
    return names, {name: cycle(i) for i, name in enumerate(dict.fromkeys(names))}


def _curves(runs: Sequence[Run], most: int) -> Markup | None:
    names, styles = series_styles(runs)
    lines = [
        Line(f"{name}, {run.data}, seed {run.summary.seed}", thin(points, most), styles[name], f"run-{i}", g, name)
        for i, (run, name) in enumerate(zip(runs, names, strict=True))
        for g, points in run.curves.groups.items()
    ]
    groups = sorted({line.group for line in lines}, key=lambda g: (g != "all", g))
    choice = tag("select", [tag("option", group_name(g), value=g) for g in groups], id="group")
    picture = line_chart(lines, "rounds", "accuracy of all runs")
    caption = "Accuracy in %, each run at the point its method is judged at"
    shown = figure(caption, picture, legend(list(styles.items())), wide=True)
    return tag("div", tag("label", "Clients ", choice, class_="script"), shown, id="overview") if shown else None


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
    return tag(
        "div",
        tag("table", tag("thead", tag("tr", head)), tag("tbody", body), id="runs", class_="sortable"),
        class_="scroll tall",
        tabindex="0",
    )
