"""Pictures made of cells and bars as inline SVG: who holds which class, how alike clients are, how neurons fire."""

from collections.abc import Callable, Mapping, Sequence

from asfedbridge.report.markup import Markup, show, tag
from asfedbridge.report.palette import LEVELS

CELL = 30  # units of a cell that holds a number
MOST_NUMBERS = 12  # cells in a row; more are too small to read
BODY = 360  # units that all cells of a row may take
HEAD = 62  # for names of rows
Matrix = Sequence[Sequence[float | None]]


def heat_map(matrix: Matrix, rows: Sequence[str], low: float, high: float, ramp: str, name: str) -> Markup:
    """A square matrix; ``ramp`` is seq or div. A pair without a value is an empty cell."""
    return _cells(matrix, rows, rows, low, high, ramp, name, lambda v: f"{v:.2f}".replace("0.", ".", 1))


def shard_picture(counts: Sequence[Sequence[int]], rows: Sequence[str], name: str) -> Markup:
    """A row for each client, a column for each class, darker where there are more training images."""
    most = max((v for row in counts for v in row), default=0)
    columns = [str(i) for i in range(len(counts[0]))]
    matrix = [[v or None for v in row] for row in counts]
    # Square roots: a Dirichlet split has few large shards, and small ones must not look like none.
    shades = [[None if v is None else (v / max(most, 1)) ** 0.5 for v in row] for row in matrix]
    return _cells(matrix, rows, columns, 0.0, 1.0, "seq", name, lambda v: f"{v:.0f}", shades)


def refer(picture: Markup, name: str) -> Markup:
    """The same picture once more, by reference to the one that has this id."""
    opening = picture[: picture.index(">") + 1]
    return Markup(f"{opening}{tag('use', href=f'#{name}')}</svg>")


def _cells(
    matrix: Matrix,
    rows: Sequence[str],
    columns: Sequence[str],
    low: float,
    high: float,
    ramp: str,
    name: str,
    text: Callable[[float], str],
    shades: Matrix | None = None,
) -> Markup:
    """Cells of one shade are one path: a hundred classes stay small."""
    across = min(CELL, BODY / len(columns))
    down = min(CELL, max(8.0, across)) if len(rows) <= 2 * MOST_NUMBERS else max(2.0, BODY / len(rows))
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


def rate_bars(places: Mapping[str, Mapping[str, Sequence[float]]], levels: Sequence[str], name: str) -> Markup:
    """For each place (stage 1, ...) bars of the share at each level, SNN beside Bridge.

    Heights go by the square root of the share, as the axis says: most neurons are silent most of the time, and the
    other levels must be seen beside them.
    """
    who = [w for w in ("snn", "bridge") if any(w in entry for entry in places.values())]
    colours = {"snn": 1, "bridge": 0}
    height, gap, head = 78.0, 30.0, 40.0
    panel = 234.0  # two beside each other
    slot = (panel - head) / max(1, len(levels))
    bar = min(24.0, slot / (len(who) + 0.6))
    step = 1 if slot >= 34 else 2 if slot >= 19 else 4
    parts = []
    for index, (place, entry) in enumerate(places.items()):
        left, foot = (index % 2) * 246.0, (index // 2 + 1) * (height + gap) - gap + 8
        for share in (0.0, 0.1, 0.5, 1.0):
            y = foot - share**0.5 * height
            parts.append(tag("path", d=f"M{show(left + head)},{show(y)}h{show(panel - head)}", class_="grid"))
            parts.append(tag("text", f"{share:.0%}", x=left + head - 4, y=y + 4, class_="end"))
        for k, w in enumerate(who):
            for j, share in enumerate(entry.get(w, ())):
                x = left + head + slot * j + (slot - bar * len(who)) / 2 + bar * k
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
