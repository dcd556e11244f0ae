"""Figures of runs as PNG, SVG and PDF files for print, one or two columns wide. Needs matplotlib (the extra `figures`).

Text in SVG files is stored as outlines, so that it looks the same whatever fonts are installed.
"""

import importlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from asfedbridge.core import BadInput, printable
from asfedbridge.report.analysis_figures import MEASURES, Rates, blocks_by_round, mean_rates
from asfedbridge.report.charts import group_name, name_clients
from asfedbridge.report.comparison_chart import series_styles
from asfedbridge.report.curves import Points, average
from asfedbridge.report.palette import DASHES, GROUPS, LIGHT, MARKERS, RAMPS, Style, cycle
from asfedbridge.report.run_figures import MAX_CLIENTS, shows_shards
from asfedbridge.report.runs import Run

ONE_COLUMN, TWO_COLUMNS = 3.35, 7.0  # inches
MAX_RUNS = 20  # for more runs, only the comparison is drawn
CLIENTS_IN_ROW = 5
SHAPES = {"circle": "o", "square": "s", "triangle": "^", "diamond": "D"}
Named = tuple[str, Style, Points]
LOOK = {
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 7,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "svg.fonttype": "path",
    "text.parse_math": False,  # names may contain dollar signs
    "svg.hashsalt": "asfedbridge",  # the same run gives the same bytes
}


class Plate(NamedTuple):
    """A figure to write; ``draw`` receives its axes, or the list of its panels.

    Its height is without the legend, which is added above.
    """

    title: str
    width: float
    height: float
    draw: Callable[[Any], None]
    panels: int = 0  # panels in a row; 0: single axes
    rows: int = 1  # rows of panels


def draw_figures(runs: Sequence[Run], folder: Path) -> int:
    """Draw every figure for which there are data; return the number of files written."""
    try:
        matplotlib = importlib.import_module("matplotlib")
    except ImportError:
        raise BadInput("--figures: matplotlib is not installed; pip install 'asfedbridge[figures]'") from None
    count = 0
    with matplotlib.rc_context(LOOK):
        for data in dict.fromkeys(run.data for run in runs) if len(runs) > 1 else ():
            same = [run for run in runs if run.data == data]
            count += _save(folder, Plate(f"compare-{_safe(data)}", TWO_COLUMNS, 3.0, partial(_compare, same)))
        names: set[str] = set()
        for run in runs if len(runs) <= MAX_RUNS else ():
            name = _safe(run.folder.resolve().name)
            while name in names:
                name += "+"
            names.add(name)
            count += sum(_save(folder / name, plate) for plate in _plates(run))
    return count


