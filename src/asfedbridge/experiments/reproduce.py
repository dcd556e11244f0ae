"""Plays the cells of an experiment: each a run of its own in a process of its own, several at once, resumable.

A cell's folder is named by its method and the digest of its specification, so that whatever was played stays valid:
the same cell of another experiment, or of the same command started again, is not played twice.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from asfedbridge.engines.files import write_atomic
from asfedbridge.experiments.catalogue import Cell
from asfedbridge.experiments.spec import Spec
from asfedbridge.experiments.store import read_rounds, read_summary
from asfedbridge.experiments.toml import write_toml

CELLS = "cells"
POLL = 0.5  # seconds
PATIENCE = 30.0  # seconds a run has to write its checkpoint when it is interrupted
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Job:
    """One run of one cell: a specification with its seed."""

    spec: Spec
    folder: Path

    @property
    def log(self) -> Path:
        return self.folder.with_suffix(".log")

    @property
    def label(self) -> str:
        return f"{self.folder.name} (seed {self.spec.seed})"

    def summary(self) -> dict[str, Any] | None:
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
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 1 if cuda or threads == 0 else max(1, cores // threads)


def play(jobs: Sequence[Job], data_root: str | None, at_once: int, tell: Tell) -> dict[Path, str]:
    """Play what is not finished; why a run failed, by its folder. A failure does not stop the others."""
    waiting = [job for job in jobs if job.summary() is None]
    done = len(jobs) - len(waiting)
    failures: dict[Path, str] = {}
    if done:
        tell(f"{done} of {len(jobs)} runs are there already")
    running: dict[Path, tuple[Job, subprocess.Popen[bytes], float]] = {}
    begin, finished = time.monotonic(), 0
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                job = waiting.pop(0)
                running[job.folder] = (job, _start(job, data_root), time.monotonic())
            time.sleep(POLL)
            for folder, (job, process, since) in list(running.items()):
                if process.poll() is None:
                    continue
                del running[folder]
                finished += 1
                left = (time.monotonic() - begin) / finished * (len(waiting) + len(running))
                outcome = _outcome(job, process.returncode, failures)
                took = f"{(time.monotonic() - since) / 60:.1f} min"
                tell(f"[{done + finished}/{len(jobs)}] {job.label}: {outcome}, {took}; about {left / 60:.0f} min left")
    finally:
        _stop([process for _, process, _ in running.values()])
    return failures


def _outcome(job: Job, code: int, failures: dict[Path, str]) -> str:
    summary = job.summary()
    if code == 0 and summary is not None:
        return f"accuracy {summary['accuracy']['all']:.2f}"
    failures[job.folder] = _last_line(job.log) or f"exit code {code}"
    return f"FAILED: {failures[job.folder]}"


def _start(job: Job, data_root: str | None) -> "subprocess.Popen[bytes]":
    job.folder.parent.mkdir(parents=True, exist_ok=True)
    file = job.folder.with_suffix(".toml")
    write_atomic(file, write_toml(job.spec).encode())
    words = [sys.executable, "-m", "asfedbridge", "run", str(file), "--out", str(job.folder), "--resume"]
    words += ["--data-root", data_root] if data_root else []
    with job.log.open("wb") as log:
        return subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, preexec_fn=_die_with_parent
        )


def _die_with_parent() -> None:
    """Ask the kernel for SIGTERM when the parent ends, however it ends: a run must not go on without its table."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def _stop(processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].removeprefix("asfedbridge: ") if lines else ""


def state_of(job: Job) -> str:
    """For a list of cells: finished, begun or to do."""
    if job.summary() is not None:
        return "finished"
    records = read_rounds(job.folder)
    return f"round {records[-1]['round'] + 1} of {job.spec.rounds}" if records else "to do"
