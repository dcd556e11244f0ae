"""Figures of runs as PNG and SVG files for print, one or two columns wide, by matplotlib (the extra `figures`).

Letters in SVG files are outlines: they look the same wherever they are opened, whatever fonts there are.
"""

import importlib
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from asfedbridge.core import BadInput
from asfedbridge.report.analysis_figures import MEASURES, Rates, blocks_by_round, mean_rates
from asfedbridge.report.charts import group_name, name_clients
from asfedbridge.report.curves import Points
from asfedbridge.report.overview import series_styles
from asfedbridge.report.palette import DASHES, GROUPS, LIGHT, MARKERS, RAMPS, Style, cycle, of_clients
from asfedbridge.report.runs import Run
from asfedbridge.report.sections import MOST_CLIENTS

ONE, TWO = 3.35, 7.0  # inches: one column of a page, and two
MOST_RUNS = 20  # that get figures of their own; of more, only the comparison is drawn
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
    "svg.hashsalt": "asfedbridge",  # the same run gives the same bytes
}


class Plate(NamedTuple):
    """One file to be: who draws it is given its axes, as many as there are panels."""

    title: str
    width: float
    height: float
    draw: Callable[[Any], None]
    panels: int = 1


def draw_figures(runs: Sequence[Run], folder: Path) -> int:
    """Everything there is to draw; how many files were written."""
    try:
        matplotlib = importlib.import_module("matplotlib")
    except ImportError:
        raise BadInput("--figures: matplotlib is not installed; pip install 'asfedbridge[figures]'") from None
    count = 0
    with matplotlib.rc_context(LOOK):
        for data in dict.fromkeys(run.data for run in runs) if len(runs) > 1 else ():
            same = [run for run in runs if run.data == data]
            count += _save(folder, Plate(f"compare-{_safe(data)}", TWO, 3.0, partial(_compare, same)))
        names: set[str] = set()
        for run in runs if len(runs) <= MOST_RUNS else ():
            name = _safe(run.folder.resolve().name)
            while name in names:
                name += "+"
            names.add(name)
            count += sum(_save(folder / name, plate) for plate in _plates(run))
    return count


def _plates(run: Run) -> Iterable[Plate]:
    curves, clients = run.curves, run.summary.clients
    if curves.groups:
        yield Plate("accuracy", ONE, 2.2, partial(_lines, _styled(curves.groups), "accuracy (%)"))
        kinds = {c.id: c.kind for c in clients}
        some = sorted(curves.clients.items())[:MOST_CLIENTS]
        styles = of_clients([kinds[i] for i, _ in some])
        each = [(f"{i} {kinds[i].upper()}", style, p) for (i, p), style in zip(some, styles, strict=True)]
        yield Plate("clients", TWO, 2.6, partial(_lines, each, "accuracy (%)", beside=True))
    if curves.traffic:
        ways = [(d, GROUPS["ann" if d == "up" else "snn"], p) for d, p in curves.traffic.items()]
        yield Plate("communication", ONE, 2.2, partial(_lines, ways, "MB since the start"))
    if clients and all(c.labels for c in clients):
        first = clients[:MOST_CLIENTS]
        draw = partial(
            _cells, [c.labels for c in first], name_clients([(c.id, c.kind) for c in first]), "seq", "images", 0.0, None
        )
        yield Plate("shards", ONE if len(first[0].labels) <= 20 else TWO, 2.4, draw)
    if run.course:
        named = {_label(key): _styled(blocks_by_round(run.course, key)) for key in MEASURES}
        for key, (label, course) in zip(MEASURES, named.items(), strict=True):
            if course:
                yield Plate(f"{key}-by-round", ONE, 2.2, partial(_lines, course, label))
        panels = {"accuracy (%)": _styled(curves.groups), **named}
        yield Plate("by-round", TWO, 1.9, partial(_by_round, panels), len(panels))
    if run.analysis is None:
        return
    found, names = run.analysis, name_clients([(c.id, c.kind) for c in run.analysis.clients])
    for key, (_, ramp) in MEASURES.items():
        low, high = (-1.0, 1.0) if ramp == "div" else (0.0, None if key == "mmd" else 1.0)
        yield Plate(key, ONE, 2.8, partial(_cells, found.measures[key].matrix, names, ramp, _label(key), low, high))
    rates = mean_rates(found.rates)
    if rates and rates.places:
        yield Plate("rates", TWO, 1.8, partial(_bars, rates), len(rates.places))


def _lines(lines: Iterable[Named], label: str, ax: Any, beside: bool = False, legend: bool = True) -> None:
    for name, style, points in lines:
        ax.plot(*zip(*points, strict=True), label=name, markevery=[-1], **_look(style))
    _rounds(ax)
    ax.set_ylabel(label)
    if legend:
        ax.legend(**({"loc": "center left", "bbox_to_anchor": (1.01, 0.5)} if beside else {}))


def _by_round(named: Mapping[str, Iterable[Named]], panels: Any) -> None:
    """Accuracy and each measure side by side, under one legend: the paper's motivation figure."""
    keys: dict[str, Any] = {}
    for ax, (label, lines) in zip(panels, named.items(), strict=True):
        _lines(lines, label, ax, legend=False)
        handles, names = ax.get_legend_handles_labels()
        keys |= dict(zip(names, handles, strict=True))
    panels[0].figure.legend(keys.values(), keys.keys(), loc="outside upper center", ncols=len(keys))


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
        shared = sorted(set.intersection(*({x for x, _ in c} for c in curves))) if curves else []
        values = [[dict(c)[x] for c in curves] for x in shared]
        if not shared:
            continue
        means = [statistics.fmean(v) for v in values]
        ax.plot(shared, means, label=name, markevery=[-1], **_look(style))
        if len(curves) > 1:
            spread = [statistics.stdev(v) for v in values]
            low, high = ([m + s * d for m, d in zip(means, spread, strict=True)] for s in (-1, 1))
            ax.fill_between(shared, low, high, color=LIGHT[style.colour], alpha=0.15, linewidth=0)
    _rounds(ax)
    ax.set_ylabel("accuracy, all clients (%)")
    ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))


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
    """A panel for each stage, over one axis: square roots of shares, as on the page."""
    for ax, (place, entry) in zip(panels, rates.places.items(), strict=True):
        for k, (who, shares) in enumerate(entry.items()):
            xs = [j + (k - (len(entry) - 1) / 2) * 0.4 for j in range(len(shares))]
            label, colour, hatch = ("Bridge", LIGHT[0], "////") if who == "bridge" else ("SNN", LIGHT[1], "")
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
    axes = made.subplots(1, plate.panels, squeeze=False)[0]
    plate.draw(axes if plate.panels > 1 else axes[0])
    try:
        folder.mkdir(parents=True, exist_ok=True)
        made.savefig(folder / f"{plate.title}.png", dpi=300)
        made.savefig(folder / f"{plate.title}.svg", metadata={"Date": None})
    except OSError as error:
        raise BadInput(f"--figures {folder}: cannot write ({error.strerror}); give another folder") from None
    return 2


def _safe(name: str) -> str:
    return re.sub(r"[^\w.@+-]+", "-", name).strip("-.") or "run"
