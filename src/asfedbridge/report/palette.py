"""Colours, dashes and markers that colour-blind readers can distinguish on a light and a dark background.

Hues are from Okabe and Ito (2008). Those with a contrast below 3 on white are darkened in the light theme. A `Style`
combines colour, dash and marker, so that no line is identified by colour alone.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple


class Style(NamedTuple):
    colour: int
    dash: int = 0
    marker: int = 0


LIGHT = ("#0072b2", "#d55e00", "#00805d", "#b4568b", "#946200", "#6b7280", "#1b1f24")
DARK = ("#56b4e9", "#f0803c", "#1fbf92", "#dd93bb", "#e69f00", "#f0e442", "#e8eaed")
INK = 6  # the colour of text
DASHES = ("", "7 3", "2 3", "9 3 2 3")
MARKERS = ("circle", "square", "triangle", "diamond")
GROUPS = {
    "ann": Style(0, 0, 0),
    "snn": Style(1, 1, 1),
    "bnn": Style(2, 2, 2),
    "qnn": Style(3, 3, 3),
    "all": Style(INK, 0, 3),
    "cross": Style(4, 2, 2),
    "bridge": Style(4, 2, 2),
}
BACKGROUND = ("#ffffff", "#14171b")  # of charts, light and dark
LEVELS = 9  # of a heat map
RAMPS = {  # from low to high, on a light and a dark background
    "seq": (("#f1f6fb", "#5fa2cf", "#08306b"), ("#1d2631", "#2f74a8", "#c6e4ff")),
    "div": (("#8c3a00", "#f3f3f3", "#08407a"), ("#ffa766", "#23282f", "#86c9ff")),
}


def cycle(index: int) -> Style:
    """The style of the n-th line; styles repeat after 24 lines."""
    return Style(index % INK, (index + index // INK) % len(DASHES), (index + index // INK) % len(MARKERS))


def of_clients(kinds: Sequence[str]) -> list[Style]:
    """One style for each client, in the colour of its kind; styles repeat after 16 clients of a kind."""
    ranks: Counter[str] = Counter()
    styles = []
    for kind in kinds:
        rank = ranks[kind]
        ranks[kind] += 1
        colour = GROUPS[kind].colour if kind in GROUPS else 5
        styles.append(Style(colour, rank % len(DASHES), (rank + rank // len(DASHES)) % len(MARKERS)))
    return styles


def ramp(anchors: tuple[str, ...], count: int = LEVELS) -> list[str]:
    """``count`` evenly spaced colours along the anchors."""
    stops = [[int(a[i : i + 2], 16) for i in (1, 3, 5)] for a in anchors]
    colours = []
    for step in range(count):
        place = step / (count - 1) * (len(stops) - 1)
        left = min(int(place), len(stops) - 2)
        mixed = [a + (b - a) * (place - left) for a, b in zip(stops[left], stops[left + 1], strict=True)]
        colours.append("#" + "".join(f"{round(v):02x}" for v in mixed))
    return colours


def contrast(one: str, other: str) -> float:
    """The contrast ratio of WCAG 2, from 1 to 21."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def text_on(colour: str) -> str:
    return max(("#000000", "#ffffff"), key=lambda ink: contrast(ink, colour))


def style_sheet() -> str:
    """The palette as CSS: --c0 ... for lines, .seq0 and .on-seq0 ... for cells of heat maps and numbers in them."""
    names = [f"--c{i}:light-dark({a},{b})" for i, (a, b) in enumerate(zip(LIGHT, DARK, strict=True))]
    rules = [f":root{{{';'.join(names)};--chart:light-dark({BACKGROUND[0]},{BACKGROUND[1]})}}"]
    for name, (light, dark) in RAMPS.items():
        for level, (a, b) in enumerate(zip(ramp(light), ramp(dark), strict=True)):
            rules.append(f".{name}{level}{{fill:light-dark({a},{b})}}")
            rules.append(f"svg .on-{name}{level}{{fill:light-dark({text_on(a)},{text_on(b)})}}")
    return "\n".join(rules)
