"""Line charts as inline SVG, which also appear in print and without JavaScript."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from asfedbridge.report.markup import Markup, join, show, tag
from asfedbridge.report.palette import DASHES, MARKERS, Style

MAX_NORMAL_LINES = 100  # a chart with more lines draws them thinner
Points = Sequence[tuple[float, float]]


class Frame(NamedTuple):
    """Size and margins of a chart in SVG units, and its number of ticks."""

    width: int = 480
    height: int = 250
    left: int = 46
    right: int = 14
    top: int = 10
    bottom: int = 34
    ticks: int = 5


NORMAL, WIDE, SMALL = Frame(), Frame(720, 320), Frame(160, 140, 30, 8, 8, 20, 2)


@dataclass(frozen=True)
class Line:
    label: str  # empty: not named under the pointer
    points: Points
    style: Style
    run: str = ""  # id of the line's run, for the filters
    group: str = ""
    series: str = ""  # the line's name in the legend
    band: Sequence[float] = ()  # half its height at each point


def thin(points: Points, max_points: int) -> list[tuple[float, float]]:
    """Evenly spaced points, always with the first and the last."""
    if len(points) <= max_points:
        return list(points)
    last = len(points) - 1
    return [points[round(i * last / (max_points - 1))] for i in range(max_points)]


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About ``count`` round numbers that cover the range from ``low`` to ``high``."""
    span = (high - low) or abs(high) or 1.0
    rough = span / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * 0.8)
    first = math.floor(low / step + 1e-9)
    last = max(math.ceil(high / step - 1e-9), first + 1)
    return [round(i * step, 12) for i in range(first, last + 1)]


def line_chart(
    lines: Sequence[Line], x_label: str, name: str, frame: Frame = NORMAL, beside: Sequence[Line] = ()
) -> Markup:
    """All lines on shared axes, which also fit the lines ``beside``, of other charts.

    The page's script finds the ranges of the axes in ``data-x`` and ``data-y``, and the values of a line in its
    ``data-points``.
    """
    points = [p for line in (*lines, *beside) for p in (*line.points, *_border(line))]
    if not points:
        return Markup("")
    xs = [x for x, _ in points]
    x_low, x_high = min(xs), max(xs)
    if x_high - x_low < 1e-9:
        x_high = x_low + 1
    y_ticks = ticks(min(y for _, y in points), max(y for _, y in points), frame.ticks)
    y_low, y_high = y_ticks[0], y_ticks[-1]
    right, foot = frame.width - frame.right, frame.height - frame.bottom

    def place(x: float, y: float) -> tuple[float, float]:
        across = frame.left + (x - x_low) / (x_high - x_low) * (right - frame.left)
        return across, frame.top + (y_high - y) / (y_high - y_low) * (foot - frame.top)

    heights = [place(x_low, y)[1] for y in y_ticks]
    axes = [tag("path", d="".join(f"M{frame.left},{show(h)}H{right}" for h in heights), class_="grid")]
    for y, height in zip(y_ticks, heights, strict=True):
        axes.append(tag("text", _tick(y), x=frame.left - 6, y=height + 4, class_="end"))
    whole = x_label == "rounds"
    for x in [t for t in ticks(x_low, x_high, frame.ticks) if x_low <= t <= x_high and (t == int(t) or not whole)]:
        axes.append(tag("text", _tick(x), x=place(x, y_low)[0], y=foot + 17, class_="middle"))
    if frame is not SMALL:
        axes.append(tag("text", x_label, x=right, y=frame.height - 2, class_="end"))
    # Bands first, so that they cover no line.
    drawn = [_draw_band(line, [place(x, y) for x, y in _border(line)]) for line in lines if line.band]
    drawn += [_draw(line, [place(x, y) for x, y in line.points]) for line in lines if line.points]
    return tag(
        "svg",
        axes,
        drawn,
        viewBox=f"0 0 {frame.width} {frame.height}",
        class_="chart lines many" if len(lines) > MAX_NORMAL_LINES else "chart lines",
        role="img",
        aria_label=name,
        data_x=f"{frame.left} {right} {x_low:g} {x_high:g}",
        data_y=f"{foot} {frame.top} {y_low:g} {y_high:g}",
        data_unit=x_label,
    )


