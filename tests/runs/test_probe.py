"""Estimates of time and memory, measured in a separate process."""

import time
from dataclasses import replace
from pathlib import Path

import pytest
from torch.nn.modules.module import register_module_forward_hook

from asfedbridge.core.errors import BadInput
from asfedbridge.paper.grid import Bench, Cell
from asfedbridge.paper.reproduce import plan
from asfedbridge.report.estimate import estimate_rows
from asfedbridge.runs import probe
from asfedbridge.runs.probe import measure, measure_apart
from asfedbridge.runs.spec import apply_overrides
from asfedbridge.runs.toml import write_toml

TINY = {"fleet": "2*resnet18@0.02:ann,1*resnet18@0.02:snn", "train_per_class": 8, "test_per_class": 4}
SPEC = apply_overrides(Bench("smoke").spec("as-fedbridge", "cifar10"), TINY)


def test_time_grows_with_rounds_and_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is replaced by one that ticks with every call of a layer."""
    ticks = 0

    def tick(*_: object) -> None:
        nonlocal ticks
        ticks += 1

    monkeypatch.setattr(time, "perf_counter", lambda: float(ticks))
    with register_module_forward_hook(tick):
        few = measure(replace(SPEC, rounds=2), tmp_path)
        many = measure(replace(SPEC, rounds=200), tmp_path)
        thorough = measure(replace(SPEC, rounds=200, epochs=40), tmp_path)
    assert few.seconds > 0
    assert many.seconds == pytest.approx(100 * few.seconds)
    assert thorough.seconds > 10 * many.seconds
    assert few.megabytes > 50


def test_diagnosed_rounds_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The difference to a run without diagnostics is the time of the readings."""
    clock = iter(range(10**6))
    monkeypatch.setattr(
        probe.time, "perf_counter", lambda: float(next(clock))
    )  # everything that is timed takes a second
    plain, diagnosed = (measure(replace(SPEC, rounds=4, diagnose_every=every), tmp_path).seconds for every in (0, 2))
    images, few = 40, 16
    assert diagnosed - plain == pytest.approx(2 * 3 * images / few)  # rounds, clients


def test_errors_of_the_probe_process_are_reported(tmp_path: Path) -> None:
    file = tmp_path / "spec.toml"
    file.write_text(write_toml(replace(SPEC, data="npz:nowhere.npz")))
    with pytest.raises(BadInput, match=r"^[^\n]*nowhere\.npz[^\n]*$"):
        measure_apart(file, None)


def test_one_row_per_run_and_one_measurement_for_all_seeds(tmp_path: Path) -> None:
    told: list[str] = []
    missing = replace(SPEC, data="npz:nowhere.npz")
    jobs = plan([Cell("a", "c", SPEC), Cell("b", "c", missing)], [0, 1], tmp_path)
    rows = estimate_rows(jobs, None, 2, told.append)
    assert len(told) == 2
    assert [row[1] for row in rows] == ["seed", "0", "0", "1", "1", ""]
    assert rows[1][2] == "to do"
    assert float(rows[1][4]) > 50
    assert rows[1][3:] == rows[3][3:]
    assert rows[2][2].startswith("cannot run: ")
    assert rows[-1][0] == "4 runs, 2 at once"
    assert not list(tmp_path.rglob("summary.json"))
