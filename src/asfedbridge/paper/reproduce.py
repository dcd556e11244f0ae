"""Runs the cells of an experiment, each in its own process, several at once. Interrupted runs are resumed.

The folder of a run is named by its method and the digest of its specification, so a finished run is reused by other
experiments and when the command is started again.
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

from asfedbridge.core import (
    FILES,
    BadInput,
    Diverged,
    Point,
    block_terminal_signals,
    count_cores,
    end_with_parent,
    load_all,
)
from asfedbridge.engines import worker_context
from asfedbridge.paper.grid import Cell
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
    make_callback,
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
STOP_TIMEOUT = 30.0  # seconds for an interrupted run to write its checkpoint
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Job:
    """One run of one cell: a specification with a seed."""

    spec: Spec
    folder: Path

    @property
    def log(self) -> Path:
        return self.log_of(self.folder)

    @staticmethod
    def log_of(folder: Path) -> Path:
        return folder.with_name(f"{folder.name}.log")

    @property
    def label(self) -> str:
        name, seed = self.folder.name, self.spec.seed
        return name if name.endswith(f"seed={seed}") else f"{name} (seed {seed})"

    def summary(self) -> Summary | None:
        return read_summary(self.folder)


def job_of(cell: Cell, seed: int, out: Path) -> Job:
    spec = replace(cell.spec, seed=seed)
    return Job(spec, out / CELLS / f"{spec.method.name}-{spec.digest()[:12]}")


def plan(cells: Iterable[Cell], seeds: Sequence[int], out: Path) -> list[Job]:
    """All distinct runs, ordered by seed, so that a complete table of the first seed is available early."""
    jobs = {job.folder: job for seed in seeds for cell in cells for job in [job_of(cell, seed, out)]}
    return list(jobs.values())


def choose_width(jobs: Sequence[Job], cuda: bool) -> int:
    """The number of parallel runs: one on a GPU or if a run uses all cores, else cores / threads."""
    threads = max((job.spec.threads for job in jobs), default=0)
    return 1 if cuda or threads == 0 else max(1, count_cores() // threads)


def play(jobs: Sequence[Job], root: Path, at_once: int, tell: Tell, callbacks: Sequence[str] = ()) -> dict[Path, str]:
    """Run all unfinished jobs; return the reason of each failure by folder. A failure does not stop the others.

    ``callbacks`` are those of every run, as the command line names them.
    """
    waiting = deque(job for job in jobs if job.summary() is None)
    done = len(jobs) - len(waiting)
    if done:
        tell(f"{done} of {len(jobs)} runs are already finished")
    context = worker_context(__name__)
    running: dict[int, tuple[Job, Any, float]] = {}  # by sentinel
    failures: dict[Path, str] = {}
    finished, busy = 0, 0.0  # runs of this process, and the sum of their seconds
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                job = waiting.popleft()
                job.folder.parent.mkdir(parents=True, exist_ok=True)
                process = context.Process(
                    target=_play_one, args=(to_table(job.spec), job.folder, root, list(FILES), callbacks)
                )
                with block_terminal_signals():
                    process.start()
                running[process.sentinel] = (job, process, time.monotonic())
            for sentinel in wait(list(running)):
                job, process, since = running.pop(sentinel)  # type: ignore[arg-type]
                process.join()
                finished += 1
                outcome = _outcome(job, process.exitcode, failures)
                seconds = time.monotonic() - since
                busy += seconds
                begun = sum(time.monotonic() - start for _, _, start in running.values())
                work = busy / finished * (len(waiting) + len(running)) - begun
                minutes, left = seconds / 60, max(0.0, work) / at_once / 60
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
    """Terminate the processes, wait for their checkpoints, and kill those that do not end."""
    for process in processes:
        process.terminate()
    for process in processes:
        process.join(STOP_TIMEOUT)
        if process.is_alive():
            process.kill()
            process.join()


def _play_one(table: Table, folder: Path, root: Path, plugins: Sequence[str], callbacks: Sequence[str]) -> None:
    """The body of a run's process. Output goes to the log; after a failure its last line is the reason.

    The specification is passed as plain values, because a plugin may define the class of its method.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the parent stops them
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(INTERRUPTED))
    end_with_parent()
    with Job.log_of(folder).open("wb") as log:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(log.fileno(), stream.fileno())
    try:
        load_all(plugins)
        watching = [make_callback(text) for text in callbacks]
        execute(from_table(table, quickstart()), folder, root, watching, resume=True)
    except (BadInput, Diverged) as error:
        print(error, file=sys.stderr)
        sys.exit(1)


def state_of(job: Job) -> str:
    """The state shown in lists of cells: finished, its current round, or to do."""
    if job.summary() is not None:
        return "finished"
    records = read_rounds(job.folder)
    return f"round {records[-1]['round'] + 1} of {job.spec.rounds}" if records else "to do"


def read_courses(jobs: Sequence[Job]) -> dict[Path, list[RoundAnalysis]]:
    """The diagnosed rounds of all finished runs, by folder; BadInput if a run has lost them."""
    courses = {job.folder: read_course(job.folder) for job in jobs if job.summary() is not None}
    if lost := [folder for folder, course in courses.items() if not course]:
        raise BadInput(f"{lost[0]}: its diagnosed rounds are missing; give another --out, or delete it first")
    return courses


def measure(jobs: Sequence[Job], root: Path, tell: Tell, point: Point | None = None) -> dict[Path, Analysis]:
    """The analysis at ``point`` of all finished runs, by folder.

    MMD is comparable only with a common bandwidth, so all runs are analysed again when the set of runs has changed.
    """
    names = {job.folder: file_name(job.spec, point) for job in jobs if job.summary() is not None}
    folders = list(names)
    known = {folder: found for folder, name in names.items() if (found := _known_analysis(folder, name)) is not None}
    groups: dict[str, list[Measure]] = {}  # runs on the same data share a bandwidth
    for run in known.values():
        groups.setdefault(run.data_fingerprint, []).append(run.measures["mmd"])
    consistent = all(
        len({mmd.bandwidth for mmd in runs}) == 1 and runs[0].bandwidth_runs == len(runs) for runs in groups.values()
    )
    if len(known) < len(folders) or not consistent:
        known = dict(zip(folders, analyse(folders, root, tell, point).runs, strict=True))
    return known


def _known_analysis(folder: Path, name: str) -> Analysis | None:
    """The stored analysis; None if the file is missing or damaged."""
    try:
        return read_analysis(folder, name)
    except BadInput:
        return None


def measure_costs(jobs: Sequence[Job], root: Path, tell: Tell) -> dict[Path, RunCosts | str]:
    """The costs of all finished runs, by folder, or the reason why a run cannot be measured."""
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
