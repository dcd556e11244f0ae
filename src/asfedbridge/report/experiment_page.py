"""The files of a reproduced experiment: tables with the paper's values in four formats, and a page of all runs."""

from collections.abc import Sequence
from pathlib import Path

from asfedbridge.engines import write_atomic
from asfedbridge.paper.grid import Experiment
from asfedbridge.paper.reproduce import job_of
from asfedbridge.report.experiment_tables import Result, render, tables, tables_to_csv, to_csv, to_latex
from asfedbridge.report.page import Lead, write_page
from asfedbridge.report.runs import gather
from asfedbridge.report.tables import Titled, render_csv


def write_experiment(
    out: Path,
    experiment: Experiment,
    results: Sequence[Result],
    seeds: Sequence[int],
    command: str,
    measured: Sequence[Titled] = (),
) -> str:
    """Write NAME.md, .csv, .tex and .html to ``out``, the folder of the runs, and return the Markdown.

    ``measured``: tables of analyses, also written to NAME-analysis.csv. An experiment without runs has only these.
    """
    markdown = render(experiment, results, command, measured)
    table = to_csv(results) if results else render_csv(measured[0].rows)
    for suffix, text in (("md", markdown), ("csv", table), ("tex", to_latex(experiment, results, measured))):
        write_atomic(out / f"{experiment.name}.{suffix}", text.encode())
    if results and measured:
        write_atomic(out / f"{experiment.name}-analysis.csv", tables_to_csv(measured).encode())
    _write_page(out / f"{experiment.name}.html", experiment, results, seeds, command, measured)
    return markdown


def _write_page(
    file: Path,
    experiment: Experiment,
    results: Sequence[Result],
    seeds: Sequence[int],
    command: str,
    measured: Sequence[Titled],
) -> None:
    reported: dict[Path, dict[str, float]] = {}
    for result in results:
        for seed in seeds:
            job = job_of(result.cell, seed, file.parent)
            if job.summary() is not None:
                reported.setdefault(job.folder, dict(result.cell.reported))
    failures = [f"{r.cell.row}, {r.cell.title}: {r.failure}" for r in results if r.failure]
    claim = f"The paper: {experiment.claim}"
    lead = Lead(experiment.title, claim, command, [*tables(results), *measured], failures)
    write_page(file, gather(list(reported), reported) if reported else [], lead)
