"""Tables of an experiment against numbers computed by hand."""

import csv
import io
from pathlib import Path

import pytest

from asfedbridge.paper.grid import Bench, Cell, Experiment
from asfedbridge.report.experiment_tables import Result, collect, render, tables, tables_to_csv, to_csv, to_latex
from asfedbridge.report.statistics import Scores, Series
from asfedbridge.report.tables import Titled

SPEC = Bench("smoke").spec("standalone", "cifar10")
EXPERIMENT = Experiment("x", "A title", "A claim.", lambda bench: [])


def result(
    row: str,
    ann: list[float],
    snn: list[float],
    reported: float | None,
    column: str = "c",
    why: str = "",
    partition: str = "",
    **shared: float,
) -> Result:
    """One ANN and one SNN client with these accuracies on seeds 0, 1, ..."""
    runs = {}
    for seed, (a, s) in enumerate(zip(ann, snn, strict=True)):
        clients = {"ann": {0: a}, "snn": {1: s}, "all": {0: a, 1: s}}
        runs[seed] = Scores({"ann": a, "snn": s, "all": (a + s) / 2, **shared}, clients, (), partition)
    return Result(Cell(row, column, SPEC, {"all": reported} if reported is not None else {}), Series(runs), why)


def lines(results: list[Result]) -> dict[tuple[str, str], dict[str, str]]:
    return {(r["row"], r["clients"]): r for r in csv.DictReader(io.StringIO(to_csv(results)))}


GOOD = result("good", [70.0, 74.0], [60.0, 64.0], 90.0)
BETTER = result("better", [80.0], [70.0], 80.0)
NEW = result("new", [50.0], [40.0], None)
LOST = result("lost", [], [], 85.0, why="no such file")


def test_mean_spread_difference_and_ranks() -> None:
    [(name, rows, note)] = tables([GOOD, BETTER, NEW, LOST])
    assert (name, note) == ("c", "")
    assert rows == [
        ["", "ANN", "SNN", "all", "n", "paper all", "all vs paper", "rank", "paper rank"],
        ["good", "72.00 ± 2.83", "62.00 ± 2.83", "67.00 ± 2.83", "2", "90.00", "-23.00", "2", "1"],
        ["better", "80.00", "70.00", "75.00", "1", "80.00", "-5.00", "1", "3"],
        ["new", "50.00", "40.00", "45.00", "1", "-", "-", "3", "-"],
        ["lost", "-", "-", "failed", "0", "85.00", "-", "-", "2"],
    ]


def test_differences_are_paired_by_seed() -> None:
    """On each seed the difference is +1 or +3, though the seeds themselves are 20 points apart."""
    alone = result("standalone", [50.0, 70.0], [50.0, 70.0], None)
    ahead = result("ahead", [51.0, 73.0], [52.0, 72.0], None)
    late = Result(ahead.cell, Series({1: ahead.series.runs[1]}))
    [(_, rows, note)] = tables([alone, ahead, late, LOST])
    assert rows[0][4:9] == ["ANN vs standalone", "SNN vs standalone", "all vs standalone", "interval over", "n"]
    assert [row[4:8] for row in rows[1:]] == [
        ["", "", "", ""],
        ["+2.00 [-10.71, 14.71]", "+2.00 [2.00, 2.00]*", "+2.00 [-4.35, 8.35]", "2 seeds"],
        ["+3.00", "+2.00", "+2.50 [-3.85, 8.85]", "2 clients"],
        ["-", "-", "-", "-"],
    ]
    assert "95 % t interval" in note
    assert "it says nothing about other seeds" in note
    parts = lines([alone, ahead, LOST])
    found = parts["ahead", "ann"]
    assert [found[key] for key in ("reference", "difference", "n", "unit")] == ["standalone", "2.0000", "2", "seeds"]
    assert (float(found["low"]), float(found["high"])) == (pytest.approx(-10.7062), pytest.approx(14.7062))
    assert found["by_seed"] == "+1.0000 +3.0000"
    assert (parts["lost", "all"]["difference"], parts["lost", "all"]["reference"]) == ("", "standalone")
    assert parts["standalone", "all"]["difference"] == ""


def test_shared_networks_are_columns_beside_the_clients() -> None:
    alone = result("standalone", [50.0], [60.0], 80.0)
    bridged = result("as-fedbridge", [51.0], [61.0], 90.0, bridge=70.0, fused=71.5)
    [(_, rows, _)] = tables([alone, bridged])
    assert rows[0][:7] == ["", "ANN", "SNN", "all", "Bridge", "fused", "ANN vs standalone"]
    assert [row[3:6] for row in rows[1:]] == [["55.00", "-", "-"], ["56.00", "70.00", "71.50"]]
    assert "Bridge vs standalone" not in rows[0]
    found = lines([alone, bridged])
    assert found["as-fedbridge", "bridge"]["difference"] == "15.0000"  # to the clients of Standalone
    assert found["as-fedbridge", "fused"]["difference"] == "16.5000"


