"""Colours that can be told apart, axes with round numbers, curves by hand."""

import re
from itertools import combinations

import pytest

from asfedbridge.core.method import Column
from asfedbridge.report import palette
from asfedbridge.report.analysis_figures import mean_rates
from asfedbridge.report.charts import Line, line_chart, thin, ticks
from asfedbridge.report.curves import trace
from asfedbridge.report.markup import Markup, join, tag
from asfedbridge.report.page import _asset
from asfedbridge.report.pictures import heat_map
from asfedbridge.runs.analysis_record import ClientRates


def test_lines_stand_out_from_their_ground() -> None:
    for ground, colours in zip(palette.GROUND, (palette.LIGHT, palette.DARK), strict=True):
        assert all(palette.contrast(c, ground) >= 3 for c in colours)


def test_numbers_in_cells_are_legible() -> None:
    for ramp in palette.RAMPS.values():
        for anchors in ramp:
            for colour in palette.ramp(anchors):
                assert palette.contrast(palette.text_on(colour), colour) >= 4.5


def test_text_is_legible_in_both_themes() -> None:
    """WCAG AA: 4.5 for every colour of text on every ground it stands on."""
    found = dict(re.findall(r"--(\w+): light-dark\((#\w{6}, #\w{6})\)", _asset("page.css")))
    grounds = [found[name] for name in ("ground", "head", "hot")] + [", ".join(palette.GROUND)]
    for text in ("text", "quiet", "link"):
        for ground in grounds:
            for ink, paper in zip(found[text].split(", "), ground.split(", "), strict=True):
                assert palette.contrast(ink, paper) >= 4.5, (text, ground)


def test_no_two_of_the_first_lines_look_alike() -> None:
    styles = [palette.cycle(i) for i in range(24)]
    assert len(set(styles)) == 24
    for a, b in combinations((palette.GROUPS[g] for g in ("ann", "snn", "bnn", "qnn", "all")), 2):
        assert a.colour != b.colour
        assert (a.dash, a.marker) != (b.dash, b.marker)  # told apart without colour


def test_clients_of_a_kind_share_its_colour_and_nothing_else() -> None:
    styles = palette.of_clients(["ann"] * 5 + ["snn"] * 11)
    assert len(set(styles)) == 16
    assert [s.colour for s in styles] == [palette.GROUPS["ann"].colour] * 5 + [palette.GROUPS["snn"].colour] * 11


def test_contrast_of_black_on_white() -> None:
    assert palette.contrast("#000000", "#ffffff") == pytest.approx(21)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 100, [0, 20, 40, 60, 80, 100]), (0.31, 0.8, [0.3, 0.4, 0.5, 0.6, 0.7, 0.8]), (5, 5, [5, 6]), (0, 0, [0, 0.2])],
)
def test_ticks(low: float, high: float, expected: list[float]) -> None:
    found = ticks(low, high)
    assert found[0] <= low
    assert found[-1] >= high
    assert found == pytest.approx(expected)


def test_a_thinned_curve_keeps_its_ends() -> None:
    points = [(float(i), float(i * i)) for i in range(1000)]
    few = thin(points, 20)
    assert (len(few), few[0], few[-1]) == (20, points[0], points[-1])
    assert set(few) <= set(points)
    assert thin(points[:5], 20) == points[:5]


def test_a_point_is_drawn_where_its_value_is() -> None:
    """The script reads values back from paths by these two ranges."""
    svg = line_chart([Line("a", [(0.0, 0.0), (5.0, 50.0), (10.0, 100.0)], palette.Style(0))], "rounds", "x")
    (x0, x1, low, high), (y0, y1, bottom, top) = (
        map(float, re.search(rf'data-{axis}="([^"]*)"', svg)[1].split())
        for axis in "xy"  # type: ignore[index]
    )
    path = re.search(r'<path d="M([^"Hz]*)" class="s0"', svg)
    assert path
    points = [tuple(map(float, p.split(","))) for p in path[1].split("L")]
    values = [
        (low + (x - x0) / (x1 - x0) * (high - low), bottom + (y - y0) / (y1 - y0) * (top - bottom)) for x, y in points
    ]
    assert values == [pytest.approx(v, abs=0.1) for v in [(0, 0), (5, 50), (10, 100)]]


