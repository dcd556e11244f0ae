"""Figures of the page from `asfedbridge analyze` and from the diagnostics of a run."""

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
    "cka": ("Linear CKA of features: 1 is most similar", "seq"),
    "mmd": ("MMD² of features: 0 is most similar", "seq"),
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
        picture = heat_map(matrix, names, names, low, high, ramp, caption)
        parts.append(figure(caption, picture, tag("p", "means: ", ", ".join(means) or "none", class_="quiet")))
    parts.append(rates(found.rates))
    return parts


def courses(course: Sequence[RoundAnalysis], max_points: int) -> list[Markup | None]:
    """Each measure over rounds."""
    parts: list[Markup | None] = []
    for measure, (caption, _) in MEASURES.items():
        lines = [
            Line(group_name(b), thin(points, max_points), GROUPS.get(b, cycle(5)))
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
    """Mean shares over the SNN clients with the same number of time steps as the first one."""

    steps: int
    clients: int
    levels: list[str]
    places: dict[str, dict[str, list[float]]]  # by stage, then snn or bridge


def mean_rates(entries: Sequence[ClientRates]) -> Rates | None:
    same_steps = [e for e in entries if e.T == entries[0].T]
    if not same_steps:
        return None
    places: dict[str, dict[str, list[float]]] = {}
    for network in ("snn", "bridge"):
        for place in same_steps[0].shares.get(network, {}):
            shares = [found[place] for e in same_steps if place in (found := e.shares.get(network, {}))]
            places.setdefault(place, {})[network] = [sum(c) / len(c) for c in zip(*shares, strict=True)]
    levels = ["other" if v is None else f"{v:g}" for v in same_steps[0].levels]
    if levels[-1] == "other" and not any(values[-1] for entry in places.values() for values in entry.values()):
        levels = levels[:-1]
        places = {p: {w: v[:-1] for w, v in entry.items()} for p, entry in places.items()}
    return Rates(same_steps[0].T, len(same_steps), levels, places)


def rates(entries: Sequence[ClientRates]) -> Markup | None:
    found = mean_rates(entries)
    if found is None:
        return None
    networks = {w: None for entry in found.places.values() for w in entry}
    key = [(("SNN stages", "Bridge ports")[w == "bridge"], Style((1, 0)[w == "bridge"], 0, 1)) for w in networks]
    caption = f"Firing rates: share of values at each rate, T = {found.steps}, {found.clients} SNN clients"
    return figure(caption, rate_bars(found.places, found.levels, caption), legend(key))


def _means(measure: Measure) -> list[tuple[str, float]]:
    """The mean of each block that has one; pairs of different kinds come last."""
    names = sorted(measure.blocks, key=lambda name: (name == CROSS, name))
    return [(name, mean) for name in names if (mean := measure.mean(name)) is not None]
