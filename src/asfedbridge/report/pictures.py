"""Heat maps and bar charts as inline SVG: shards, similarity of clients, firing rates."""

from collections.abc import Callable, Mapping, Sequence

from asfedbridge.report.markup import Markup, show, tag
from asfedbridge.report.palette import LEVELS

CELL = 30  # SVG units of a cell with a number
MAX_NUMBERS = 12  # in a row; more would be too small to read
BODY = 360  # maximum width of a row of cells
HEAD = 62  # width of the row names
Matrix = Sequence[Sequence[float | None]]


def heat_map(
    matrix: Matrix,
    rows: Sequence[str],
    columns: Sequence[str],
    low: float,
    high: float,
    ramp: str,
    name: str,
    text: Callable[[float], str] = lambda value: f"{value:.2f}".replace("0.", ".", 1),
    shades: Matrix | None = None,
) -> Markup:
    """A shade for each value, from ``low`` to ``high``; ``ramp`` is seq or div. None is an empty cell.

    ``shades`` are the values to shade instead of those in ``matrix``. Cells of one shade share one path, which keeps
    pictures with many classes small.
    """
    across = min(CELL, BODY / len(columns))
    down = min(CELL, max(8.0, across)) if len(rows) <= 2 * MAX_NUMBERS else max(2.0, BODY / len(rows))
    numbered = across >= CELL
    paths: dict[int, list[str]] = {}
    marks = []
    for i, row in enumerate(shades or matrix):
        for j, value in enumerate(row):
            if value is None:
                continue
            share = (value - low) / (high - low) if high > low else 0.0
            level = min(LEVELS - 1, max(0, round(share * (LEVELS - 1))))
            x, y = HEAD + j * across, i * down
            paths.setdefault(level, []).append(f"M{show(x)},{show(y)}h{show(across)}v{show(down)}h-{show(across)}z")
            if numbered and (number := matrix[i][j]) is not None:
                place = {"x": show(x + across / 2), "y": show(y + down / 2 + 4)}
                marks.append(tag("text", text(number), class_=f"cell on-{ramp}{level}", **place))
    shapes = [tag("path", d="".join(parts), class_=f"{ramp}{level}") for level, parts in sorted(paths.items())]
    every = max(1, -(-14 // down)) if down < 14 else 1
    names = [
        tag("text", label, x=HEAD - 6, y=i * down + down / 2 + 4, class_="end")
        for i, label in enumerate(rows)
        if i % every == 0
    ]
    foot = len(rows) * down
    step = 1 if numbered else 10 if across * 10 >= 30 else 50
    names += [
        tag("text", label.split(" ")[0], x=HEAD + (j + 0.5) * across, y=foot + 15, class_="middle")
        for j, label in enumerate(columns)
        if j % step == 0
    ]
    frame = tag("path", d=f"M{HEAD},0h{show(len(columns) * across)}v{show(foot)}H{HEAD}z", class_="frame")
    wide = max(HEAD + len(columns) * across + 8, 370.0)
    box = f"-1 -2 {show(wide)} {show(foot + 22)}"
    return tag("svg", shapes, frame, marks, names, viewBox=box, class_="chart", role="img", aria_label=name)


def shard_picture(counts: Sequence[Sequence[int]], rows: Sequence[str], name: str) -> Markup:
    """One row per client and one column per class; a stronger shade means more training images."""
    largest = max((v for row in counts for v in row), default=0)
    columns = [str(i) for i in range(len(counts[0]))]
    matrix = [[v or None for v in row] for row in counts]
    # Square roots keep the small counts of a Dirichlet split visible beside the few large ones.
    shades = [[None if v is None else (v / max(largest, 1)) ** 0.5 for v in row] for row in matrix]
    return heat_map(matrix, rows, columns, 0.0, 1.0, "seq", name, lambda v: f"{v:.0f}", shades)


def refer(picture: Markup, name: str) -> Markup:
    """The same picture again, as a reference to the element with this id."""
    opening = picture[: picture.index(">") + 1]
    return Markup(f"{opening}{tag('use', href=f'#{name}')}</svg>")


def rate_bars(places: Mapping[str, Mapping[str, Sequence[float]]], levels: Sequence[str], name: str) -> Markup:
    """One panel for each place (stage 1, ...): the share at each level, SNN beside Bridge.

    Heights are square roots of the shares, as the axis shows: most neurons are silent, and the other rates must remain
    visible beside them.
    """
    networks = [w for w in ("snn", "bridge") if any(w in entry for entry in places.values())]
    colours = {"snn": 1, "bridge": 0}
    height, gap, head = 78.0, 30.0, 40.0
    panel = 234.0  # two side by side
    slot = (panel - head) / max(1, len(levels))
    bar = min(24.0, slot / (len(networks) + 0.6))
    step = 1 if slot >= 34 else 2 if slot >= 19 else 4
    parts = []
    for index, (place, entry) in enumerate(places.items()):
        left, foot = (index % 2) * 246.0, (index // 2 + 1) * (height + gap) - gap + 8
        for share in (0.0, 0.1, 0.5, 1.0):
            y = foot - share**0.5 * height
            parts.append(tag("path", d=f"M{show(left + head)},{show(y)}h{show(panel - head)}", class_="grid"))
            parts.append(tag("text", f"{share:.0%}", x=left + head - 4, y=y + 4, class_="end"))
        for k, w in enumerate(networks):
            for j, share in enumerate(entry.get(w, ())):
                x = left + head + slot * j + (slot - bar * len(networks)) / 2 + bar * k
                tall = share**0.5 * height
                title = tag("title", f"{place}, {w.upper() if w == 'snn' else 'Bridge'}, rate {levels[j]}: {share:.2%}")
                box = {"x": x, "y": foot - tall, "width": max(1.0, bar - 1.5), "height": tall}
                parts.append(tag("rect", title, class_=f"f{colours[w]} bar-{w}", **box))
        parts.append(tag("text", place, x=left + panel - 2, y=foot - height + 13, class_="end strong"))
        for j, level in enumerate(levels):
            if j % step == 0:
                parts.append(tag("text", level, x=left + head + slot * (j + 0.5), y=foot + 15, class_="middle"))
    box_height = show(-(-len(places) // 2) * (height + gap) + 2)
    return tag("svg", parts, viewBox=f"-8 0 490 {box_height}", class_="chart", role="img", aria_label=name)
