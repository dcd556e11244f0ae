"""The table of an experiment against numbers worked out by hand."""

import csv
import io
from pathlib import Path

import pytest

from asfedbridge.experiments.catalogue import Bench, Cell, Experiment
from asfedbridge.report.reproduction import Result, collect, render, tables, tables_to_csv, to_csv, to_latex

SPEC = Bench("smoke").spec("standalone", "cifar10")
EXPERIMENT = Experiment("x", "A title", "A claim.", lambda bench: [])


def result(
    row: str, ann: list[float], snn: list[float], reported: float | None, column: str = "c", why: str = ""
) -> Result:
    both = [(a + s) / 2 for a, s in zip(ann, snn, strict=True)]
    groups = {"ann": ann, "snn": snn, "all": both} if ann else {}
    accuracies = {group: dict(enumerate(values)) for group, values in groups.items()}
    return Result(Cell(row, column, SPEC, {"all": reported} if reported is not None else {}), accuracies, why)


GOOD = result("good", [70.0, 74.0], [60.0, 64.0], 90.0)
BETTER = result("better", [80.0], [70.0], 80.0)
NEW = result("new", [50.0], [40.0], None)
LOST = result("lost", [], [], 85.0, why="no such file")


def test_mean_spread_difference_and_ranks() -> None:
    [(name, rows)] = tables([GOOD, BETTER, NEW, LOST])
    assert name == "c"
    assert rows == [
        ["", "ANN", "SNN", "all", "n", "paper all", "difference", "rank", "paper rank"],
        ["good", "72.00 ± 2.83", "62.00 ± 2.83", "67.00 ± 2.83", "2", "90.00", "-23.00", "2", "1"],
        ["better", "80.00", "70.00", "75.00", "1", "80.00", "-5.00", "1", "3"],
        ["new", "50.00", "40.00", "45.00", "1", "-", "-", "3", "-"],
        ["lost", "-", "-", "failed", "0", "85.00", "-", "-", "2"],
    ]


def test_gains_are_paired_by_seed() -> None:
    """On each seed the difference is +1 or +3, though the seeds themselves are 20 points apart."""
    alone = result("standalone", [50.0, 70.0], [50.0, 70.0], None)
    ahead = result("ahead", [51.0, 73.0], [51.0, 73.0], None)
    late = Result(ahead.cell, {"all": {1: 75.0, 2: 10.0}})
    [(_, rows)] = tables([alone, ahead, late, LOST])
    assert rows[0][4:6] == ["to standalone", "n"]
    assert [row[4] for row in rows[1:]] == ["", "+2.00 ± 1.41", "+5.00", "-"]
    parts = {(r["row"], r["clients"]): r for r in csv.DictReader(io.StringIO(to_csv([alone, ahead, LOST])))}
    assert parts["ahead", "snn"]["gains"] == "+1.0000 +3.0000"
    assert (parts["lost", "all"]["gains"], parts["lost", "all"]["reference"]) == ("", "standalone")


def test_the_bridge_stands_beside_the_clients_it_serves() -> None:
    alone = result("standalone", [50.0], [60.0], 80.0)
    bridged = Result(Cell("as-fedbridge", "c", SPEC, {"all": 90.0}), {"all": {0: 56.0}, "bridge": {0: 70.0}})
    [(_, rows)] = tables([alone, bridged])
    assert rows[0][:7] == ["", "ANN", "SNN", "all", "Bridge", "to standalone", "n"]
    assert [row[3:6] for row in rows[1:]] == [["55.00", "-", ""], ["56.00", "70.00", "+1.00"]]
    parts = {(r["row"], r["clients"]): r for r in csv.DictReader(io.StringIO(to_csv([alone, bridged])))}
    assert parts["as-fedbridge", "bridge"]["gains"] == "+15.0000"  # to what clients have alone


