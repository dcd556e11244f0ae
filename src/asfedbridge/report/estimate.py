"""Estimates the time and memory of an experiment from short measurements of its runs."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from asfedbridge.core import BadInput
from asfedbridge.paper.reproduce import Job, state_of
from asfedbridge.report.tables import Rows
from asfedbridge.runs import Estimate, measure_apart, write_toml


def list_rows(jobs: Sequence[Job]) -> Rows:
    """One row per run, without measuring anything."""
    rows = [["run", "data", "rounds", "seed", "state"]]
    for job in jobs:
        rows.append([job.folder.name, job.spec.data, str(job.spec.rounds), str(job.spec.seed), state_of(job)])
    return rows


def estimate_rows(jobs: Sequence[Job], root: str | None, at_once: int, tell: Callable[[str], None]) -> Rows:
    """One row per run, then the total. Runs that differ only in seed are measured once."""
    known: dict[str, Estimate | str] = {}
    rows = [["run", "seed", "state", "minutes", "memory MB"]]
    total = 0.0
    for number, job in enumerate(jobs, start=1):
        like = replace(job.spec, seed=0).digest()
        if like not in known:
            tell(f"measuring {number}/{len(jobs)}: {job.label}")
            known[like] = _measured(job, root)
        found, state = known[like], state_of(job)
        if isinstance(found, str):
            rows.append([job.folder.name, str(job.spec.seed), f"cannot run: {found}", "-", "-"])
            continue
        total += found.seconds if state != "finished" else 0.0
        numbers = [f"{found.seconds / 60:.1f}", f"{found.megabytes:.0f}"]
        rows.append([job.folder.name, str(job.spec.seed), state, *numbers])
    rows.append([f"{len(jobs)} runs, {at_once} at once", "", "", f"{total / 60 / at_once:.1f}", ""])
    return rows


def _measured(job: Job, root: str | None) -> Estimate | str:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "spec.toml"
        file.write_text(write_toml(job.spec))
        try:
            return measure_apart(file, root)
        except BadInput as error:
            return str(error)
