"""Cells run in real processes: each once, resumed after interruption, with failures reported in the table."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from asfedbridge.cli import main
from asfedbridge.core.errors import BadInput
from asfedbridge.paper.experiments import find_experiment
from asfedbridge.paper.grid import Bench, Cell, select
from asfedbridge.paper.reproduce import choose_width, job_of, plan, play, read_courses, state_of
from asfedbridge.runs.spec import apply_overrides

TINY = {"fleet": "1*resnet18@0.02:ann,1*resnet18@0.02:ann", "train_per_class": 5, "test_per_class": 2, "rounds": 1}


def tiny(method: str = "standalone", **changes: Any) -> Cell:
    return Cell(method, "digits", apply_overrides(Bench("smoke").spec(method, "cifar10"), TINY | changes))


@pytest.mark.long
def test_run_shared_by_two_experiments_is_executed_once(tmp_path: Path) -> None:
    told: list[str] = []
    cells = [tiny(), tiny("fedavg")]
    jobs = plan([*cells, *cells], [3, 4], tmp_path)
    assert [(job.spec.method.name, job.spec.seed) for job in jobs] == [
        ("standalone", 3),
        ("fedavg", 3),
        ("standalone", 4),
        ("fedavg", 4),
    ]
    assert play(jobs, tmp_path, 2, told.append) == {}
    assert len(told) == 4
    assert told[-1].startswith("[4/4] ")
    assert "accuracy" in told[-1]
    before = {job.folder: (job.folder / "summary.json").stat().st_mtime_ns for job in jobs}
    assert [job.summary()["seed"] for job in jobs] == [3, 3, 4, 4]  # type: ignore[index]
    again = plan([tiny("fedavg")], [4, 3], tmp_path)
    told.clear()
    assert play(again, tmp_path, 2, told.append) == {}
    assert told == ["2 of 2 runs are already finished"]
    assert {f: (f / "summary.json").stat().st_mtime_ns for f in before} == before


def test_failing_run_is_named_and_does_not_stop_others(tmp_path: Path) -> None:
    told: list[str] = []
    jobs = plan([tiny(data="npz:nowhere.npz"), tiny()], [0], tmp_path)
    failures = play(jobs, tmp_path, 1, told.append)
    assert list(failures) == [jobs[0].folder]
    assert "nowhere.npz" in failures[jobs[0].folder]
    assert "\n" not in failures[jobs[0].folder]
    assert "FAILED" in told[0]
    assert jobs[1].summary() is not None


def test_a_finished_run_without_its_diagnosed_rounds_is_refused(tmp_path: Path) -> None:
    """Instead of a table without rows in the place of the one that was written when the rounds were there."""
    jobs = plan([tiny("fedavg", diagnose_every=1)], [0], tmp_path)
    assert play(jobs, tmp_path, 1, lambda line: None) == {}
    assert [one.round for one in read_courses(jobs)[jobs[0].folder]] == [1]
    lost = jobs[0].folder / "diagnostics.jsonl"
    lost.unlink()
    with pytest.raises(BadInput) as error:
        read_courses(jobs)
    expected = f"{lost.parent}: its diagnosed rounds are missing; give another --out, or delete it first"
    assert str(error.value) == expected


def test_a_run_that_dies_is_a_failure(tmp_path: Path) -> None:
    """A run killed by the system writes no message; it must not count as finished."""
    job = plan([tiny(rounds=500)], [0], tmp_path)[0]

    def find_and_kill() -> None:
        while not (job.folder / "rounds.jsonl").exists() or not (job.folder / "rounds.jsonl").read_bytes():
            time.sleep(0.05)
        for pid in children(os.getpid()):
            if holds_lock(pid, job.folder):
                os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=find_and_kill)
    killer.start()
    failures = play([job], tmp_path, 1, lambda line: None)
    killer.join()
    assert "died" in failures[job.folder]
    assert job.summary() is None


SCRIPT = """
import sys
from pathlib import Path
from asfedbridge.cli import main
if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
"""


WORDS = ["reproduce", "main", "--scale", "smoke", "--only", "standalone,fedavg", "--columns", "cifar10", "--jobs", "1"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of the command without interruption."""
    out = tmp_path_factory.mktemp("whole") / "out"
    assert main([*WORDS, "--out", str(out)]) == 0
    return out


def test_tables_and_page_of_a_command(whole: Path) -> None:
    assert (whole / "main.csv").read_text().count("\n") > 3
    page = (whole / "main.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "asfedbridge reproduce main --scale smoke" in page
    assert all(f">{method}</h3>" in page for method in ("standalone", "fedavg"))


@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_stopped_command_is_resumed_by_starting_it_again(whole: Path, tmp_path: Path, how: signal.Signals) -> None:
    """The command is stopped in the middle of a run: no process remains, and the table is the same after a restart."""
    file = tmp_path / "command.py"
    file.write_text(SCRIPT)

    def start(out: Path) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, str(file), *WORDS, "--out", str(out)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    out = tmp_path / "stopped"
    process = start(out)
    while not any(lines(f) for f in out.glob("cells/*/rounds.jsonl")):
        time.sleep(0.02)
        assert process.poll() is None, process.communicate()
    played = children(process.pid)
    process.send_signal(how)
    _, err = process.communicate(timeout=60)
    assert process.returncode == (-how if how == signal.SIGKILL else 130), err
    deadline = time.monotonic() + 300
    while any(alive(pid) for pid in played):
        assert time.monotonic() < deadline, "a run continues without its parent"
        time.sleep(0.05)
    assert main([*WORDS, "--out", str(out)]) == 0
    assert (whole / "main.csv").read_text() == (out / "main.csv").read_text()


def test_states_and_widths(tmp_path: Path) -> None:
    job = job_of(tiny(), 0, tmp_path)
    assert state_of(job) == "to do"
    job.folder.mkdir(parents=True)
    (job.folder / "rounds.jsonl").write_text(
        json.dumps({"round": 0, "client": 0, "kind": "ann", "uplink_bytes": 0, "downlink_bytes": 0}) + "\n"
    )
    assert state_of(job) == "round 1 of 1"
    cores = len(os.sched_getaffinity(0))
    assert choose_width([job], cuda=False) == cores
    assert choose_width([job], cuda=True) == 1
    greedy = replace(job, spec=replace(job.spec, threads=0))
    assert choose_width([greedy], cuda=False) == 1


def test_rows_and_columns_are_chosen_by_name() -> None:
    cells = find_experiment("main").cells(Bench("smoke"))
    chosen = select(cells, ["fml", "fedavg"], ["cifar10"])
    assert [(c.row, c.column) for c in chosen] == [("fedavg", "cifar10"), ("fml", "cifar10")]
    assert select(cells, None, None) == cells
    with pytest.raises(BadInput, match=r"--only fmll: not in this experiment; did you mean 'fml'\?"):
        select(cells, ["fmll"], None)
    with pytest.raises(BadInput, match="experiment 'mian' is not known; did you mean 'main'"):
        find_experiment("mian")


def lines(file: Path) -> int:
    return file.read_bytes().count(b"\n")


def children(pid: int) -> list[int]:
    """All descendants of a process."""
    found, queue = [], [pid]
    while queue:
        for task in Path(f"/proc/{queue.pop()}/task").glob("*/children"):
            try:
                new = [int(word) for word in task.read_text().split()]
            except OSError:
                continue
            found += new
            queue += new
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def holds_lock(pid: int, folder: Path) -> bool:
    try:
        return any(os.readlink(fd) == str(folder / ".lock") for fd in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False
