"""What `asfedbridge analyze` and the diagnostics of a run measured, as figures of the page."""

from collections.abc import Sequence
from dataclasses import dataclass

from asfedbridge.analysis import CROSS
from asfedbridge.report.charts import Line, figure, group_name, key_of, legend, line_chart, name_clients, thin
from asfedbridge.report.curves import Points
from asfedbridge.report.markup import Markup, tag
from asfedbridge.report.palette import GROUPS, Style, cycle
from asfedbridge.report.pictures import heat_map, rate_bars
from asfedbridge.runs import Analysis, ClientRates, Measure, RoundAnalysis

MEASURES = {
    "cka": ("Linear CKA of features: 1 is alike", "seq"),
    "mmd": ("MMD² of features: 0 is alike", "seq"),
    "gradients": ("Cosine of gradients", "div"),
}


def analyses(found: Analysis | None) -> list[Markup | None]:
    if found is None:
        return []
    names = name_clients([(c.id, c.kind) for c in found.clients])
    parts: list[Markup | None] = []
    for measure, (caption, ramp) in MEASURES.items():
        matrix = found.measures[measure].matrix
        high = max([v for row in matrix for v in row if v is not None], default=1.0) if measure == "mmd" else 1.0
        low = -1.0 if ramp == "div" else 0.0
        means = [f"{group_name(b)} {mean:.3f}" for b, mean in _means(found.measures[measure])]
        picture = heat_map(matrix, names, low, high, ramp, caption)
        parts.append(figure(caption, picture, tag("p", "means: ", ", ".join(means) or "none", class_="quiet")))
    parts.append(rates(found.rates))
    return parts


def courses(course: Sequence[RoundAnalysis], most: int) -> list[Markup | None]:
    """Each measure over rounds; curves have at most so many points."""
    parts: list[Markup | None] = []
    for measure, (caption, _) in MEASURES.items():
        lines = [
            Line(group_name(b), thin(points, most), GROUPS.get(b, cycle(5)))
            for b, points in blocks_by_round(course, measure).items()
        ]
        picture = line_chart(lines, "rounds", f"{caption} by round")
        parts.append(figure(f"{caption}, by round, before aggregation", picture, key_of(lines)))
    return parts


def blocks_by_round(course: Sequence[RoundAnalysis], measure: str) -> dict[str, Points]:
    """The mean of each block over rounds; a round without a value is left out."""
    blocks: dict[str, Points] = {}
    for entry in course:
        for block, mean in _means(entry.measures[measure]):
            blocks.setdefault(block, []).append((float(entry.round), mean))
    return blocks


@dataclass(frozen=True)
class Rates:
    """Mean shares over the SNN clients that have as many time steps as the first."""

    steps: int
    clients: int
    levels: list[str]
    places: dict[str, dict[str, list[float]]]  # by stage, then snn or bridge


def mean_rates(entries: Sequence[ClientRates]) -> Rates | None:
    alike = [e for e in entries if e.T == entries[0].T]
    if not alike:
        return None
    places: dict[str, dict[str, list[float]]] = {}
    for who in ("snn", "bridge"):
        for place in alike[0].shares.get(who, {}):
            having = [found[place] for e in alike if place in (found := e.shares.get(who, {}))]
            places.setdefault(place, {})[who] = [sum(c) / len(c) for c in zip(*having, strict=True)]
    levels = ["other" if v is None else f"{v:g}" for v in alike[0].levels]
    if levels[-1] == "other" and not any(values[-1] for entry in places.values() for values in entry.values()):
        levels = levels[:-1]
        places = {p: {w: v[:-1] for w, v in entry.items()} for p, entry in places.items()}
    return Rates(alike[0].T, len(alike), levels, places)


def rates(entries: Sequence[ClientRates]) -> Markup | None:
    found = mean_rates(entries)
    if found is None:
        return None
    who = {w: None for entry in found.places.values() for w in entry}
    key = [(("SNN stages", "Bridge ports")[w == "bridge"], Style((1, 0)[w == "bridge"], 0, 1)) for w in who]
    caption = f"Firing rates: share of values at each rate, T = {found.steps}, {found.clients} SNN clients"
    return figure(caption, rate_bars(found.places, found.levels, caption), legend(key))


def _means(measure: Measure) -> list[tuple[str, float]]:
    """Of each block that has one; pairs of different kinds last."""
    names = sorted(measure.blocks, key=lambda name: (name == CROSS, name))
    return [(name, mean) for name in names if (mean := measure.mean(name)) is not None]
