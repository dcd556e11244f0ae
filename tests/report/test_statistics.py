"""Means and intervals against numbers computed by hand; t quantiles are from printed tables."""

from collections.abc import Mapping

import pytest

from asfedbridge.report.statistics import (
    Difference,
    Scores,
    Series,
    describe_differences,
    difference_columns,
    read_scores,
)
from asfedbridge.runs.summary import parse_summary

T_95 = {1: 12.706, 2: 4.303, 3: 3.182}  # two-sided 95 %, by degrees of freedom


def scores(ann: list[float], snn: list[float], partition: str = "", **shared: float) -> Scores:
    clients = {"ann": dict(enumerate(ann)), "snn": dict(enumerate(snn, start=len(ann)))}
    clients["all"] = clients["ann"] | clients["snn"]
    means = {group: sum(values.values()) / len(values) for group, values in clients.items()}
    shards = tuple((i, "ann" if i < len(ann) else "snn", 10, 5) for i in clients["all"])
    return Scores(means | shared, clients, shards, partition)


def series(runs: Mapping[int, Scores]) -> Series:
    return Series(dict(runs))


def test_an_interval_over_seeds_by_hand() -> None:
    found = describe_differences([1.0, 2.0, 6.0], "seeds")
    margin = T_95[2] * 7**0.5 / 3**0.5  # the sample variance is 7
    assert found.mean == pytest.approx(3.0)
    assert (found.low, found.high) == (pytest.approx(3 - margin, abs=1e-3), pytest.approx(3 + margin, abs=1e-3))
    assert (found.n, found.unit, found.excludes_zero) == (3, "seeds", False)
    assert str(found) == "+3.00 [-3.57, 9.57]"


@pytest.mark.parametrize(
    ("values", "excludes", "text"),
    [
        ([2.0, 2.1], True, "+2.05 [1.41, 2.69]*"),
        ([-2.0, -2.1], True, "-2.05 [-2.69, -1.41]*"),
        ([-1.0, 1.0], False, "+0.00 [-12.71, 12.71]"),
        ([0.0, 0.0], False, "+0.00 [0.00, 0.00]"),
        ([5.0], False, "+5.00"),
    ],
)
def test_an_asterisk_marks_an_interval_that_excludes_zero(values: list[float], excludes: bool, text: str) -> None:
    found = describe_differences(values, "seeds")
    assert found.excludes_zero is excludes
    assert found.to_table()["excludes_zero"] is excludes
    assert str(found) == text


def test_intervals_are_over_seeds_if_there_are_several() -> None:
    """The seeds are 20 points apart and the clients 10, but each seed gains 1 or 3."""
    alone = series({0: scores([45.0, 55.0], [50.0]), 1: scores([65.0, 75.0], [70.0]), 7: scores([1.0], [1.0])})
    ahead = series({1: scores([68.0, 78.0], [70.0]), 0: scores([46.0, 56.0], [50.0]), 8: scores([99.0], [99.0])})
    assert ahead.paired(alone, "ann") == {1: 3.0, 0: 1.0}
    margin = T_95[1] * 2**0.5 / 2**0.5
    found = ahead.difference(alone, "ann")
    assert found is not None
    assert (found.mean, found.n, found.unit) == (2.0, 2, "seeds")
    assert (found.low, found.high) == (pytest.approx(2 - margin, abs=1e-3), pytest.approx(2 + margin, abs=1e-3))
    assert ahead.difference(alone, "snn") == Difference(0.0, 0.0, 0.0, 2, "seeds")


def test_intervals_are_over_clients_for_a_single_seed() -> None:
    alone, ahead = series({3: scores([40.0, 50.0, 60.0], [9.0])}), series({3: scores([41.0, 52.0, 66.0], [12.0])})
    found = ahead.difference(alone, "ann")
    assert found is not None
    assert (found.mean, found.n, found.unit) == (pytest.approx(3.0), 3, "clients")
    assert found.low == pytest.approx(3 - T_95[2] * (7 / 3) ** 0.5, abs=1e-3)
    assert ahead.difference(alone, "snn") == Difference(3.0, None, None, 1, "clients")


