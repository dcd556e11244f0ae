"""Figures: real files of the promised size, none without what it needs."""

import builtins
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tests.report.folders import make_analysis, make_run, make_spec

from asfedbridge.core.errors import BadInput
from asfedbridge.report import figures
from asfedbridge.report.runs import gather


def test_one_run_with_everything(tmp_path: Path) -> None:
    summary = make_run(tmp_path / "run", make_spec(rounds=5))
    make_analysis(tmp_path / "run", summary)
    count = figures.draw_figures(gather([tmp_path / "run"]), tmp_path / "out")
    names = {p.name for p in (tmp_path / "out" / "run").iterdir()}
    stems = {"accuracy", "clients", "communication", "shards", "rates", "by-round"}
    stems |= {f"{m}{suffix}" for m in ("cka", "mmd", "gradients") for suffix in ("", "-by-round")}
    assert names == {f"{stem}.{kind}" for stem in stems for kind in ("png", "svg")}
    assert count == len(names)
    for stem, inches in (("accuracy", figures.ONE), ("clients", figures.TWO)):
        with Image.open(tmp_path / "out" / "run" / f"{stem}.png") as image:
            assert image.width == pytest.approx(inches * 300, abs=1)
    svg = (tmp_path / "out" / "run" / "accuracy.svg").read_text()
    assert "<text" not in svg  # letters are outlines
    assert not re.search("dc:date", svg)


def test_runs_are_compared_on_each_data_set(tmp_path: Path) -> None:
    for i, (method, seed) in enumerate([("fedavg", 0), ("fedavg", 1), ("standalone", 0)]):
        make_run(tmp_path / str(i), make_spec(method, rounds=3, seed=seed))
    runs = gather([tmp_path])
    assert [p.title for p in figures._plates(runs[0])] == ["accuracy", "clients", "communication", "shards"]

    class Axes:
        """Keeps what is drawn."""

        def __init__(self) -> None:
            self.lines: dict[str, Any] = {}
            self.bands = 0

        def plot(self, xs: Any, ys: Any, label: str, **_: Any) -> None:
            self.lines[label] = list(zip(xs, ys, strict=True))

        def fill_between(self, *_: Any, **__: Any) -> None:
            self.bands += 1

        def __getattr__(self, name: str) -> Any:
            return lambda *_, **__: self

        @property
        def xaxis(self) -> Any:
            return self

    axes = Axes()
    figures._compare(runs, axes)
    assert axes.bands == 1  # of the method with two seeds
    ends = [run.curves.groups["all"][-1][1] for run in runs]
    assert axes.lines["fedavg"][-1] == (3.0, pytest.approx((ends[0] + ends[1]) / 2))
    assert axes.lines["standalone"][-1] == (3.0, ends[2])


def test_names_of_files_are_plain() -> None:
    assert figures._safe("npz:../<b> x.npz") == "npz-..-b-x.npz"
    assert figures._safe("..") == "run"


def test_without_matplotlib_there_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = builtins.__import__

    def refuse(name: str, *rest: Any, **named: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", refuse)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(BadInput, match=r"pip install 'asfedbridge\[figures\]'"):
        figures.draw_figures([], tmp_path)
