"""Runs are pooled over seeds, compared with Standalone, and kept apart where anything else differs."""

from typing import Any

from tests.report.folders import make_spec

from asfedbridge.report.comparison import Comparison, Entry, compare
from asfedbridge.report.settings import flatten
from asfedbridge.runs.spec import to_table
from asfedbridge.runs.summary import parse_summary


def entry(method: str, seed: int, ann: float, snn: float, **changes: Any) -> Entry:
    """A run of two clients; ``more`` changes its summary, all other ``changes`` its specification."""
    more = changes.pop("more", {})
    spec = make_spec(method, seed=seed, **changes)
    clients = [
        {"id": i, "kind": kind, "model": "resnet18", "width": 0.125, "T": 4, "accuracy": value, "train": 9, "test": 3}
        for i, (kind, value) in enumerate([("ann", ann), ("snn", snn)])
    ]
    summary = {"method": method, "data": spec.data, "seed": seed, "rounds": spec.rounds, "partition": spec.partition}
    summary |= {"alpha": spec.alpha, "best": None, "point": "trained", "bn_buffers": "local", "payload_mb": 1.0}
    summary |= {"accuracy": {"ann": ann, "snn": snn, "all": (ann + snn) / 2}, "clients": clients, "wall_seconds": 1.0}
    return Entry(parse_summary(summary | more), flatten(to_table(spec)))


def names(one: Comparison) -> list[str]:
    return list(one.methods)


ALONE = [entry("standalone", 0, 50.0, 40.0), entry("standalone", 1, 60.0, 40.0)]


def test_methods_over_seeds() -> None:
    (one,) = compare([*ALONE, entry("fml", 0, 51.0, 42.0), entry("fml", 1, 63.0, 44.0)])
    assert one.title == "cifar10, Dir(0.1)"
    title, rows, note = one.to_titled()
    assert title == one.title
    assert rows[0][0] == "method"
    assert rows[2] == [
        "fml", "57.00 ± 8.49", "43.00 ± 1.41", "50.00 ± 4.95",
        "+2.00 [-10.71, 14.71]", "+3.00 [-9.71, 15.71]", "+2.50 [-10.21, 15.21]", "2 seeds", "2",
    ]  # fmt: skip
    assert "95 % t interval" in note
    assert one.to_table()["methods"]["fml"]["seeds"] == [0, 1]


def test_one_seed_beside_standalone_is_compared_over_clients() -> None:
    (one,) = compare([ALONE[0], entry("fml", 0, 51.0, 42.0)])
    _, rows, note = one.to_titled()
    assert rows[2][-2:] == ["2 clients", "1"]
    assert "it says nothing about other seeds" in note


def test_nothing_to_compare() -> None:
    assert compare([ALONE[0]]) == []
    assert compare([ALONE[0], entry("fml", 1, 51.0, 42.0)]) == []  # seeds differ
    assert compare([entry("fedavg", 0, 50.0, 40.0), entry("fml", 0, 51.0, 42.0)]) == []  # neither is the reference


def test_protocols_are_not_pooled() -> None:
    longer = [entry(m, s, 70.0 + s, 60.0, epochs=9) for m in ("standalone", "fml") for s in (0, 1)]
    skewed = [entry("fml", s, 20.0, 10.0, alpha=0.5) for s in (0, 1)]
    found = compare([*ALONE, entry("fml", 0, 51.0, 42.0), *longer, *skewed])
    assert {one.title: [len(s.runs) for s in one.methods.values()] for one in found} == {
        "cifar10, Dir(0.1)": [2, 1],
        "cifar10, Dir(0.1), epochs=9": [2, 2],
        "cifar10, Dir(0.5)": [2],
    }
    assert found[2].reference is None


def test_runs_with_and_without_diagnostics_are_pooled() -> None:
    (one,) = compare([*ALONE, entry("fml", 0, 51.0, 42.0, diagnose_every=1), entry("fml", 1, 51.0, 42.0)])
    assert {name: len(series.runs) for name, series in one.methods.items()} == {"standalone": 2, "fml": 2}


def test_runs_on_different_data_are_not_pooled() -> None:
    changed = [entry("standalone", s, 9.0, 9.0, more={"data_fingerprint": "f00d" * 9}) for s in (0, 1)]
    found = compare([*ALONE, *changed])
    assert [one.title for one in found] == ["cifar10, Dir(0.1), data unknown", "cifar10, Dir(0.1), data f00df00d"]


def test_each_setting_of_a_method_is_a_row() -> None:
    runs = [entry("fedprox", s, 50.0, 40.0, method__mu=mu) for mu in (0.01, 0.1) for s in (0, 1)]
    (one,) = compare([*ALONE, *runs])
    assert names(one) == ["standalone", "fedprox (mu=0.01)", "fedprox (mu=0.1)"]


def test_runs_on_different_shards_are_not_paired() -> None:
    """As with pooled data: same specification and seed, but different test images."""
    shards = [entry("centralized", s, 90.0, 90.0, more={"partition_digest": "b"}) for s in (0, 1)]
    alone = [Entry(parse_summary({**e.summary, "partition_digest": "a"}), e.fields) for e in ALONE]
    (one,) = compare([*alone, *shards])
    assert one.to_titled().rows[0] == ["method", "ANN", "SNN", "all", "n"]
    assert one.to_table()["methods"]["centralized"]["difference"]["all"] is None


def test_runs_that_were_stopped_early_are_counted() -> None:
    stop = {"stopped_early": {"rounds": 4, "reason": "no gain"}}
    (one,) = compare([ALONE[0], entry("standalone", 1, 60.0, 40.0, more=stop)])
    assert one.to_titled().note.endswith("Runs that were stopped early: 1.")
    assert one.to_table()["stopped_early"] == 1
    assert "stopped" not in compare(ALONE)[0].to_titled().note


def test_a_repeated_run_is_left_out_and_counted() -> None:
    (one,) = compare([*ALONE, ALONE[0]])
    assert len(one.methods["standalone"].runs) == 2
    assert "Repeated runs left out: 1." in one.to_titled().note


def test_runs_without_a_specification_are_compared_by_their_summaries() -> None:
    bare = [Entry(e.summary, {}) for e in ALONE]
    (one,) = compare([*bare, Entry(entry("fml", 0, 51.0, 42.0).summary, {})])
    assert names(one) == ["standalone", "fml"]