def test_only_runs_on_the_same_shards_are_paired() -> None:
    one, other = scores([50.0], [40.0], "digest a"), scores([60.0], [50.0], "digest b")
    assert series({0: one}).difference(series({0: other}), "all") is None
    assert series({0: one}).difference(series({0: scores([50.0, 1.0], [40.0])}), "all") is None
    early = scores([60.0], [50.0])  # no digest: compared by the sizes of its shards
    assert series({0: early}).paired(series({0: one}), "all") == {0: 10.0}


def test_a_shared_network_is_compared_with_another_one_or_with_clients() -> None:
    alone = series({0: scores([50.0], [60.0])})
    bridged = series({0: scores([50.0], [60.0], bridge=70.0, fused=72.0)})
    better = series({0: scores([50.0], [60.0], bridge=73.0, fused=72.5)})
    assert bridged.difference(alone, "bridge") == Difference(15.0, None, None, 1, "seeds")
    assert better.difference(bridged, "bridge") == Difference(3.0, None, None, 1, "seeds")
    assert better.difference(bridged, "fused") == Difference(0.5, None, None, 1, "seeds")
    assert bridged.groups == ["ann", "snn", "all", "bridge", "fused"]


def test_mean_and_deviation() -> None:
    two = series({0: scores([70.0], [60.0]), 1: scores([74.0], [60.0])})
    assert (two.mean("ann"), two.deviation("ann"), two.show("ann")) == (72.0, pytest.approx(8**0.5), "72.00 ± 2.83")
    one = series({0: scores([70.0], [60.0])})
    assert (one.mean("ann"), one.deviation("ann"), one.show("ann")) == (70.0, None, "70.00")
    assert (one.mean("qnn"), one.show("qnn")) == (None, "-")


def test_a_table_shows_the_unit_of_each_interval() -> None:
    alone = series({0: scores([50.0, 60.0], [40.0]), 1: scores([50.0, 60.0], [40.0])})
    late = series({1: scores([52.0, 62.0], [43.0])})
    both = series({0: scores([51.0, 61.0], [41.0]), 1: scores([52.0, 62.0], [42.0])})
    columns, note = difference_columns([alone, both, late], alone, "standalone")
    assert columns[0] == ["ANN vs standalone", "SNN vs standalone", "all vs standalone", "interval over"]
    assert columns[1] == ["", "", "", ""]
    assert columns[2][-1] == "2 seeds"
    assert columns[3] == ["+2.00 [2.00, 2.00]*", "+3.00", "+2.33 [0.90, 3.77]*", "3 clients"]
    assert "it says nothing about other seeds" in note
    assert "other seeds" not in difference_columns([alone, both], alone, "standalone")[1]
    assert difference_columns([alone], alone, "standalone") == ([[], []], "")
    assert difference_columns([both], None, "") == ([[], []], "")


def test_the_fused_prediction_is_compared_with_the_clients_of_a_reference_without_one() -> None:
    alone = series({0: scores([50.0], [40.0]), 1: scores([50.0], [40.0])})
    both = series({s: scores([51.0], [41.0], bridge=60.0, fused=55.0) for s in (0, 1)})
    columns, _ = difference_columns([alone, both], alone, "standalone")
    assert columns[0][3:] == ["fused vs standalone", "interval over"]
    assert columns[2][3] == "+10.00 [10.00, 10.00]*"


def test_a_summary_is_read() -> None:
    clients = [
        {"id": 0, "kind": "ann", "accuracy": 50.0, "train": 9, "test": 3},
        {"id": 1, "kind": "snn", "accuracy": None, "train": 8, "test": 2},  # never drawn
    ]
    clients = [c | {"model": "resnet18", "width": 1.0} for c in clients]
    about = {"method": "fml", "data": "digits", "seed": 1, "rounds": 2, "partition": "iid", "alpha": 0.1}
    about |= {"bn_buffers": "local", "point": "trained", "payload_mb": 1.0, "wall_seconds": 1.0, "clients": clients}
    means = {"accuracy": {"ann": 50.0, "all": 50.0}, "fused": {"ann": 1.0, "all": 2.0}}
    found = read_scores(parse_summary(about | means))
    assert found.means == {"ann": 50.0, "all": 50.0, "fused": 2.0}
    assert found.clients == {"ann": {0: 50.0}, "all": {0: 50.0}}
    assert found.shards == ((0, "ann", 9, 3), (1, "snn", 8, 2))
