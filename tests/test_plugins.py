"""Plugins: files and installed packages that add methods, models and more, on every engine and in reproduce."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import asfedbridge.methods  # noqa: F401  registers those that come with the library
from asfedbridge import cli
from asfedbridge.core import plugins
from asfedbridge.core.errors import BadInput
from asfedbridge.core.method import METHODS, register_method
from asfedbridge.core.plugins import load_plugin
from asfedbridge.data.sources.registry import SOURCES
from asfedbridge.models import zoo
from asfedbridge.models.registry import MODELS
from asfedbridge.runs.callback import CALLBACKS

ROOT = Path(__file__).parents[1]
PLUGIN = '''
from dataclasses import dataclass

import numpy as np
from torch import nn

import asfedbridge as afb
from asfedbridge.methods.fedavg import FedAvg


@afb.register_method("half")
@dataclass(frozen=True)
class Half(FedAvg):
    """FedAvg whose server moves only part of the way to the mean."""

    step: float = 0.5

    def server_round(self, state, clients, ups, rnd):
        mean = super().server_round(state, clients, ups, rnd)
        return {name: old + self.step * (mean[name] - old) for name, old in state.items()}


@afb.register_model("dense", "two dense layers of a plugin")
class Dense(nn.Module):
    def __init__(self, task, info):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(task.channels * task.image_size**2, task.feature_dim))
        self.head = nn.Linear(task.feature_dim, task.classes)

    def forward(self, x):
        feature = self.body(x).relu()
        return afb.Output(self.head(feature)[None], feature[None])


@afb.register_data("stripes", "stripes of a plugin", augment="none")
def stripes():
    row, column = np.mgrid[:8, :8]
    y = np.arange(60) % 2
    x = np.stack([((row, column)[label] % 2 * 200).astype(np.uint8) for label in y])
    return {"x_train": x[:40], "y_train": y[:40], "x_test": x[40:], "y_test": y[40:]}


@afb.register_callback("counter")
class Counter(afb.Callback):
    """Counts the rounds of a plugin."""

    def on_round_end(self, run, rnd, records):
        with (run.path / "counted.txt").open("a") as file:
            file.write(f"{rnd.index}\\n")
'''
PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "{name}"
version = "1.2"

[project.entry-points."asfedbridge.plugins"]
{name} = "{module}"

[tool.setuptools]
py-modules = ["{module}"]
"""
WORDS = ["fleet=2*dense:ann", "method=half", "rounds=2", "train_per_class=8", "test_per_class=2", "partition=iid"]
OWN = [*WORDS, "data=stripes", "--callback", "counter"]
# At the scale `smoke`, an experiment's fleet is ten ResNets; two dense clients do.
SETTINGS = [word for key in WORDS if not key.startswith("method") for word in ("--set", key)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(PLUGIN)
    return path


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test registers is gone in the next."""
    registries: list[Any] = [METHODS, MODELS, SOURCES, CALLBACKS]
    known = [dict(registry) for registry in registries]
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for registry, before in zip(registries, known, strict=True):
        registry.clear()
        registry.update(before)
    plugins.FILES.clear()
    zoo.forget_models()


def states(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted((folder / "checkpoint" / "clients").iterdir())}


# Files


def test_a_file_runs_alike_on_local_and_pool(file: Path, tmp_path: Path, capsys: Any) -> None:
    words = ["run", "smoke", *WORDS, "method.step=0.7", "--import", str(file), "--json"]
    assert cli.main([*words, "--out", str(tmp_path / "local")]) == 0
    assert cli.main([*words, "--out", str(tmp_path / "pool"), "--engine", "pool", "--workers", "2"]) == 0
    assert states(tmp_path / "local") == states(tmp_path / "pool")
    assert "step = 0.7" in (tmp_path / "pool" / "spec.toml").read_text()
    assert json.loads((tmp_path / "pool" / "env.json").read_text())["imports"] == [str(file)]
    capsys.readouterr()
    page = tmp_path / "page.html"
    assert cli.main(["report", str(tmp_path / "pool"), "--out", str(page)]) == 0
    assert f"asfedbridge run {tmp_path}/pool/spec.toml --import {file} --out NEW_FOLDER" in page.read_text()


def test_a_run_names_the_plugin_that_it_was_made_with(file: Path, tmp_path: Path, capsys: Any) -> None:
    out = str(tmp_path / "run")
    assert cli.main(["run", "smoke", *WORDS, "--import", str(file), "--out", out]) == 0
    plugins.FILES.clear()
    METHODS.pop("half")
    capsys.readouterr()
    assert cli.main(["run", "--resume", "--out", out]) == 2
    assert capsys.readouterr().err.endswith(f"; add --import {file}\n")


def test_the_list_shows_what_a_file_registers(file: Path, capsys: Any) -> None:
    for topic, text in (("methods", "FedAvg whose server moves only part"), ("models", "two dense layers of a plugin")):
        assert cli.main(["list", topic, "--import", str(file)]) == 0
        assert text in capsys.readouterr().out
    assert cli.main(["list", "methods", "--markdown", "--import", str(file)]) == 0
    assert "## `half`" in capsys.readouterr().out


def test_a_file_is_run_once_and_sees_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("counted = []")
    path = tmp_path / "mine.py"
    path.write_text("import beside\nbeside.counted.append(1)")
    load_plugin(path)
    load_plugin(str(path))
    assert sys.modules["beside"].counted == [1]
    assert [str(path)] == plugins.FILES
    assert sys.path.count(str(tmp_path)) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import asfedbridge\n1 / 0", "mine.py: line 2: ZeroDivisionError: division by zero"),
        ("def f(:", "mine.py: SyntaxError: invalid syntax (mine.py, line 1)"),
        (PLUGIN.replace('"half"', '"fedavg"'), "ValueError: method name 'fedavg' is already registered"),
        (PLUGIN.replace("@dataclass(frozen=True)\n", ""), "TypeError: method 'half': class Half has fields"),
    ],
)
def test_a_file_that_fails_is_one_line(text: str, message: str, tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "mine.py"
    path.write_text(text)
    assert cli.main(["list", "methods", "--import", str(path)]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"asfedbridge: --import {path}: ")
    assert message in err
    assert err.count("\n") == 1
    assert not plugins.FILES


def test_data_that_fail_are_one_line(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "torn.py"
    path.write_text(
        "import asfedbridge as afb\n@afb.register_data('torn', 'fails')\ndef read():\n    raise OSError('no disk')\n"
    )
    try:
        assert cli.main(["run", "smoke", "data=torn", "--import", str(path), "--out", str(tmp_path / "out")]) == 2
    finally:
        SOURCES.pop("torn", None)
    expected = "asfedbridge: data 'torn': its function fails: line 4: OSError: no disk\n"
    assert capsys.readouterr().err.endswith(expected)
    assert not (tmp_path / "out").exists()


def test_a_class_without_fields_needs_no_dataclass() -> None:
    from asfedbridge.methods.fedavg import FedAvg

    @register_method("quiet")
    class Quiet(FedAvg):
        pass

    assert METHODS["quiet"]().name == "quiet"


def test_reproduce_takes_methods_and_data_of_ones_own(file: Path, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "out"
    words = ["reproduce", "moderate", "--scale", "smoke", "--import", str(file), "--out", str(out), *SETTINGS]
    rows = ["--only", "standalone", "--add", "half", "--columns", "digits", "--set", "method.step=0.7"]
    assert cli.main([*words, *rows]) == 0
    shown = capsys.readouterr()
    assert "--set method.step=0.7 applies to half; not to standalone" in shown.err
    table = (out / "moderate.csv").read_text().splitlines()
    assert {tuple(line.split(",")[:2]) for line in table[1:]} == {("standalone", "digits"), ("half", "digits")}
    (cell,) = (out / "cells").glob("half-*/spec.toml")
    assert "step = 0.7" in cell.read_text()
    assert cli.main([*words, *rows]) == 0  # all of it is there
    assert "2 of 2 runs are already finished" in capsys.readouterr().err


def test_reproduce_adds_rows_to_the_whole_table(file: Path) -> None:
    from asfedbridge.paper.experiments import MAIN, find_experiment
    from asfedbridge.paper.grid import Bench, add_own

    load_plugin(file)
    experiment = find_experiment("main")
    bench = add_own(Bench("smoke"), experiment, ["half", "digits", "npz:a.npz", "fedavg", "nonsense"])
    assert (bench.methods, bench.data) == (("half",), ("digits", "npz:a.npz"))
    cells = experiment.cells(bench)
    assert {c.row for c in cells} == {*MAIN, "half"}
    assert [c.spec.data for c in cells if c.row == "half"].count("npz:a.npz") == 1
    assert len({(c.row, c.column) for c in cells}) == len(cells)
    for name in ("iid", "scale", "composition", "communication"):
        cells = find_experiment(name).cells(bench)
        assert "half" in {c.row for c in cells}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["main", "--add", "third"], "--add third: not a registered method or data set"),
        (["main", "--only", "third"], "--only third: not in this experiment"),
        (
            ["ablation", "--add", "half"],
            "--add half: not a registered method or data set, or ablation cannot be extended",
        ),
    ],
)
def test_reproduce_refuses_what_it_does_not_know(words: list[str], message: str, file: Path, capsys: Any) -> None:
    assert cli.main(["reproduce", *words, "--scale", "smoke", "--import", str(file), "--dry-run"]) == 2
    assert message in capsys.readouterr().err


# Packages


def install(folder: Path, name: str, text: str) -> Path:
    """Build a package and install it into a folder, as a user would, but without a network."""
    source, target = folder / f"source-{name}", folder / "site"
    source.mkdir()
    module = name.replace("-", "_")
    (source / "pyproject.toml").write_text(PROJECT.format(name=name, module=module))
    (source / f"{module}.py").write_text(text)
    options = ["--no-deps", "--no-build-isolation", "--quiet", "--disable-pip-version-check", "--target", str(target)]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, str(source)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a package that works and one that does not."""
    folder = tmp_path_factory.mktemp("packages")
    install(folder, "half-plugin", PLUGIN)
    return install(folder, "broken-plugin", "import a_package_that_is_not_there")


BROKEN = (
    "asfedbridge: package broken-plugin: its plugin 'broken-plugin' (broken_plugin) was not loaded "
    "(ModuleNotFoundError: No module named 'a_package_that_is_not_there'); repair or uninstall the package"
)


def command(site: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(site)])}
    done = subprocess.run(
        [sys.executable, "-m", "asfedbridge", *words], env=env, cwd=site.parent, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done


def test_a_package_is_listed_and_a_broken_one_named(site: Path) -> None:
    done = command(site, "list")
    assert "FedAvg whose server moves only part of the way to the mean." in done.stdout
    assert "two dense layers of a plugin" in done.stdout
    assert "stripes of a plugin" in done.stdout
    assert "Counts the rounds of a plugin." in done.stdout
    assert done.stderr.splitlines() == [BROKEN]


@pytest.fixture(scope="module")
def local(site: Path) -> Path:
    """A run of the package in one process."""
    command(site, "run", "smoke", *OWN, "--out", str(site.parent / "local"))
    return site.parent / "local"


def test_a_package_runs_on_local_and_pool(site: Path, local: Path, tmp_path: Path) -> None:
    command(site, "run", "smoke", *OWN, "--out", str(tmp_path / "pool"), "--engine", "pool", "--workers", "2")
    assert [(folder / "counted.txt").read_text() for folder in (local, tmp_path / "pool")] == ["0\n1\n2\n"] * 2
    assert states(local) == states(tmp_path / "pool")
    assert json.loads((tmp_path / "pool" / "env.json").read_text())["plugins"] == {"half-plugin": "1.2"}


def test_a_package_runs_in_reproduce(site: Path, tmp_path: Path) -> None:
    words = ["reproduce", "iid", "--scale", "smoke", "--only", "half", "--columns", "stripes", *SETTINGS]
    done = command(site, *words, "--out", str(tmp_path))
    assert "| half |" in done.stdout
    assert "## stripes" in done.stdout


@pytest.mark.long
def test_a_package_runs_on_flower(site: Path, local: Path, tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    command(site, "run", "smoke", *OWN, "--out", str(tmp_path / "flower"), "--engine", "flower")
    assert (tmp_path / "flower" / "counted.txt").read_text() == "0\n1\n2\n"
    ours, theirs = (
        json.loads((folder / "summary.json").read_text())["accuracy"] for folder in (local, tmp_path / "flower")
    )
    assert ours == theirs


def test_python_warns_of_a_broken_package(site: Path) -> None:
    code = (
        "import warnings, asfedbridge as afb\n"
        "with warnings.catch_warnings(record=True) as told:\n"
        "    warnings.simplefilter('always')\n"
        "    assert afb.recipe('smoke', method='half').method.step == 0.5\n"
        "print([str(w.message) for w in told if 'plugin' in str(w.message)])"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(site)])}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.stdout.strip() == str([BROKEN.removeprefix("asfedbridge: ")]), done.stderr


def test_a_file_cannot_be_imported(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"^import .*none.py: there is no such Python file$"):
        load_plugin(tmp_path / "none.py")
