"""Figures: files of the documented size, and none without its data."""

import builtins
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image
from tests.report.folders import make_analysis, make_run, make_spec

from asfedbridge.core.errors import BadInput
from asfedbridge.report import figures
from asfedbridge.report.palette import cycle
from asfedbridge.report.runs import gather


def test_one_run_with_everything(tmp_path: Path) -> None:
    summary = make_run(tmp_path / "run", make_spec(rounds=5))
    make_analysis(tmp_path / "run", summary)
    count = figures.draw_figures(gather([tmp_path / "run"]), tmp_path / "out")
    names = {p.name for p in (tmp_path / "out" / "run").iterdir()}
    stems = {"accuracy", "clients", "communication", "shards", "rates", "by-round"}
    stems |= {f"{m}{suffix}" for m in ("cka", "mmd", "gradients") for suffix in ("", "-by-round")}
    assert names == {f"{stem}.{kind}" for stem in stems for kind in ("png", "svg", "pdf")}
    assert count == len(names)
    for stem, inches in (("accuracy", figures.ONE_COLUMN), ("clients", figures.TWO_COLUMNS)):
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

    axes = Figure().subplots()
    figures._compare(runs, axes)
    assert len(axes.collections) == 1  # the band of the method with two seeds
    ends = [run.curves.groups["all"][-1][1] for run in runs]
    lines = {str(line.get_label()): (line.get_xdata()[-1], line.get_ydata()[-1]) for line in axes.get_lines()}
    assert lines == {"fedavg": (3.0, pytest.approx((ends[0] + ends[1]) / 2)), "standalone": (3.0, ends[2])}


def test_a_legend_leaves_the_plot_its_room() -> None:
    """The figure grows by the rows of its legend, which is above the axes."""
    with rc_context(figures.LOOK):
        made = Figure(figsize=(figures.ONE_COLUMN, 2.2), layout="constrained")
        axes = made.subplots()
    lines = [(f"a method with a long name {i}", cycle(i), [(0.0, 1.0), (1.0, 2.0)]) for i in range(10)]
    with rc_context(figures.LOOK):
        figures._lines(lines, "accuracy (%)", axes)
        FigureCanvasAgg(made).draw()
    assert made.get_figheight() == pytest.approx(2.2 + 10 * 0.15)
    (key,) = made.legends
    assert key.get_window_extent().y0 >= axes.get_window_extent().y1
    assert axes.get_window_extent().height > 0.6 * 2.2 * made.dpi


def test_file_names_are_safe() -> None:
    assert figures._safe("npz:../<b> x.npz") == "npz-..-b-x.npz"
    assert figures._safe("..") == "run"


def test_a_missing_matplotlib_is_bad_input(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = builtins.__import__

    def refuse(name: str, *rest: Any, **named: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", refuse)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(BadInput, match=r"pip install 'asfedbridge\[figures\]'"):
        figures.draw_figures([], tmp_path)
