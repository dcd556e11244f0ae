"""The curves of several runs in one chart: over rounds, megabytes or minutes; every run, or means over seeds."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from asfedbridge.report.charts import WIDE, Line, Points, figure, group_name, legend, line_chart, thin
from asfedbridge.report.curves import Curves, average
from asfedbridge.report.markup import Markup, tag
from asfedbridge.report.palette import Style, cycle
from asfedbridge.report.runs import Run, describe_settings

AXES = {
    "rounds": "",
    "MB": ", against megabytes sent and received by all clients",
    "minutes": ", against minutes of work, summed over clients",
}
MAX_RUNS_BY_COST = 60  # with more runs, accuracy is drawn over rounds only
BANDS = "; bands: one standard deviation over seeds"


def comparison_chart(runs: Sequence[Run], max_points: int) -> Markup | None:
    """One chart for each axis; the page's script shows the one that is chosen."""
    names, styles = series_styles(runs)
    axes = list(AXES) if len(runs) <= MAX_RUNS_BY_COST else ["rounds"]
    lines = {axis: [*_each(runs, names, styles, axis, max_points), *_means(runs, names, styles, axis)] for axis in axes}
    groups = sorted({line.group for line in lines["rounds"]}, key=lambda g: (g != "all", g))
    if not groups:
        return None
    choices = [_choice("Clients", "group", [(g, group_name(g)) for g in groups])]
    if len(axes) > 1:
        choices.append(_choice("Over", "axis", [(axis, axis) for axis in axes]))
    banded = any(line.band for line in lines["rounds"])
    if banded:
        choices.append(_choice("Lines", "lines", [("mean", "means over seeds"), ("each", "every run")]))
    key = legend(list(styles.items()))
    charts = []
    for axis, drawn in lines.items():
        caption = f"Accuracy in %, each run at its method's evaluation point{AXES[axis]}{BANDS * banded}"
        chart = line_chart(drawn, axis, f"accuracy of all runs over {axis}", WIDE)
        charts.append(tag("div", figure(caption, chart, key, wide=True), data_axis=axis))
    return tag("div", tag("div", choices, class_="script choices"), charts, id="overview")


def series_styles(runs: Sequence[Run]) -> tuple[list[str], dict[str, Style]]:
    """The line name of each run, which seeds and data sets share, and the style of each name."""
    splits = len({run.split for run in runs}) > 1
    names = []
    for run, setting in zip(runs, describe_settings(runs), strict=True):
        words = [run.summary.method, setting, run.split if splits else ""]
        names.append(", ".join(word for word in words if word))
    return names, {name: cycle(i) for i, name in enumerate(dict.fromkeys(names))}


def _each(
    runs: Sequence[Run], names: Sequence[str], styles: Mapping[str, Style], axis: str, max_points: int
) -> list[Line]:
    lines = []
    for i, (run, name) in enumerate(zip(runs, names, strict=True)):
        for group, points in run.curves.groups.items():
            state = ", stopped early" if run.stopped else "" if run.finished else ", so far"
            label = f"{name}, {run.data}, seed {run.summary.seed}{state}"
            moved = thin(_over(axis, run.curves, points), max_points)
            lines.append(Line(label, moved, styles[name], f"run-{i}", group, name))
    return lines


def _means(runs: Sequence[Run], names: Sequence[str], styles: Mapping[str, Style], axis: str) -> list[Line]:
    """A mean for each series with several seeds; costs are averaged too."""
    series: dict[tuple[str, str], list[int]] = {}
    for i, (run, name) in enumerate(zip(runs, names, strict=True)):
        if run.finished:
            series.setdefault((name, run.data), []).append(i)
    lines = []
    for (name, data), places in series.items():
        members = [runs[i] for i in places]
        seeds = {run.summary.seed for run in members}
        if len(members) < 2 or len(seeds) < len(members):
            continue
        for group in members[0].curves.groups:
            means = average([run.curves.groups.get(group, []) for run in members])
            moved = [fmean(_over(axis, run.curves, [(m.x, m.y)])[0][0] for run in members) for m in means]
            lines.append(
                Line(
                    f"{name}, {data}, mean over {len(seeds)} seeds",
                    [(x, m.y) for x, m in zip(moved, means, strict=True)],
                    styles[name],
                    " ".join(f"run-{i}" for i in places),
                    group,
                    name,
                    [m.deviation for m in means],
                )
            )
    return lines


def _over(axis: str, curves: Curves, points: Points) -> Points:
    """A curve over rounds, drawn over another axis."""
    costs = {"MB": curves.megabytes, "minutes": curves.minutes}.get(axis)
    return points if costs is None else [(costs[x], y) for x, y in points]


def _choice(label: str, name: str, options: Sequence[tuple[str, str]]) -> Markup:
    return tag("label", f"{label} ", tag("select", [tag("option", text, value=v) for v, text in options], id=name))
