"""Tables of analyses, from synthetic analyses."""

from pathlib import Path
from typing import Any

import pytest
from tests.report.folders import analysis_content

from asfedbridge import cli
from asfedbridge.paper.experiments import find_experiment
from asfedbridge.paper.grid import Bench
from asfedbridge.paper.reproduce import job_of
from asfedbridge.report.analysis_tables import course_tables, measure_tables
from asfedbridge.runs.analysis_record import parse_analysis


def tables(name: str, changes: dict[str, Any], client: int | None = None) -> Any:
    """The tables of a synthetic analysis of two clients, with these changes."""
    clients = [{"id": i, "kind": "ann", "model": "vgg9", "width": 1.0, "T": 1, "accuracy": 50.0} for i in range(2)]
    analysis = parse_analysis(analysis_content(clients) | changes)
    experiment = find_experiment(name)
    cells = experiment.cells(Bench("smoke"))[:1]
    known = {job_of(cells[0], 42, Path("out")).folder: analysis}
    return measure_tables(experiment, cells, [42], Path("out"), known, client)


def rates(client: int, first: float) -> dict[str, Any]:
    shares = {"stage 1": [first, 1 - first, 0.0]}
    return {"client": client, "T": 1, "levels": [0, 1, None], "snn": shares, "bridge": {"stage 1": [1.0, 0.0, 0.0]}}


def test_rates_are_shown_for_all_snn_clients_and_for_one() -> None:
    (mean, mean_rows, _), (own, own_rows, _) = tables("rates", {"rates": [rates(8, 0.2), rates(9, 0.6)]}, client=9)
    assert mean.endswith("shares of firing rates, mean over SNN clients")
    assert own.endswith("shares of firing rates, client 9")
    assert mean_rows[0] == own_rows[0] == ["", "whose", "0", "1", "other"]
    assert mean_rows[2] == ["stage 1", "snn", "0.400", "0.600", "0.000"]
    assert own_rows[1:] == [
        ["stage 1", "bridge", "1.000", "0.000", "0.000"],
        ["stage 1", "snn", "0.600", "0.400", "0.000"],
    ]


def test_blocks_name_the_point_of_the_analysis() -> None:
    blocks = {"ann": {"mean": 0.5, "pairs": 10}, "cross": {"mean": None, "pairs": 0}}
    ((_, rows, _),) = tables("cka", {"cka": {"blocks": blocks, "matrix": [[1, 0.5], [0.5, 1]]}})
    assert rows[:2] == [
        ["", "accuracy", "point", "ANN pairs", "cross pairs", "n"],
        ["standalone", "50.00", "trained", "0.5000", "-", "1"],
    ]


def test_rounds_are_means_over_seeds() -> None:
    cells = find_experiment("motivation").cells(Bench("smoke"))[:1]
    clients = [{"id": i, "kind": "ann", "model": "vgg9", "width": 1.0, "T": 1, "accuracy": 50.0} for i in range(2)]
    known = {}
    for seed, accuracy in ((1, 40.0), (2, 60.0)):
        content = analysis_content(clients)
        content["by_round"][1]["accuracy"] = {"received": {"all": accuracy}, "trained": {}}
        known[job_of(cells[0], seed, Path("out")).folder] = parse_analysis(content).by_round
    ((title, rows, _),) = course_tables(cells, [1, 2, 3], Path("out"), known)
    assert title.endswith(", round by round")
    assert rows[0][:6] == ["", "round", "accuracy", "trained", "CKA ANN", "CKA cross"]
    assert [row[1:6] for row in rows[1:]] == [
        ["1", "-", "-", "0.8000", "0.3000"],
        ["2", "50.00", "-", "0.8000", "0.3000"],
    ]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("main --point trained", "--point trained: main has no evaluation points; only cka, mmd, gradients do"),
        ("rates --point trained", "--point trained: rates has no evaluation points"),
        ("cka --client 9", "--client 9: cka does not show single clients; only rates does"),
        ("rates --client 3", "--client 3: not an SNN client of this experiment; use one of [5, 6, 7, 8, 9]"),
        ("rates --client x", "invalid client id 'x': expected an integer, e.g. 9"),
    ],
)
def test_unknown_options_of_an_experiment_are_bad_input(words: str, reason: str, tmp_path: Path, capsys: Any) -> None:
    assert cli.main(["reproduce", *words.split(), "--scale", "smoke", "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert reason in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "out").exists()