def test_nothing_is_drawn_of_nothing() -> None:
    assert line_chart([], "rounds", "x") == ""
    assert line_chart([Line("a", [], palette.Style(0))], "rounds", "x") == ""


def test_a_heat_map_has_its_values_and_holes() -> None:
    svg = heat_map([[1.0, -0.25], [None, 0.5]], ["0 ANN", "1 SNN"], -1.0, 1.0, "div", "x")
    assert re.findall(r'class="cell on-div\d"[^>]*>([^<]*)<', svg) == ["1.00", "-.25", ".50"]
    assert [len(re.findall("M", d)) for d in re.findall(r'd="([^"]*)" class="div', svg)] == [1, 1, 1]


def test_whatever_is_not_markup_is_escaped() -> None:
    assert tag("a", "<b>", Markup("<i>"), title='"x"', class_=None) == '<a title="&quot;x&quot;">&lt;b&gt;<i></a>'
    assert join("a&b", None, 3, [2.5, ["<"]]) == "a&amp;b32.5&lt;"


def record(index: int, client: int, kind: str, **values: float) -> dict[str, object]:
    named = {key.replace("__", "."): v for key, v in values.items()}
    return {"round": index, "client": client, "kind": kind, "uplink_bytes": 2**20, "downlink_bytes": 2**19} | named


def test_who_did_not_take_part_counts_with_its_newest_accuracy() -> None:
    records = [
        record(0, 0, "ann", trained__accuracy=10.0),
        record(0, 1, "snn", trained__accuracy=30.0),
        record(1, 0, "ann", trained__accuracy=20.0),
        record(2, 0, "ann", received__accuracy=99.0),  # the closing visit
    ]
    curves = trace(records, "trained", 2)
    assert curves.groups == {"ann": [(1, 10), (2, 20)], "snn": [(1, 30), (2, 30)], "all": [(1, 20), (2, 25)]}
    assert curves.clients == {0: [(1, 10), (2, 20)], 1: [(1, 30)]}
    assert curves.traffic["up"] == [(0, 0), (1, 2), (2, 4)]
    assert curves.traffic["down"] == [(0, 0), (1, 1), (2, 2)]


def test_what_a_method_shows_beside_the_backbones_has_curves() -> None:
    records = [
        record(0, 0, "ann", received__accuracy=0.0, received__meme_accuracy=10.0, trained__extra_accuracy=1.0),
        record(0, 1, "snn", received__accuracy=0.0, received__meme_accuracy=30.0, received__bridge_accuracy=9.0),
        record(1, 0, "ann", received__accuracy=0.0, received__meme_accuracy=20.0),
        record(2, 0, "ann", received__accuracy=0.0),
    ]
    columns = [Column("bridge", "meme", "Bridge", "Bridge"), Column("extra", "extra", "", "", "trained")]
    found = trace(records, "received", 2, columns).added
    assert found == {"bridge": [(0, 20), (1, 25)], "extra": [(1, 1)]}
    assert trace(records, "received", 2).added == {}


def test_what_is_received_in_a_round_was_made_before_it() -> None:
    records = [record(i, 0, "ann", received__accuracy=10.0 * i) for i in range(3)]
    assert trace(records, "received", 2).groups["all"] == [(0, 0), (1, 10), (2, 20)]


def test_rates_are_means_over_clients_of_the_first_one_s_steps() -> None:
    def entry(steps: int, share: float, *more: str) -> ClientRates:
        places: dict[str, tuple[float, ...]] = dict.fromkeys(("stage 1", *more), (share, 1 - share, 0.0))
        return ClientRates(0, steps, (0.0, 1.0, None), {"snn": places})

    found = mean_rates([entry(1, 0.5), entry(1, 0.7), entry(2, 0.0)])
    assert found is not None
    assert (found.clients, found.levels) == (2, ["0", "1"])
    assert found.places["stage 1"]["snn"] == pytest.approx([0.6, 0.4])
    deeper = mean_rates([entry(1, 0.5, "stage 2"), entry(1, 0.7)])
    assert deeper
    assert deeper.places["stage 2"]["snn"] == pytest.approx([0.5, 0.5])  # over the clients that have the stage
    assert mean_rates([]) is None
