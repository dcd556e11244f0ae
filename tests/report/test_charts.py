"""Contrast and distinct styles, axes with round numbers, and curves checked by hand."""

import re
from itertools import combinations

import pytest

from asfedbridge.core.method import Column
from asfedbridge.report import palette
from asfedbridge.report.analysis_figures import mean_rates
from asfedbridge.report.charts import Line, line_chart, thin, ticks
from asfedbridge.report.curves import MAX_LOSS, Mean, average, trace
from asfedbridge.report.markup import Markup, join, tag
from asfedbridge.report.page import _asset
from asfedbridge.report.pictures import heat_map
from asfedbridge.runs.analysis_record import ClientRates


def test_lines_stand_out_from_their_background() -> None:
    for background, colours in zip(palette.BACKGROUND, (palette.LIGHT, palette.DARK), strict=True):
        assert all(palette.contrast(c, background) >= 3 for c in colours)


def test_numbers_in_cells_are_legible() -> None:
    for ramp in palette.RAMPS.values():
        for anchors in ramp:
            for colour in palette.ramp(anchors):
                assert palette.contrast(palette.text_on(colour), colour) >= 4.5


def test_text_is_legible_in_both_themes() -> None:
    """WCAG AA: a contrast of 4.5 for every text colour on every background it is used on."""
    found = dict(re.findall(r"--(\w+): light-dark\((#\w{6}, #\w{6})\)", _asset("page.css")))
    backgrounds = [found[name] for name in ("ground", "head", "hot")] + [", ".join(palette.BACKGROUND)]
    for text in ("text", "quiet", "link"):
        for background in backgrounds:
            for ink, paper in zip(found[text].split(", "), background.split(", "), strict=True):
                assert palette.contrast(ink, paper) >= 4.5, (text, background)


def test_the_first_24_line_styles_are_distinct() -> None:
    styles = [palette.cycle(i) for i in range(24)]
    assert len(set(styles)) == 24
    for a, b in combinations((palette.GROUPS[g] for g in ("ann", "snn", "bnn", "qnn", "all")), 2):
        assert a.colour != b.colour
        assert (a.dash, a.marker) != (b.dash, b.marker)  # distinguishable without colour


def test_clients_of_a_kind_share_only_the_colour() -> None:
    styles = palette.of_clients(["ann"] * 5 + ["snn"] * 11)
    assert len(set(styles)) == 16
    assert [s.colour for s in styles] == [palette.GROUPS["ann"].colour] * 5 + [palette.GROUPS["snn"].colour] * 11


def test_contrast_of_black_on_white() -> None:
    assert palette.contrast("#000000", "#ffffff") == pytest.approx(21)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 100, [0, 20, 40, 60, 80, 100]),
        (0.31, 0.8, [0.3, 0.4, 0.5, 0.6, 0.7, 0.8]),
        (25, 85, [20, 30, 40, 50, 60, 70, 80, 90]),
        (5, 5, [5, 6]),
        (0, 0, [0, 0.2]),
    ],
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
    """The page's script computes values from paths with these two ranges."""
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


def test_no_lines_give_no_picture() -> None:
    assert line_chart([], "rounds", "x") == ""
    assert line_chart([Line("a", [], palette.Style(0))], "rounds", "x") == ""


def test_a_heat_map_shows_values_and_empty_cells() -> None:
    svg = heat_map([[1.0, -0.25], [None, 0.5]], ["0 ANN", "1 SNN"], ["0", "1"], -1.0, 1.0, "div", "x")
    assert re.findall(r'class="cell on-div\d"[^>]*>([^<]*)<', svg) == ["1.00", "-.25", ".50"]
    assert [len(re.findall("M", d)) for d in re.findall(r'd="([^"]*)" class="div', svg)] == [1, 1, 1]


def test_strings_other_than_markup_are_escaped() -> None:
    assert tag("a", "<b>", Markup("<i>"), title='"x"', class_=None) == '<a title="&quot;x&quot;">&lt;b&gt;<i></a>'
    assert join("a&b", None, 3, [2.5, ["<"]]) == "a&amp;b32.5&lt;"


def record(index: int, client: int, kind: str, **values: float) -> dict[str, object]:
    named = {key.replace("__", "."): v for key, v in values.items()}
    return {"round": index, "client": client, "kind": kind, "uplink_bytes": 2**20, "downlink_bytes": 2**19} | named


def test_an_absent_client_counts_with_its_latest_accuracy() -> None:
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


def test_the_columns_of_a_method_have_curves() -> None:
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


def test_received_accuracy_belongs_to_the_previous_round() -> None:
    records = [record(i, 0, "ann", received__accuracy=10.0 * i) for i in range(3)]
    assert trace(records, "received", 2).groups["all"] == [(0, 0), (1, 10), (2, 20)]


def test_rates_are_means_over_clients_with_the_same_steps() -> None:
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


def test_costs_until_an_evaluation() -> None:
    """What is evaluated as received has not yet cost the work and the upload of its round."""
    shared = {"client": 0, "kind": "ann", "received.accuracy": 1.0, "trained.accuracy": 2.0}
    records = [
        {**shared, "round": n, "uplink_bytes": 2**20, "downlink_bytes": 2**21, "seconds": 60.0} for n in range(2)
    ]
    received, trained = trace(records, "received", 2), trace(records, "trained", 2)
    assert received.megabytes == {0.0: 2.0, 1.0: 5.0}
    assert received.minutes == {0.0: 0.0, 1.0: 1.0}
    assert trained.megabytes == {1.0: 3.0, 2.0: 6.0}
    assert trained.minutes == {1.0: 1.0, 2.0: 2.0}


def test_losses_by_kind_and_terms_are_means_over_clients() -> None:
    shared = {"round": 0, "uplink_bytes": 0, "downlink_bytes": 0, "trained.accuracy": 1.0}
    losses = {0: ("ann", 1.0), 1: ("ann", 3.0), 2: ("snn", 1e9)}
    records = [
        {**shared, "client": c, "kind": kind, "trained.loss": loss, "inject.kd": loss}
        for c, (kind, loss) in losses.items()
    ]
    curves = trace(records, "trained", 1)
    assert curves.losses == {"ann": [(1.0, 2.0)], "snn": [(1.0, MAX_LOSS)]}
    assert curves.terms == {"inject.kd": [(1.0, pytest.approx((1 + 3 + MAX_LOSS) / 3))]}


def test_a_mean_over_runs_has_the_rounds_of_all() -> None:
    assert average([[(1, 10.0), (2, 20.0), (3, 0.0)], [(1, 14.0), (2, 20.0)]]) == [
        Mean(1, 12.0, pytest.approx(8**0.5)),
        Mean(2, 20.0, 0.0),
    ]
    assert average([]) == []


def test_no_band_covers_a_line() -> None:
    lines = [Line(str(i), [(0, 1.0), (1, 2.0)], palette.cycle(i), f"run-{i}", band=[0.5, 0.5]) for i in range(2)]
    svg = line_chart(lines, "rounds", "chart")
    assert svg.rindex('class="band') < svg.index("data-points")
    assert svg.count('data-run="run-1"') == 2  # the page's script hides a line with its band


def test_a_band_fits_into_the_chart() -> None:
    line = Line("mean", [(0, 10.0), (1, 10.0)], palette.cycle(0), band=[0.0, 40.0])
    svg = line_chart([line], "rounds", "chart")
    assert re.search(r'data-y="\d+ \d+ -40 60"', svg)
    assert svg.count('class="band') == 1
    assert 'data-points="0,10 1,10"' in svg
