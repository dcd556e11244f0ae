"""Line charts as inline SVG: no script draws them, so that they are there on paper and without one too."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from asfedbridge.report.markup import Markup, join, show, tag
from asfedbridge.report.palette import DASHES, MARKERS, Style

WIDTH, HEIGHT = 480, 250
LEFT, RIGHT, TOP, BOTTOM = 46, 14, 10, 34
MANY = 100  # lines that need to be thin
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Line:
    label: str
    points: Points
    style: Style
    run: str = ""  # id of the run it belongs to, where runs are filtered
    group: str = ""
    series: str = ""  # its name in the legend


def thin(points: Points, most: int) -> list[tuple[float, float]]:
    """At most so many points, evenly taken; the first and the last always."""
    if len(points) <= most:
        return list(points)
    last = len(points) - 1
    return [points[round(i * last / (most - 1))] for i in range(most)]


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About so many round numbers from at most ``low`` to at least ``high``."""
    span = (high - low) or abs(high) or 1.0
    rough = span / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * 0.999)
    first = math.floor(low / step + 1e-9)
    last = max(math.ceil(high / step - 1e-9), first + 1)
    return [round(i * step, 12) for i in range(first, last + 1)]


def line_chart(lines: Sequence[Line], x_label: str, name: str) -> Markup:
    """All lines over common axes; a script may show the values under the pointer from the ranges in its attributes."""
    points = [p for line in lines for p in line.points]
    if not points:
        return Markup("")
    xs = [x for x, _ in points]
    x_low, x_high = min(xs), max(max(xs), min(xs) + 1)
    y_ticks = ticks(min(y for _, y in points), max(y for _, y in points))
    y_low, y_high = y_ticks[0], y_ticks[-1]

    def place(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (x - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT)
        return across, TOP + (y_high - y) / (y_high - y_low) * (HEIGHT - TOP - BOTTOM)

    heights = [place(x_low, y)[1] for y in y_ticks]
    axes = [tag("path", d="".join(f"M{LEFT},{show(h)}H{WIDTH - RIGHT}" for h in heights), class_="grid")]
    for y, height in zip(y_ticks, heights, strict=True):
        axes.append(tag("text", _tick(y), x=LEFT - 6, y=height + 4, class_="end"))
    for x in [t for t in ticks(x_low, x_high) if x_low <= t <= x_high and t == int(t)]:
        axes.append(tag("text", _tick(x), x=place(x, y_low)[0], y=HEIGHT - BOTTOM + 17, class_="middle"))
    axes.append(tag("text", x_label, x=WIDTH - RIGHT, y=HEIGHT - 2, class_="end"))
    drawn = [_draw(line, [place(x, y) for x, y in line.points]) for line in lines if line.points]
    return tag(
        "svg",
        axes,
        drawn,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        class_="chart lines many" if len(lines) > MANY else "chart lines",
        role="img",
        aria_label=name,
        data_x=f"{LEFT} {WIDTH - RIGHT} {x_low:g} {x_high:g}",
        data_y=f"{HEIGHT - BOTTOM} {TOP} {y_low:g} {y_high:g}",
    )


def legend(entries: Sequence[tuple[str, Style]]) -> Markup:
    items = []
    for label, style in entries:
        swatch = join(_stroke("M1,6H29", style), _marker(15, 6, style))
        picture = tag("svg", swatch, viewBox="0 0 30 12", class_="swatch", aria_hidden="true")
        items.append(tag("li", picture, label))
    return tag("ul", items, class_="legend")


def figure(caption: str, picture: Markup, below: Markup | str = "", wide: bool = False) -> Markup | None:
    """A picture with its caption above; nothing where there is no picture."""
    if not picture:
        return None
    return tag("figure", tag("figcaption", caption), picture, below, class_="wide" if wide else None)


def name_clients(clients: Iterable[tuple[int, str]]) -> list[str]:
    """From ids and kinds."""
    return [f"{id_} {kind.upper()}" for id_, kind in clients]


def key_of(lines: Sequence[Line]) -> Markup:
    return legend([(line.label, line.style) for line in lines if line.points])


def group_name(group: str) -> str:
    return {"all": "all clients", "cross": "across kinds", "bridge": "Bridge"}.get(group, group.upper())


def _draw(line: Line, placed: Points) -> Markup:
    path = "M" + "L".join(f"{show(x)},{show(y)}" for x, y in placed)
    return tag(
        "g",
        _stroke(path, line.style),
        _marker(*placed[-1], line.style),
        class_="line",
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
