"""Many rounds in one life of its processes: neither memory nor open files grow."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import forkserver
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from tests.fuzz.tiny_run import make_run

from asfedbridge.core.task import Round
from asfedbridge.runs.callback import Callback, Run
from asfedbridge.runs.recipes import quickstart
from asfedbridge.runs.record_files import read_rounds
from asfedbridge.runs.run import execute
from asfedbridge.runs.spec import apply_overrides

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
ROOT = Path(__file__).parents[2]
MEGABYTES = 4.0  # that a process may grow between the second quarter of the rounds and the last
KILOBYTES = 4.0  # more that a program of Flower's may keep of each round: records, and what the SuperLink remembers
OPEN_FILES = 2  # more: connections come and go
ENDING = 5  # last samples, when processes of turns may have ended


def children(parent: int, all_below: bool = False) -> list[int]:
    """The processes that a process started and, with ``all_below``, those that these started."""
    found: list[int] = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            owner = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if owner == parent:
            found.append(int(stat.parent.name))
    below = [one for child in found for one in children(child, True)] if all_below else []
    return sorted([*found, *below])


def resident(process: int) -> float:
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


class Gauge(Callback):
    """After every round: megabytes and open files of this process and of the workers, in this order."""

    def __init__(self) -> None:
        self.memory: list[list[float]] = []
        self.open: list[list[int]] = []

    def on_round_end(self, run: Run, rnd: Round, records: Sequence[Any]) -> None:
        server: Any = forkserver._forkserver  # type: ignore[attr-defined]
        everybody = [os.getpid(), *children(server._forkserver_pid)]
        self.memory.append([resident(one) for one in everybody])
        self.open.append([len(os.listdir(f"/proc/{one}/fd")) for one in everybody])


def soak(out: Path, rounds: int) -> None:
    gauge, begin = Gauge(), time.monotonic()
    spec, setting = make_run(rounds=rounds, snapshot_every=0)
    execute(spec, out, out, [gauge], engine="pool", workers=2, setting=setting)
    quarter = rounds // 4
    assert {len(line) for line in gauge.memory} == {3}, "the parent and two workers, always"
    early = [median(column) for column in zip(*gauge.memory[quarter : 2 * quarter], strict=True)]
    late = [median(column) for column in zip(*gauge.memory[-quarter:], strict=True)]
    print(
        f"\n{rounds} rounds, {time.monotonic() - begin:.0f} s; parent and workers, MB in the second and last quarter:"
    )
    print(*(f"{one:.1f} {other:.1f};" for one, other in zip(early, late, strict=True)), "open files:", gauge.open[-1])
    assert all(other - one <= MEGABYTES for one, other in zip(early, late, strict=True)), (early, late)
    assert gauge.open[quarter] == gauge.open[-1]
    assert len(list((out / "checkpoint" / "clients").iterdir())) == 4  # of two checkpoints


class FlowerGauge(threading.Thread):
    """Once a second, from the first recorded round to the last: megabytes and open files of each of Flower's programs.

    Keys are the number of the process and the name of its log.
    """

    def __init__(self, out: Path) -> None:
        super().__init__(daemon=True)
        self.out = out
        self.samples: list[dict[tuple[int, str], tuple[float, int]]] = []

    def run(self) -> None:
        records = self.out / "rounds.jsonl"
        while not (self.out / "summary.json").exists():  # afterwards programs end
            if records.exists() and records.stat().st_size:
                self.samples.append(self.look())
            time.sleep(1)

    def look(self) -> dict[tuple[int, str], tuple[float, int]]:
        found = {}
        for one in [os.getpid(), *children(os.getpid(), all_below=True)]:
            with suppress(OSError):  # a process that has just ended
                log = Path(os.readlink(f"/proc/{one}/fd/1")).stem if one != os.getpid() else "parent"
                found[one, log] = resident(one), len(os.listdir(f"/proc/{one}/fd"))
        return found


def soak_flower(out: Path, rounds: int) -> None:
    from asfedbridge.deploy.local_run import execute as over_flower

    gauge, begin = FlowerGauge(out), time.monotonic()
    gauge.start()
    sizes = {"fleet": "2*vgg9@0.125:ann", "train_per_class": 1, "test_per_class": 1, "feature_dim": 8, "epochs": 1}
    often = {"partition": "iid", "rounds": rounds, "evaluate_every": rounds, "threads": 1}
    over_flower(apply_overrides(quickstart("fedavg"), sizes | often), out, out, lambda line: None)
    gauge.join()
    assert {record["round"] for record in read_rounds(out)} == set(range(rounds + 1))
    quarter = len(gauge.samples) // 4
    early, late = gauge.samples[quarter : 2 * quarter], gauge.samples[-quarter:-ENDING]
    stayed = sorted(set.intersection(*(set(sample) for sample in [*early, *late])), key=lambda one: one[1])
    print(
        f"\n{rounds} rounds over Flower, {time.monotonic() - begin:.0f} s; MB and open files, second and last quarter:"
    )
    grown = {}
    for one in stayed:
        (before, files), (after, files_after) = (
            (median(sample[one][0] for sample in part), median(sample[one][1] for sample in part))
            for part in (early, late)
        )
        print(f"{one[1]}: {before:.1f} {after:.1f} MB, {files:.0f} {files_after:.0f} files")
        grown[one[1], one[0]] = after - before, files_after - files
    assert len(stayed) >= 9  # this process, the SuperLink, the server, and two programs and a process of turns per node
    assert all(files <= OPEN_FILES for _, files in grown.values()), grown
    assert all(memory <= MEGABYTES + rounds * KILOBYTES / 1024 for memory, _ in grown.values()), grown


def soak_in_new_process(out: Path, rounds: int, soak: str = "soak") -> None:
    """Other tests of this process have left workers and memory behind."""
    code = f"from pathlib import Path; from {__name__} import {soak}; {soak}(Path({str(out)!r}), {rounds})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    print(done.stdout)
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_sixty_rounds(tmp_path: Path) -> None:
    soak_in_new_process(tmp_path / "run", 60)


@pytest.mark.exhaustive
@pytest.mark.timeout(3 * 3600)
def test_two_thousand_rounds(tmp_path: Path) -> None:
    soak_in_new_process(tmp_path / "run", 2000)


@pytest.mark.exhaustive
@pytest.mark.timeout(4 * 3600)
def test_two_thousand_rounds_over_flower(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    soak_in_new_process(tmp_path / "run", 2000, "soak_flower")
