"""Plays the cells of an experiment: each a run of its own in a process of its own, several at once, resumable.

A cell's folder is named by its method and the digest of its specification, so that whatever was played stays valid:
the same cell of another experiment, or of the same command started again, is not played twice.
"""

import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from asfedbridge.core import FILES, BadInput, Diverged, Point, load_all
from asfedbridge.engines import count_cores, deaf_to_ctrl_c, end_with_parent, worker_context
from asfedbridge.paper.experiments import Cell
from asfedbridge.runs import (
    Analysis,
    Measure,
    RoundAnalysis,
    RunCosts,
    Spec,
    Summary,
    Table,
    analyse,
    execute,
    file_name,
    from_table,
    quickstart,
    read_analysis,
    read_costs,
    read_course,
    read_rounds,
    read_summary,
    run_costs,
    to_table,
)

CELLS = "cells"
INTERRUPTED = 130
PATIENCE = 30.0  # seconds a run has to write its checkpoint when it is interrupted
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Job:
    """One run of one cell: a specification with its seed."""

    spec: Spec
    folder: Path

    @property
    def log(self) -> Path:
        return self.log_of(self.folder)

    @staticmethod
    def log_of(folder: Path) -> Path:
        return folder.with_suffix(".log")

    @property
    def label(self) -> str:
        return f"{self.folder.name} (seed {self.spec.seed})"

    def summary(self) -> Summary | None:
        return read_summary(self.folder)


def job_of(cell: Cell, seed: int, out: Path) -> Job:
    spec = replace(cell.spec, seed=seed)
    return Job(spec, out / CELLS / f"{spec.method.name}-{spec.digest()[:12]}")


def plan(cells: Iterable[Cell], seeds: Sequence[int], out: Path) -> list[Job]:
    """Every distinct run, all cells of the first seed before any of the second: a table is useful early."""
    jobs = {job.folder: job for seed in seeds for cell in cells for job in [job_of(cell, seed, out)]}
    return list(jobs.values())


def choose_width(jobs: Sequence[Job], cuda: bool) -> int:
    """How many runs at once: one on a GPU or where a run takes all cores, else as many as cores."""
    threads = max((job.spec.threads for job in jobs), default=0)
    return 1 if cuda or threads == 0 else max(1, count_cores() // threads)


def play(jobs: Sequence[Job], root: Path, at_once: int, tell: Tell) -> dict[Path, str]:
    """Play what is not finished; why a run failed, by its folder. A failure does not stop the others."""
    waiting = deque(job for job in jobs if job.summary() is None)
    done = len(jobs) - len(waiting)
    if done:
        tell(f"{done} of {len(jobs)} runs are there already")
    context = worker_context(__name__)
    running: dict[int, tuple[Job, Any, float]] = {}  # by sentinel
    failures: dict[Path, str] = {}
    begin, finished = time.monotonic(), 0
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                job = waiting.popleft()
                job.folder.parent.mkdir(parents=True, exist_ok=True)
                process = context.Process(target=_play_one, args=(to_table(job.spec), job.folder, root, list(FILES)))
                with deaf_to_ctrl_c():
                    process.start()
                running[process.sentinel] = (job, process, time.monotonic())
            for sentinel in wait(list(running)):
                job, process, since = running.pop(sentinel)  # type: ignore[arg-type]
                process.join()
                finished += 1
                outcome = _outcome(job, process.exitcode, failures)
                minutes = (time.monotonic() - since) / 60
                left = (time.monotonic() - begin) / finished * (len(waiting) + len(running)) / 60
                place = f"[{done + finished}/{len(jobs)}] {job.label}"
                tell(f"{place}: {outcome}, {minutes:.1f} min; about {left:.0f} min left")
    finally:
        _stop([process for _, process, _ in running.values()])
    return failures


def _outcome(job: Job, code: int, failures: dict[Path, str]) -> str:
    summary = job.summary()
    if summary is not None:
        return f"accuracy {summary.accuracy['all']:.2f}"
    failures[job.folder] = _last_line(job.log) or f"died (exit code {code})"
    return f"FAILED: {failures[job.folder]}"


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").split("\n") if log.exists() else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _stop(processes: Sequence[Any]) -> None:
    """Interrupt them, let them write what they have, and see that they are gone."""
    for process in processes:
        process.terminate()
    for process in processes:
        process.join(PATIENCE)
        if process.is_alive():
            process.kill()
            process.join()


def _play_one(table: Table, folder: Path, root: Path, plugins: Sequence[str]) -> None:
    """In a process of its own, whose words go to the log; the last of them is the reason if it fails.

    The specification crosses as plain values: its method may be of a class that a plugin defines.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; to stop them is the parent's part
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(INTERRUPTED))
    end_with_parent()
    with Job.log_of(folder).open("wb") as log:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(log.fileno(), stream.fileno())
    try:
        load_all(plugins)
        execute(from_table(table, quickstart()), folder, root, resume=True)
    except (BadInput, Diverged) as error:
        print(error, file=sys.stderr)
        sys.exit(1)


def state_of(job: Job) -> str:
    """For a list of cells: finished, begun or to do."""
    if job.summary() is not None:
        return "finished"
    records = read_rounds(job.folder)
    return f"round {records[-1]['round'] + 1} of {job.spec.rounds}" if records else "to do"


def read_courses(jobs: Sequence[Job]) -> dict[Path, list[RoundAnalysis]]:
    """The diagnosed rounds of every finished run, by folder."""
    return {job.folder: read_course(job.folder) for job in jobs if job.summary() is not None}


def measure(jobs: Sequence[Job], root: Path, tell: Tell, point: Point | None = None) -> dict[Path, Analysis]:
    """The analysis at ``point`` of every finished run, by folder: made once for all of them together.

    Methods are comparable in MMD only with one bandwidth, so runs are measured anew when their company has changed.
    """
    names = {job.folder: file_name(job.spec, point) for job in jobs if job.summary() is not None}
    folders = list(names)
    known = {folder: found for folder, name in names.items() if (found := _known_analysis(folder, name)) is not None}
    companies: dict[str, list[Measure]] = {}
    for run in known.values():
        companies.setdefault(run.data_fingerprint, []).append(run.measures["mmd"])
    settled = all(
        len({mmd.bandwidth for mmd in runs}) == 1 and runs[0].bandwidth_runs == len(runs) for runs in companies.values()
    )
    if len(known) < len(folders) or not settled:
        known = dict(zip(folders, analyse(folders, root, tell, point).runs, strict=True))
    return known


def _known_analysis(folder: Path, name: str) -> Analysis | None:
    """None where the run is measured anew: there is no file, or it is damaged."""
    try:
        return read_analysis(folder, name)
    except BadInput:
        return None


def measure_costs(jobs: Sequence[Job], root: Path, tell: Tell) -> dict[Path, RunCosts | str]:
    """What every finished run costs, by folder; of a run that cannot be measured, the reason."""
    found: dict[Path, RunCosts | str] = {}
    for job in jobs:
        if job.summary() is None:
            continue
        if read_costs(job.folder) is None:
            tell(f"{job.label}: counting operations")
        try:
            found[job.folder] = run_costs(job.folder, root)
        except BadInput as error:
            found[job.folder] = str(error)
    return found
