"""The page of a reproduced experiment: its tables beside the paper's, then every run of it."""

from collections.abc import Sequence
from pathlib import Path

from asfedbridge.experiments.catalogue import Experiment
from asfedbridge.experiments.reproduce import job_of
from asfedbridge.report.page import Lead, write_page
from asfedbridge.report.reproduction import Result, tables
from asfedbridge.report.runs import gather
from asfedbridge.report.tables import Rows


def write_experiment(
    file: Path,
    experiment: Experiment,
    results: Sequence[Result],
    seeds: Sequence[int],
    command: str,
    measured: Sequence[tuple[str, Rows]] = (),
) -> None:
    """``measured`` are tables of analyses. Runs are sought beside the page, where `reproduce` plays them."""
    reported: dict[Path, dict[str, float]] = {}
    for result in results:
        for seed in seeds:
            job = job_of(result.cell, seed, file.parent)
            if job.summary() is not None:
                reported.setdefault(job.folder, dict(result.cell.reported))
    failures = [f"{r.cell.row}, {r.cell.column}: {r.failure}" for r in results if r.failure]
    claim = f"The paper: {experiment.claim}"
    lead = Lead(experiment.title, claim, command, [*tables(results), *measured], failures)
    write_page(file, gather(list(reported), reported) if reported else [], lead)
