"""What stands in the way of new users: each of these once did."""

import csv
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asfedbridge import cli
from asfedbridge.core.method import METHODS
from asfedbridge.core.task import Neuron, Optimiser
from asfedbridge.kernels.dispatch import noticing_compilation
from asfedbridge.models import zoo
from asfedbridge.paper.experiments import EXPERIMENTS, find_experiment
from asfedbridge.paper.grid import Bench
from asfedbridge.report.cost_tables import experiment_costs
from asfedbridge.report.experiment_tables import collect, tables, to_csv
from asfedbridge.runs import keys
from asfedbridge.runs.spec import Spec


def refused(capsys: Any, *words: str) -> str:
    assert cli.main(list(words)) == 2
    err = str(capsys.readouterr().err)
    assert err.count("\n") == 1
    return err


def test_no_words_print_the_help(capsys: Any) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main([])
    assert end.value.code == 0
    assert "Start with: asfedbridge run" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("noise=1", "'method.noise'?"),
        ("lr=0.1", "'optimiser.lr_ann', 'optimiser.lr_snn' or 'method.bridge_lr'?"),
        ("learning_rate=0.1", "'optimiser.lr_ann', 'optimiser.lr_snn' or 'method.bridge_lr'?"),
        ("optimiser.lr=0.1", "'optimiser.lr_ann' or 'optimiser.lr_snn'?"),
        ("bridge_with=1", "'method.bridge_width'?"),
        ("decay=0.5", "'neuron.decay'?"),
        ("sede=1", "'seed'?"),
        ("clients=4", "'fleet'?"),
    ],
)
def test_a_wrong_key_names_nested_keys(word: str, meant: str, capsys: Any) -> None:
    assert f"did you mean {meant}" in refused(capsys, "show", "smoke", word)


def test_a_key_of_other_methods_names_them(capsys: Any) -> None:
    err = refused(capsys, "show", "smoke", "mu=0.1")
    assert "method.mu is a key of 'fedprox' or 'isolated-fedprox'" in err
    assert cli.main(["show", "smoke", "mu=0.1", "method=fedprox"]) == 2
    assert "did you mean 'method.mu'?" in capsys.readouterr().err


def test_a_path_without_a_kind_names_the_kind(tmp_path: Path, capsys: Any) -> None:
    assert "did you mean npz:/x.npz?" in refused(capsys, "data", "check", "/x.npz")
    assert f"did you mean folder:{tmp_path}?" in refused(capsys, "data", "check", str(tmp_path))


def test_numpys_advice_is_never_shown(tmp_path: Path, capsys: Any) -> None:
    """It would be to load pickles."""
    objects = np.array([{"a": 1}, None], dtype=object)
    np.savez(tmp_path / "objects.npz", x_train=objects, y_train=objects, x_test=objects, y_test=objects)
    np.save(tmp_path / "single.npz", objects, allow_pickle=True)
    (tmp_path / "single.npz.npy").rename(tmp_path / "single.npz")
    (tmp_path / "text.npz").write_text("not an archive")
    for name in ("objects", "single", "text"):
        assert "pickle" not in refused(capsys, "data", "check", f"npz:{tmp_path / name}.npz")


def test_counts_of_a_fleet_may_have_an_x(capsys: Any) -> None:
    with_x = cli.resolve(["smoke", "fleet=2xresnet18@0.25:ann,3xvgg9:snn:T=2"])
    assert with_x.fleet == "2*resnet18@0.25:ann,3*vgg9:snn:T=2"
    assert with_x.digest() == cli.resolve(["smoke", "fleet=2*resnet18@0.25:ann,3*vgg9:snn:T=2"]).digest()
    assert "count 0 is out of range" in refused(capsys, "show", "fleet=0xresnet18:ann")


def test_compilation_is_told_only_when_it_happens() -> None:
    numba = pytest.importorskip("numba")
    told: list[str] = []
    zoo.compile_kernels()
    zoo.compile_kernels(lambda: told.append("again"))
    assert told == []
    with noticing_compilation(lambda: told.append("first")):
        numba.njit(lambda x: x + 1)(1)
        numba.njit(lambda x: x + 2)(1)
    assert told == ["first"]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_smoke_tables_name_the_data_that_were_used_and_no_values_of_the_paper(name: str, tmp_path: Path) -> None:
    experiment = find_experiment(name)
    cells = experiment.cells(Bench("smoke"))
    results = collect(cells, [0], tmp_path, {})
    measured = experiment_costs(experiment, cells, [0], tmp_path, {}) if experiment.costs and cells else []
    assert {cell.spec.data for cell in cells} <= {"digits"}
    shown = [*tables(results), *measured]
    words = [word for one in shown for word in (one.title, one.note, *(cell for row in one.rows for cell in row))]
    words += [row[1] for row in csv.reader(to_csv(results).splitlines()[1:])]
    assert not [word for word in words if "paper" in word.lower()]
    named = [word for word in words if "cifar" in word or "imagenet" in word]
    assert all(word.startswith("digits (in place of ") for word in named)
    assert named or not {cell.column for cell in cells} & {"cifar10", "cifar100", "tiny-imagenet"}


def test_a_dry_run_measures_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    from asfedbridge.report import estimate

    monkeypatch.delattr(estimate, "measure_apart")
    words = ["reproduce", "main", "--scale", "cpu", "--seeds", "0,1", "--out", str(tmp_path / "out")]
    assert cli.main([*words, "--dry-run"]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0].split() == ["run", "data", "rounds", "seed", "state"]
    assert all(line.endswith("to do") for line in lines[2:])
    assert "--measure estimates time and memory" in err
    assert not (tmp_path / "out").exists()
    assert "--measure works only with --dry-run" in refused(capsys, *words, "--measure")


# Every key of a specification is documented


def every_name() -> set[str]:
    names = {field.name for field in dataclasses.fields(Spec)} - {"neuron", "optimiser"}
    names |= {f"neuron.{field.name}" for field in dataclasses.fields(Neuron)}
    names |= {f"optimiser.{field.name}" for field in dataclasses.fields(Optimiser)}
    return names | {f"method.{field.name}" for cls in METHODS.values() for field in dataclasses.fields(cls)}


def test_every_key_is_listed_and_documented(capsys: Any) -> None:
    found = list(keys.list_keys(Spec))
    assert {key.name for key in found} == every_name()
    assert keys.undocumented(found) == []
    assert cli.main(["list", "settings"]) == 0
    lines = capsys.readouterr().out.splitlines()
    starts = {line.partition("=")[0] for line in lines if line and not line.startswith(" ")}
    assert starts >= every_name()


def test_a_key_without_documentation_fails_the_command(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    describe = keys.describe_fields
    gaps = {"rounds": "", "start": "one of equal, by-kind"}
    monkeypatch.setattr(keys, "describe_fields", lambda cls: describe(cls) | (gaps if cls is Spec else {}))
    assert cli.main(["list", "settings"]) == 1
    assert capsys.readouterr().err.endswith(": rounds, start\n")
