"""Costs of runs beside the paper's: means over seeds, and a note wherever a value is missing."""

from pathlib import Path

from asfedbridge.paper.experiments import Bench, Cell, Experiment
from asfedbridge.paper.reproduce import job_of
from asfedbridge.report.cost_tables import experiment_costs
from asfedbridge.runs.cost_record import MethodCost, RunCosts

SPEC = Bench("smoke").spec("fedavg", "cifar100")
CELL = Cell("snn:T=2", "alike", SPEC, {}, (0.0, 0.0, 81.69))
EXPERIMENT = Experiment("necessity", "A title", "A claim.", lambda bench: [CELL], costs="computation")


def forward(msops: float | None) -> RunCosts:
    amounts = {"mflops": 0.0, "mbitops": 0.0, "msops_by_rate": msops, "dense_mflops": 4.0}
    return RunCosts(amounts, MethodCost(), {})


def row(*runs: RunCosts | str | None) -> list[str]:
    """The row of a cell whose runs were found so, seed by seed."""
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


def test_a_missing_value_has_its_reason() -> None:
    assert row(None)[5:] == ["-", "81.69", "-", "0", "seed 0: no finished run"]
    assert row("its checkpoint is not here")[-1] == "seed 0: its checkpoint is not here"
    why = "the fleet lacks a kind, or its SNN clients have no test images to count spikes on"
    assert row(forward(None))[5:] == ["-", "81.69", "4.00", "1", why]
    assert row(forward(80.0), None)[5:] == ["80.00", "81.69", "4.00", "1", "seed 1: no finished run"]