def test_runs_on_different_shards_are_not_compared() -> None:
    """With pooled data, clients are judged on different images."""
    pooled = result("centralized", [30.0], [30.0], None, partition="pooled")
    alone = result("standalone", [50.0], [60.0], None, partition="split")
    [(_, rows, note)] = tables([pooled, alone])
    assert rows[0] == ["", "ANN", "SNN", "all", "n", "rank"]
    assert note == ""


def test_an_ablation_is_compared_with_the_complete_method() -> None:
    less, complete = result("no-x", [60.0], [60.0], 69.0), result("complete", [62.0], [63.0], 70.0)
    [(_, rows, _)] = tables([less, complete])
    assert rows[0][6] == "all vs complete"
    assert rows[1][6].startswith("-2.50 [")
    assert rows[2][6] == ""
    bridges = [result(r.cell.row, [60.0], [60.0], None, bridge=b) for r, b in ((less, 80.0), (complete, 83.0))]
    assert lines(bridges)["no-x", "bridge"]["difference"] == "-3.0000"  # to the complete method's Bridge


def test_without_a_reported_value_there_is_nothing_to_compare_with() -> None:
    [(_, rows, _)] = tables([NEW])
    assert rows == [["", "ANN", "SNN", "all", "n", "rank"], ["new", "50.00", "40.00", "45.00", "1", "1"]]


def test_many_columns_share_one_table() -> None:
    several = [result("a", [10.0 * i], [10.0 * i], None, f"{i} SNN") for i in range(1, 6)]
    several.append(result("b", [5.0], [5.0], None, "3 SNN"))
    [(name, rows, note)] = tables(several)
    assert (name, note) == ("", "")
    assert rows == [
        ["", "1 SNN", "2 SNN", "3 SNN", "4 SNN", "5 SNN"],
        ["a", "10.00", "20.00", "30.00", "40.00", "50.00"],
        ["b", "-", "-", "5.00", "-", "-"],
    ]


def test_many_columns_have_a_table_of_differences() -> None:
    names = [f"{i} SNN" for i in range(1, 6)]
    alone = [result("standalone", [50.0, 60.0], [40.0, 50.0], None, name) for name in names]
    ahead = [result("fml", [51.0 + i, 61.0 + i], [41.0, 51.0], None, name) for i, name in enumerate(names)]
    _, (title, rows, note) = tables([*alone, *ahead])
    assert title == "All clients vs standalone"
    assert rows == [["", *names], ["fml", *(f"+{1 + i / 2:.2f} [{1 + i / 2:.2f}, {1 + i / 2:.2f}]*" for i in range(5))]]
    assert "95 % t interval" in note


def test_the_page_names_claim_command_and_failures() -> None:
    page = render(EXPERIMENT, [GOOD, LOST], "asfedbridge reproduce x --scale cpu")
    for text in ("# A title", "The paper: A claim.", "asfedbridge reproduce x --scale cpu", "- lost, c: no such file"):
        assert text in page
    assert "Failed" not in render(EXPERIMENT, [GOOD], "x")


def test_csv_has_every_number_once() -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv([GOOD, LOST]))))
    assert [(r["row"], r["clients"]) for r in rows] == [
        ("good", "ann"),
        ("good", "snn"),
        ("good", "all"),
        ("lost", "all"),
    ]
    assert float(rows[2]["mean"]) == 67.0
    assert float(rows[2]["sd"]) == pytest.approx(2.8284, abs=1e-4)
    assert (rows[2]["seeds"], float(rows[2]["vs_paper"])) == ("2", -23.0)
    assert (rows[3]["mean"], rows[3]["failure"]) == ("", "no such file")


def test_tables_of_analyses_are_one_csv() -> None:
    text = tables_to_csv(
        [Titled(name, [["", "cross"], ["a", value]]) for name, value in (("c10", "0.1"), ("c100", "0.2"))]
    )
    assert text == "table,row,cross\nc10,a,0.1\nc100,a,0.2\n"


def test_latex_is_a_booktabs_table() -> None:
    text = to_latex(EXPERIMENT, [GOOD])
    assert r"good & 72.00 $\pm$ 2.83 & 62.00 $\pm$ 2.83 & 67.00 $\pm$ 2.83 & 2 & 90.00 & -23.00 & 1 & 1 \\" in text
    assert text.count(r"\toprule") == 1
    assert r"\begin{tabular}{lrrrrrrrr}" in text
    assert "footnotesize" not in text
    alone = result("standalone", [50.0, 70.0], [50.0, 70.0], None)
    compared = to_latex(EXPERIMENT, [alone, result("x", [52.0, 72.0], [51.0, 71.0], None)])
    assert "& +2.00 [2.00, 2.00]* &" in compared
    assert r"\par\footnotesize vs standalone: mean paired difference (same seed, same shards) with a 95 \%" in compared


def test_only_finished_runs_are_collected(tmp_path: Path) -> None:
    [found] = collect([Cell("a", "c", SPEC, {"all": 1.0})], [0, 1], tmp_path, {})
    assert found.count == 0
    assert found.show("all") == "-"
    assert found.against_paper("all") is None