def legend(entries: Sequence[tuple[str, Style]]) -> Markup:
    items = []
    for label, style in entries:
        swatch = join(_stroke("M1,6H29", style), _marker(15, 6, style))
        picture = tag("svg", swatch, viewBox="0 0 30 12", class_="swatch", aria_hidden="true")
        items.append(tag("li", picture, label))
    return tag("ul", items, class_="legend")


def figure(caption: str, picture: Markup, below: Markup | str = "", wide: bool = False) -> Markup | None:
    """A picture with its caption above and its legend or note below; None if the picture is empty."""
    if not picture:
        return None
    return tag("figure", tag("figcaption", caption), picture, below, class_="wide" if wide else None)


def name_clients(clients: Iterable[tuple[int, str]]) -> list[str]:
    """Labels such as ``3 SNN``, from ids and kinds."""
    return [f"{id_} {kind.upper()}" for id_, kind in clients]


def small_multiples(lines: Sequence[Line], behind: Line, x_label: str) -> Markup:
    """A small chart for each line, all on the same axes, with ``behind`` in each for comparison."""
    panels = []
    for line in lines:
        if line.points:
            title = tag(
                "div", tag("span", line.label), tag("strong", f"{line.points[-1][1]:.1f}"), class_="panel-title"
            )
            chart = line_chart([behind, line], x_label, line.label, SMALL, lines)
            panels.append(tag("div", title, chart))
    return tag("div", panels, class_="multiples") if panels else Markup("")


def key_of(lines: Sequence[Line]) -> Markup:
    return legend([(line.label, line.style) for line in lines if line.points])


def group_name(group: str) -> str:
    return {"all": "all clients", "cross": "across kinds", "bridge": "Bridge"}.get(group, group.upper())


def _border(line: Line) -> list[tuple[float, float]]:
    """The outline of the line's band: its upper side, then its lower side from right to left."""
    both = list(zip(line.points, line.band, strict=True)) if line.band else []
    return [(x, y + half) for (x, y), half in both] + [(x, y - half) for (x, y), half in reversed(both)]


def _path(placed: Points) -> str:
    return "M" + "L".join(f"{show(x)},{show(y)}" for x, y in placed)


def _draw(line: Line, placed: Points) -> Markup:
    points = " ".join(f"{x:.4g},{y:.4g}" for x, y in line.points) if line.label else None
    return _grouped(line, join(_stroke(_path(placed), line.style), _marker(*placed[-1], line.style)), points)


def _draw_band(line: Line, border: Points) -> Markup:
    return _grouped(line, tag("path", d=f"{_path(border)}z", class_=f"band s{line.style.colour} f{line.style.colour}"))


def _grouped(line: Line, content: Markup, points: str | None = None) -> Markup:
    """What is drawn of a line, with the names by which the page's script finds it."""
    return tag(
        "g",
        content,
        class_="line",
        data_points=points,
        data_label=line.label,
        data_run=line.run or None,
        data_group=line.group or None,
        data_series=line.series or None,
    )


def _stroke(path: str, style: Style) -> Markup:
    return tag("path", d=path, class_=f"s{style.colour}", stroke_dasharray=DASHES[style.dash] or None)


def _marker(x: float, y: float, style: Style) -> Markup:
    shapes = {
        "circle": f"M{show(x - 3)},{show(y)}a3,3 0 1 0 6,0a3,3 0 1 0 -6,0z",
        "square": f"M{show(x - 3)},{show(y - 3)}h6v6h-6z",
        "triangle": f"M{show(x)},{show(y - 4)}l4,7h-8z",
        "diamond": f"M{show(x)},{show(y - 4)}l4,4l-4,4l-4,-4z",
    }
    return tag("path", d=shapes[MARKERS[style.marker]], class_=f"f{style.colour}")


def _tick(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"
