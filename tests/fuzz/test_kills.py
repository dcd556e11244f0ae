"""kill -9 at any moment, again and again, then `--resume`: nothing is lost, all bits are those of a run left alone."""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fuzz.outcome import compare, outcome

from asfedbridge.engines import checkpoint

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
    pytest.mark.timeout(900),
]
ROOT = Path(__file__).parents[2]
TINY = [
    "fleet=1*resnet18@0.0625:ann,2*resnet18@0.0625:snn", "participation=0.67", "T=2", "train_per_class=2",
    "test_per_class=1", "batch_size=8", "feature_dim=16", "partition=iid", "rounds=3", "threads=1", "epochs=1",
    "method.bridge_width=0.34", "compress=int8",
]  # fmt: skip
ENGINES = {
    "local": ["snapshot_every=2", "diagnose_every=2"],
    "pool": ["snapshot_every=2", "diagnose_every=2", "--engine", "pool", "--workers", "2"],
    "flower": ["--engine", "flower"],
}
LONG = {"local": 80, "local, at file operations": 40, "pool": 60, "flower": 20}
SHORT = {"local": 1, "local, at file operations": 2, "pool": 2}
MOST = 4  # kills of one run; then it is left alone
PATIENCE = 1800.0
SEED = 11


class Warm:
    """Talks with `tests.fuzz.warm`."""

    def __init__(self, engine: str) -> None:
        self.engine = engine
        command = [sys.executable, "-m", "tests.fuzz.warm", engine]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(command, cwd=ROOT, env=env, stderr=subprocess.DEVNULL, **pipes)
        self._answer()

    def ask(self, do: str, **fields: Any) -> Any:
        assert self.process.stdin
        print(json.dumps({"do": do, **fields}), file=self.process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> Any:
        assert self.process.stdout
        return json.loads(self.process.stdout.readline())

    def begin(self, out: Path, **more: Any) -> int:
        """A run in ``out``, or the rest of it."""
        words = ["run", *TINY, *ENGINES[self.engine], "--resume", "--out", str(out)]
        return int(self.ask("start", words=words, out=str(out), log=str(out) + ".log", **more))

    def finish(self, out: Path, **more: Any) -> None:
        code = self.ask("wait", process=self.begin(out, **more), seconds=PATIENCE)
        assert code == 0, (code, Path(str(out) + ".log").read_text()[-2000:])


@pytest.fixture(scope="module")
def warm_of() -> Iterator[Callable[[str], Warm]]:
    """One for each engine: it takes the longest."""
    started: dict[str, Warm] = {}

    def get(engine: str) -> Warm:
        if engine not in started:
            started[engine] = Warm(engine)
        return started[engine]

    yield get
    for warm in started.values():
        warm.process.kill()
        warm.process.wait()


def newest(out: Path) -> int:
    """The round that the last checkpoint leads to."""
    folders = checkpoint.list_folders(out / "checkpoint")
    return int(folders[-1].name.removeprefix("round-")) if folders else 0


def kill_at_moments(warm: Warm, points: int, folder: Path) -> int:
    """Moments are spread evenly over the time that a run takes when nobody disturbs it."""
    draw, kills, runs = random.Random(SEED), 0, 0
    warm.finish(folder / "first")  # what is loaded by then is not loaded again
    begin = time.monotonic()
    warm.finish(folder / "whole")
    longest = time.monotonic() - begin
    expected = outcome(folder / "whole")
    while kills < points:
        out, runs = folder / f"run{runs}", runs + 1
        reached = 0
        for _ in range(min(MOST, points - kills)):
            process = warm.begin(out)
            code = warm.ask("wait", process=process, seconds=draw.uniform(0, longest))
            if code is not None:
                assert code == 0, (code, Path(str(out) + ".log").read_text()[-2000:])
                break
            warm.ask("kill", process=process)
            kills += 1
            assert newest(out) >= reached, "a checkpoint is lost"
            reached = newest(out)
        warm.finish(out)
        compare(outcome(out), expected)
    return kills


def kill_at_changes(warm: Warm, points: int, folder: Path) -> int:
    """Just before a file is opened for writing, renamed or removed: each place in turn, or as many as are asked for."""
    warm.finish(folder / "whole", count_to=str(folder / "count"))
    expected = outcome(folder / "whole")
    changes = int((folder / "count").read_text())
    chosen = sorted(random.Random(SEED).sample(range(1, changes + 1), min(points, changes)))
    for place in chosen:
        out = folder / f"run{place}"
        assert warm.ask("wait", process=warm.begin(out, stop_at=place), seconds=PATIENCE) == -9
        warm.finish(out)
        compare(outcome(out), expected)
    return len(chosen)


def kill(what: str, points: int, warm: Warm, folder: Path) -> None:
    begin = time.monotonic()
    kills = (kill_at_changes if "," in what else kill_at_moments)(warm, points, folder)
    assert kills == points
    print(f"\n| {what} | {kills} | {kills} | {time.monotonic() - begin:.0f} |")


@pytest.mark.parametrize("what", ["local", *(pytest.param(what, marks=pytest.mark.long) for what in list(SHORT)[1:])])
def test_a_few_kills(what: str, warm_of: Callable[[str], Warm], tmp_path: Path) -> None:
    kill(what, SHORT[what], warm_of(what.partition(",")[0]), tmp_path)


@pytest.mark.exhaustive
@pytest.mark.timeout(6 * 3600)
@pytest.mark.parametrize("what", LONG)
def test_many_kills(what: str, warm_of: Callable[[str], Warm], tmp_path: Path) -> None:
    if what == "flower":
        pytest.importorskip("flwr")
    kill(what, LONG[what], warm_of(what.partition(",")[0]), tmp_path)


def test_there_are_enough() -> None:
    assert sum(LONG.values()) >= 200