def test_pooled_data_are_judged_on_other_images() -> None:
    pooled = Cell("centralized", "c", Bench("smoke").spec("centralized", "cifar10"))
    alone = result("standalone", [50.0], [60.0], None)
    [(_, rows)] = tables([Result(pooled, {"all": {0: 30.0}}), alone])
    assert [row[4] for row in rows] == ["to standalone", "-", ""]


def test_an_ablation_is_compared_with_the_complete_method() -> None:
    less, complete = result("no-x", [60.0], [60.0], 69.0), result("complete", [62.0], [63.0], 70.0)
    [(_, rows)] = tables([less, complete])
    assert [row[4] for row in rows] == ["to complete", "-2.50", ""]
    bridges = [Result(r.cell, {**r.accuracies, "bridge": {0: b}}) for r, b in ((less, 80.0), (complete, 83.0))]
    parts = {(r["row"], r["clients"]): r for r in csv.DictReader(io.StringIO(to_csv(bridges)))}
    assert parts["no-x", "bridge"]["gains"] == "-3.0000"  # to the complete method's Bridge, not to its clients


def test_without_a_reported_value_there_is_nothing_to_compare_with() -> None:
    [(_, rows)] = tables([NEW])
    assert rows == [["", "ANN", "SNN", "all", "n", "rank"], ["new", "50.00", "40.00", "45.00", "1", "1"]]


def test_many_columns_stand_side_by_side() -> None:
    several = [result("a", [10.0 * i], [10.0 * i], None, f"{i} SNN") for i in range(1, 6)]
    several.append(result("b", [5.0], [5.0], None, "3 SNN"))
    [(name, rows)] = tables(several)
    assert name == ""
    assert rows == [
        ["", "1 SNN", "2 SNN", "3 SNN", "4 SNN", "5 SNN"],
        ["a", "10.00", "20.00", "30.00", "40.00", "50.00"],
        ["b", "-", "-", "5.00", "-", "-"],
    ]


def test_the_page_names_claim_command_and_failures() -> None:
    page = render(EXPERIMENT, [GOOD, LOST], "asfedbridge reproduce x --scale cpu")
    for text in ("# A title", "The paper: A claim.", "asfedbridge reproduce x --scale cpu", "- lost, c: no such file"):
        assert text in page
    assert "Failed" not in render(EXPERIMENT, [GOOD], "x")


def test_csv_holds_every_number_once() -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv([GOOD, LOST]))))
    assert [(r["row"], r["clients"]) for r in rows] == [
        ("good", "ann"),
        ("good", "snn"),
        ("good", "all"),
        ("lost", "all"),
    ]
    assert float(rows[2]["mean"]) == 67.0
    assert float(rows[2]["spread"]) == pytest.approx(2.8284, abs=1e-4)
    assert (rows[2]["n"], float(rows[2]["difference"])) == ("2", -23.0)
    assert (rows[3]["mean"], rows[3]["failure"]) == ("", "no such file")


def test_tables_of_analyses_are_one_csv() -> None:
    text = tables_to_csv([("c10", [["", "cross"], ["a", "0.1"]]), ("c100", [["", "cross"], ["a", "0.2"]])])
    assert text == "table,row,cross\nc10,a,0.1\nc100,a,0.2\n"


def test_latex_is_a_booktabs_table() -> None:
    text = to_latex(EXPERIMENT, [GOOD])
    assert r"good & 72.00 $\pm$ 2.83 & 62.00 $\pm$ 2.83 & 67.00 $\pm$ 2.83 & 2 & 90.00 & -23.00 & 1 & 1 \\" in text
    assert text.count(r"\toprule") == 1
    assert r"\begin{tabular}{lrrrrrrrr}" in text


def test_only_finished_runs_are_collected(tmp_path: Path) -> None:
    [found] = collect([Cell("a", "c", SPEC, {"all": 1.0})], [0, 1], tmp_path, {})
    assert found.count == 0
    assert found.shown("all") == "-"
    assert found.difference("all") is None