def _plates(run: Run) -> Iterable[Plate]:
    curves, clients = run.curves, run.summary.clients
    if curves.groups:
        yield Plate("accuracy", ONE_COLUMN, 2.2, partial(_lines, _styled(curves.groups), "accuracy (%)"))
        kinds = {c.id: c.kind for c in clients}
        some = sorted(curves.clients.items())[:MAX_CLIENTS]
        each = [(f"{i} {kinds[i].upper()}", GROUPS.get(kinds[i], cycle(5)), p) for i, p in some]
        across = min(CLIENTS_IN_ROW, len(each))
        rows = -(-len(each) // across)
        yield Plate("clients", TWO_COLUMNS, 0.4 + rows, partial(_clients, each, curves.groups["all"]), across, rows)
    if curves.traffic:
        ways = [(d, GROUPS["ann" if d == "up" else "snn"], p) for d, p in curves.traffic.items()]
        yield Plate("communication", ONE_COLUMN, 2.2, partial(_lines, ways, "MB since the start"))
    if shows_shards(clients):
        first = clients[:MAX_CLIENTS]
        draw = partial(
            _cells, [c.labels for c in first], name_clients([(c.id, c.kind) for c in first]), "seq", "images", 0.0, None
        )
        yield Plate("shards", ONE_COLUMN if len(first[0].labels) <= 20 else TWO_COLUMNS, 2.4, draw)
    if run.course:
        named = {_label(key): _styled(blocks_by_round(run.course, key)) for key in MEASURES}
        for key, (label, course) in zip(MEASURES, named.items(), strict=True):
            if course:
                yield Plate(f"{key}-by-round", ONE_COLUMN, 2.2, partial(_lines, course, label))
        panels = {"accuracy (%)": _styled(curves.groups), **named}
        yield Plate("by-round", TWO_COLUMNS, 1.9, partial(_by_round, panels), len(panels))
    if run.analysis is None:
        return
    found, names = run.analysis, name_clients([(c.id, c.kind) for c in run.analysis.clients])
    for key, (_, ramp) in MEASURES.items():
        low, high = (-1.0, 1.0) if ramp == "div" else (0.0, None if key == "mmd" else 1.0)
        yield Plate(
            key, ONE_COLUMN, 2.8, partial(_cells, found.measures[key].matrix, names, ramp, _label(key), low, high)
        )
    rates = mean_rates(found.rates)
    if rates and rates.places:
        yield Plate("rates", TWO_COLUMNS, 1.8, partial(_bars, rates), len(rates.places))


def _lines(lines: Iterable[Named], label: str, ax: Any, legend: bool = True) -> None:
    for name, style, points in lines:
        ax.plot(*zip(*points, strict=True), label=printable(name), markevery=[-1], **_look(style))
    _rounds(ax)
    ax.set_ylabel(label)
    if legend:
        _legend([ax])


def _clients(lines: Sequence[Named], mean: Points, panels: Any) -> None:
    """A panel for each client on common axes, with the mean of all clients behind."""
    heights = [y for _, _, points in lines for _, y in points]
    edge = 0.05 * (max(heights) - min(heights)) or 1.0
    for i, (ax, (name, style, points)) in enumerate(zip(panels, lines, strict=False)):
        ax.plot(*zip(*mean, strict=True), color="0.75", label="mean of all clients")
        ax.plot(*zip(*points, strict=True), color=LIGHT[style.colour])
        ax.set_title(f"{name}  {points[-1][1]:.1f}", fontsize=7, pad=2)
        ax.set_ylim(min(heights) - edge, max(heights) + edge)
        ax.xaxis.get_major_locator().set_params(integer=True, nbins=3)
        ax.tick_params(labelleft=i % CLIENTS_IN_ROW == 0, labelbottom=i + CLIENTS_IN_ROW >= len(lines), labelsize=6)
    for ax in panels[len(lines) :]:
        ax.set_visible(False)
    panels[0].figure.supxlabel("rounds", fontsize=8)
    panels[0].figure.supylabel("accuracy (%)", fontsize=8)
    _legend(panels[:1])


def _by_round(named: Mapping[str, Iterable[Named]], panels: Any) -> None:
    """Accuracy and each measure side by side with one legend, as in the paper's motivation figure."""
    for ax, (label, lines) in zip(panels, named.items(), strict=True):
        _lines(lines, label, ax, legend=False)
    _legend(panels)


def _legend(panels: Sequence[Any]) -> None:
    """One legend above all panels, for which the figure grows."""
    keys: dict[str, Any] = {}
    for ax in panels:
        handles, names = ax.get_legend_handles_labels()
        keys |= dict(zip(names, handles, strict=True))
    if not keys:
        return
    figure = panels[0].figure
    width, height = figure.get_size_inches()
    columns = max(1, min(len(keys), int(width / (0.5 + 0.055 * max(map(len, keys))))))  # inches of an entry at 7 points
    figure.set_size_inches(width, height + 0.15 * -(-len(keys) // columns))
    figure.legend(keys.values(), keys.keys(), loc="outside upper center", ncols=columns)


def _styled(groups: Mapping[str, Points]) -> list[Named]:
    return [(group_name(g), GROUPS.get(g, cycle(5)), p) for g, p in groups.items()]


def _label(measure: str) -> str:
    return MEASURES[measure][0].partition(":")[0]


def _rounds(ax: Any) -> None:
    ax.set_xlabel("rounds")
    ax.xaxis.get_major_locator().set_params(integer=True)


def _compare(runs: Sequence[Run], ax: Any) -> None:
    """Means over seeds, with a band of one standard deviation."""
    names, styles = series_styles(runs)
    for name, style in styles.items():
        curves = [r.curves.groups["all"] for r, n in zip(runs, names, strict=True) if n == name and r.curves.groups]
        means = average(curves)
        if not means:
            continue
        xs = [m.x for m in means]
        ax.plot(xs, [m.y for m in means], label=printable(name), markevery=[-1], **_look(style))
        if len(curves) > 1:
            low, high = ([m.y + sign * m.deviation for m in means] for sign in (-1, 1))
            ax.fill_between(xs, low, high, color=LIGHT[style.colour], alpha=0.15, linewidth=0)
    _rounds(ax)
    ax.set_ylabel("accuracy, all clients (%)")
    _legend([ax])


def _cells(matrix: Any, names: Sequence[str], ramp: str, label: str, low: float, high: float | None, ax: Any) -> None:
    colours = importlib.import_module("matplotlib.colors")
    shades = colours.LinearSegmentedColormap.from_list(ramp, RAMPS[ramp][0])
    values = [[float("nan") if v is None else float(v) for v in row] for row in matrix]
    image = ax.imshow(values, cmap=shades, vmin=low, vmax=high, aspect="auto", interpolation="nearest")
    ax.set_yticks(range(len(names)), names)
    square = len(values[0]) == len(names) and label != "images"
    if square:
        ax.set_xticks(range(len(names)), [n.split(" ")[0] for n in names])
    ax.set_xlabel("client" if square else "class")
    ax.figure.colorbar(image, ax=ax, label=label)


def _bars(rates: Rates, panels: Any) -> None:
    """One panel for each stage; the vertical axis is scaled by square roots, as on the page."""
    for ax, (place, entry) in zip(panels, rates.places.items(), strict=True):
        for k, (network, shares) in enumerate(entry.items()):
            xs = [j + (k - (len(entry) - 1) / 2) * 0.4 for j in range(len(shares))]
            label, colour, hatch = ("Bridge", LIGHT[0], "////") if network == "bridge" else ("SNN", LIGHT[1], "")
            ax.bar(xs, shares, width=0.38, label=label, color=colour, hatch=hatch, edgecolor="white", linewidth=0)
        ax.set_yscale("function", functions=(lambda v: abs(v) ** 0.5, lambda v: v**2))
        first = ax is panels[0]
        ax.set_yticks([0, 0.1, 0.5, 1], ["0", "10 %", "50 %", "100 %"] if first else [""] * 4)
        ax.set_ylim(0, 1)
        step = -(-len(rates.levels) // 5)
        ax.set_xticks(range(0, len(rates.levels), step), rates.levels[::step], fontsize=6)
        ax.set_title(place, fontsize=8)
    panels[0].set_ylabel("share")
    panels[0].figure.supxlabel("firing rate", fontsize=8)
    panels[-1].legend()


def _look(style: Style) -> dict[str, Any]:
    dash = tuple(float(v) / 2 for v in DASHES[style.dash].split())
    line = {"color": LIGHT[style.colour], "marker": SHAPES[MARKERS[style.marker]]}
    return line | ({"dashes": dash} if dash else {})


def _save(folder: Path, plate: Plate) -> int:
    size = (plate.width, plate.height)
    made = importlib.import_module("matplotlib.figure").Figure(figsize=size, layout="constrained")
    axes = made.subplots(plate.rows, plate.panels or 1, squeeze=False).ravel()
    plate.draw(axes if plate.panels else axes[0])
    try:
        folder.mkdir(parents=True, exist_ok=True)
        made.savefig(folder / f"{plate.title}.png", dpi=300)
        made.savefig(folder / f"{plate.title}.svg", metadata={"Date": None})
        made.savefig(folder / f"{plate.title}.pdf", metadata={"CreationDate": None})
    except OSError as error:
        raise BadInput(f"--figures {folder}: cannot write ({error.strerror}); give another folder") from None
    return 3


def _safe(name: str) -> str:
    return re.sub(r"[^\w.@+-]+", "-", name).strip("-.") or "run"
