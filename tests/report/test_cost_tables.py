"""Costs of runs beside the paper's: means over seeds, and a note for every missing value."""

from dataclasses import replace
from pathlib import Path

from asfedbridge.paper.grid import Bench, Cell, Experiment
from asfedbridge.paper.reproduce import job_of
from asfedbridge.report.cost_tables import experiment_costs, method_rows, model_rows, of_clients
from asfedbridge.runs.cost_record import MethodCost, RunCosts
from asfedbridge.runs.costs import cost_table, shape_task
from asfedbridge.runs.summary import ClientSummary

SPEC = Bench("smoke").spec("fedavg", "cifar100")
CELL = Cell("snn:T=2", "alike", SPEC, {}, (0.0, 0.0, 81.69))
EXPERIMENT = Experiment("necessity", "A title", "A claim.", lambda bench: [CELL], costs="computation")


def forward(msops: float | None) -> RunCosts:
    amounts = {"mflops": 0.0, "mbitops": 0.0, "msops_by_rate": msops, "dense_mflops": 4.0}
    return RunCosts(amounts, MethodCost(), {})


def row(*runs: RunCosts | str | None) -> list[str]:
    """The row of a cell with these runs, one for each seed."""
    seeds = list(range(len(runs)))
    known = {
        job_of(CELL, seed, Path("out")).folder: run for seed, run in zip(seeds, runs, strict=True) if run is not None
    }
    [(title, rows, _)] = experiment_costs(EXPERIMENT, [CELL], seeds, Path("out"), known)
    assert title.startswith("alike: ")
    assert rows[0] == ["", "MFLOPs", "paper", "MBitOPs", "paper", "MSOPs", "paper", "SNN dense MFLOPs", "n", "note"]
    return rows[1]


def test_sops_are_means_over_seeds() -> None:
    expected = ["snn:T=2", "0.00", "0.00", "0.00", "0.00", "81.00", "81.69", "4.00", "2", ""]
    assert row(forward(80.0), forward(82.0)) == expected
    assert row(forward(0.004))[5] == "0.004"  # of a small network


def test_the_note_explains_a_missing_value() -> None:
    assert row(None)[5:] == ["-", "81.69", "-", "0", "seed 0: no finished run"]
    assert row("its checkpoint is not here")[-1] == "seed 0: its checkpoint is not here"
    why = "the fleet lacks a kind, or its SNN clients have no test images to count spikes on"
    assert row(forward(None))[5:] == ["-", "81.69", "4.00", "1", why]
    assert row(forward(80.0), None)[5:] == ["80.00", "81.69", "4.00", "1", "seed 1: no finished run"]


def test_units_fit_small_models() -> None:
    """A column whose largest amount is below 1 has a smaller unit."""
    small = cost_table(SPEC, *shape_task(SPEC, classes=10, channels=1), energy=True)
    (model,) = (m for m in small.models if m.kind == "ann")
    head, *rows = model_rows(small)
    mflops = model.operations["mflops"]
    assert mflops is not None
    largest = max(m.operations["mflops"] or 0.0 for m in small.models)
    unit, factor = ("MFLOPs", 1.0) if max(largest, small.bridge.mflops) >= 1 else ("kFLOPs", 1000.0)
    assert rows[0][head.index(unit)] == f"{mflops * factor:.2f}"
    assert {title for title in head if "energy" in title} <= {"energy uJ", "energy nJ"}
    payload = method_rows(replace(small, methods={"mine": MethodCost(0.25, 0.5, 0.001)}))
    assert payload == [["method", "up KB", "down KB", "table KB"], ["mine", "256.00", "512.00", "1.02"]]
    training = {"ann": {"gflops": 0.0004}}
    assert method_rows(replace(small, methods={"mine": MethodCost(training=training)}))[0][-1] == "ANN kFLOPs"


def test_a_run_has_only_the_models_of_its_clients() -> None:
    table = cost_table(SPEC, *shape_task(SPEC, classes=10, channels=1))
    (ann,) = (m for m in table.models if m.kind == "ann")
    client = ClientSummary(0, "ann", ann.model, ann.width, ann.T, ann.bits, 50.0, 1, 1)
    assert len(table.models) > 1
    assert of_clients(table, [client]).models == (ann,)
    assert "BitOPs" not in " ".join(model_rows(of_clients(table, [client]))[0])
