"""The command line: what users were promised, through real processes where that matters."""

import hashlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asfedbridge.methods  # noqa: F401  registers every method
from asfedbridge import cli
from asfedbridge.core.method import METHODS

SMALL = [
    "fleet=1*resnet18@0.125:ann,1*resnet18@0.125:snn",
    "T=2",
    "train_per_class=4",
    "test_per_class=2",
    "batch_size=16",
    "feature_dim=16",
    "partition=iid",
    "rounds=3",
    "method.bridge_width=0.34",
    "threads=1",
]
ALONE = [word for word in SMALL if not word.startswith("method.")] + ["method=standalone"]
LONG = pytest.mark.long  # where another case of the test, or another test, is always run
FILES = {"spec.toml", "env.json", "rounds.jsonl", "summary.json", "checkpoint", "tensorboard"}


def start(*words: str | Path, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "asfedbridge", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        **options,
    )


def run(*words: str | Path, **options: Any) -> tuple[int, str, str]:
    with start(*words, **options) as process:
        out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def final_bits(folder: Path) -> dict[str, str]:
    """Digest of every tensor file of the one checkpoint a finished run leaves."""
    root = folder / "checkpoint"
    paths = sorted(root.rglob("*.safetensors"))
    return {p.relative_to(root).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in paths}


def results(folder: Path) -> dict[str, Any]:
    summary = json.loads((folder / "summary.json").read_text())
    return {key: value for key, value in summary.items() if key not in ("wall_seconds", "engine", "workers", "threads")}


def rounds(folder: Path) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    return [{key: value for key, value in r.items() if key != "seconds"} for r in records]


def same(one: Path, other: Path) -> bool:
    assert len(final_bits(one)) == 6  # two checkpoints of a server and two clients
    return (final_bits(one), results(one), rounds(one)) == (final_bits(other), results(other), rounds(other))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A run that nobody interrupted, its stdout and stderr."""
    out = tmp_path_factory.mktemp("finished") / "run"
    code, stdout, stderr = run("run", *SMALL, "--out", out)
    assert code == 0, stderr
    return out, stdout, stderr


# A run that goes well


def test_the_run_folder_holds_what_is_promised(finished: Any) -> None:
    out = finished[0]
    assert {p.name for p in out.iterdir()} >= FILES
    assert not list(out.rglob("*.partial"))
    assert sorted(p.name for p in (out / "checkpoint").iterdir()) == ["clients", "round-000002", "round-000003"]
    assert len(list((out / "tensorboard").glob("events.out.tfevents.*"))) == 1
    assert [(r["round"], r["client"]) for r in rounds(out)] == [(i, c) for i in range(4) for c in range(2)]


def test_the_summary_has_the_promised_keys(finished: Any) -> None:
    summary = json.loads((finished[0] / "summary.json").read_text())
    fixed = {
        "method": "as-fedbridge",
        "data": "digits",
        "seed": 42,
        "rounds": 3,
        "engine": "local",
        "workers": 1,
        "threads": 1,
    }
    assert {key: summary[key] for key in fixed} == fixed
    assert list(summary["accuracy"]) == ["ann", "snn", "all"]
    assert all(isinstance(v, float) and 0 <= v <= 100 for v in summary["accuracy"].values())
    assert summary["accuracy"]["all"] == pytest.approx((summary["accuracy"]["ann"] + summary["accuracy"]["snn"]) / 2)
    for i, client in enumerate(summary["clients"]):
        assert (client["id"], client["kind"], client["model"]) == (i, ("ann", "snn")[i], "resnet18")
        assert (client["train"], client["test"]) == (20, 10)
        assert isinstance(client["accuracy"], float)
    assert isinstance(summary["payload_mb"], float)
    assert summary["uplink_bytes"] == 3 * 2 * round(summary["payload_mb"] * 2**20)
    assert summary["downlink_bytes"] == 4 * 2 * round(summary["payload_mb"] * 2**20)
    assert summary["wall_seconds"] > 0


def test_tables_on_stdout_and_progress_on_stderr(finished: Any) -> None:
    out, stdout, stderr = finished
    lines = stdout.splitlines()
    assert any(line.split() == ["client", "kind", "model", "train", "test", "accuracy"] for line in lines)
    assert any(line.startswith("as-fedbridge") for line in lines)
    assert "evaluated at `trained`" in stdout
    assert f"run folder: {out}" in stdout
    assert "round 1/3" in stderr
    assert "closing visit" in stderr
    assert "round 1/3" not in stdout
    assert "\x1b" not in stdout + stderr


def test_the_specification_of_a_run_runs_again(finished: Any, tmp_path: Path, capsys: Any) -> None:
    """`show` prints it, the folder holds it, and both mean the same run."""
    assert cli.main(["show", *SMALL]) == 0
    shown = capsys.readouterr().out
    assert tomllib.loads(shown) == tomllib.loads((finished[0] / "spec.toml").read_text())
    (tmp_path / "mine.toml").write_text(shown)
    assert cli.main(["show", str(tmp_path / "mine.toml")]) == 0
    assert capsys.readouterr().out == shown
    digest = json.loads((finished[0] / "env.json").read_text())["spec"]
    assert cli.resolve([str(tmp_path / "mine.toml")]).digest() == digest
    assert cli.resolve([str(tmp_path / "mine.toml"), "seed=7"]).seed == 7


def test_the_same_file_gives_the_same_bits_and_json_alone_on_stdout(finished: Any, tmp_path: Path) -> None:
    """Another process, from the file instead of the words."""
    code, stdout, stderr = run("run", finished[0] / "spec.toml", "--out", tmp_path / "run", "--json")
    assert code == 0
    assert same(finished[0], tmp_path / "run")
    assert json.loads(stdout) == json.loads((tmp_path / "run" / "summary.json").read_text())
    assert "run folder:" in stderr


def test_another_seed_gives_other_bits(finished: Any, tmp_path: Path) -> None:
    assert cli.main(["run", *SMALL, "seed=43", "--out", str(tmp_path / "run")]) == 0
    ours, theirs = final_bits(finished[0]), final_bits(tmp_path / "run")
    assert all(ours[name] != theirs[name] for name in ours)
    assert results(finished[0])["partition_digest"] != results(tmp_path / "run")["partition_digest"]


def test_a_finished_run_is_shown_again_not_played_again(finished: Any, capsys: Any) -> None:
    before = (finished[0] / "summary.json").stat().st_mtime_ns
    assert cli.main(["run", "--resume", "--out", str(finished[0]), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((finished[0] / "summary.json").read_text())
    assert (finished[0] / "summary.json").stat().st_mtime_ns == before


def test_a_client_that_is_never_drawn_does_not_end_the_run(tmp_path: Path, capsys: Any) -> None:
    words = [*ALONE, "rounds=1", "participation=0.5", "--json"]
    assert cli.main(["run", *words, "--out", str(tmp_path / "run")]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert len(summary["clients"]) == 2
    assert summary["best"] is None


@LONG
def test_very_narrow_models_do_not_crash(tmp_path: Path) -> None:
    """Few channels in a strided 1x1 shortcut: oneDNN writes out of bounds there in channels-last layout."""
    words = [word for word in SMALL if not word.startswith(("fleet", "method"))]
    words += ["fleet=1*resnet18@0.0625:ann,1*resnet18@0.0625:snn", "method.bridge_width=0.25", "batch_size=32"]
    code, _, stderr = run("run", *words, "--out", tmp_path / "run")
    assert code == 0, stderr


# Help, lists, data, report


def test_help_does_not_wait_for_torch() -> None:
    script = (
        "import sys\n"
        "from asfedbridge.cli import build_parser, main\n"
        "build_parser()\n"
        "for words in (['--help'], ['run', '--help'], ['--version']):\n"
        "    try: main(words)\n"
        "    except SystemExit as end: assert not end.code\n"
        "assert main(['rum']) == 2\n"
        "slow = {'torch', 'numpy', 'sklearn', 'safetensors'} & set(sys.modules)\n"
        "assert not slow, slow\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    for word in ("run", "show", "list", "data", "report", "--resume", "--json", "--data-root"):
        assert word in done.stdout


@pytest.mark.parametrize(
    ("topic", "words"),
    [
        ("methods", sorted(METHODS)),
        ("models", ["resnet18"]),
        ("data", ["digits", "cifar10", "cifar100", "npz:PATH", "folder:PATH"]),
        ("recipes", ["quickstart", "cpu", "paper"]),
        ("fleets", ["scale", "architecture", "3+7", "ann+qnn4"]),
        ("kernels", ["numba", "spikingjelly", "torch"]),
        ("all", ["methods:", "models:", "data:", "recipes:", "fleets:", "kernels:"]),
    ],
)
def test_lists(topic: str, words: list[str], tmp_path: Path, capsys: Any) -> None:
    assert cli.main(["list", topic, "--data-root", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(any(line.startswith(word) for line in lines) for word in words)


def test_data_list_and_check(tmp_path: Path, capsys: Any) -> None:
    assert cli.main(["data", "list", "--data-root", str(tmp_path)]) == 0
    assert "asfedbridge data fetch cifar10" in capsys.readouterr().out
    assert cli.main(["data", "check", "digits"]) == 0
    assert "1438 training and 359 test images, 1x8x8, 10 classes: good" in capsys.readouterr().out


def test_a_report_of_two_runs(finished: Any, tmp_path: Path, capsys: Any) -> None:
    assert cli.main(["run", *ALONE, "rounds=1", "--out", str(tmp_path / "alone")]) == 0
    capsys.readouterr()
    assert cli.main(["report", str(finished[0]), str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:4]] == ["as-fedbridge", "standalone"]  # rounds differ: not compared
    assert lines[0].split()[:3] == ["method", "rounds", "folder"]
    assert lines[-1].startswith("All runs: digits, iid, seed 42, evaluated at")
    assert cli.main(["report", str(finished[0]), str(tmp_path), "--markdown"]) == 0
    assert capsys.readouterr().out.startswith("| method | rounds | folder |")
    assert cli.main(["report", str(finished[0]), str(tmp_path), "--json"]) == 0
    assert [s["method"] for s in json.loads(capsys.readouterr().out)] == ["as-fedbridge", "standalone"]
    for option, printed in (((), ""), (("--json",), "[]\n")):
        assert cli.main(["report", str(finished[0]), str(tmp_path), "--compare", *option]) == 0
        out, err = capsys.readouterr()
        assert out == printed
        assert err.startswith("nothing to compare: no method has several seeds")


def test_a_report_compares_methods_over_seeds(tmp_path: Path, capsys: Any) -> None:
    from tests.report.folders import make_run, make_spec

    for method, level in (("standalone", 50.0), ("fml", 60.0)):
        for seed in (0, 1):
            make_run(tmp_path / f"{method}{seed}", make_spec(method, seed=seed, rounds=2), level + seed)
    assert cli.main(["report", str(tmp_path)]) == 0
    runs, shared, title, table, note = capsys.readouterr().out.strip().split("\n\n")
    assert shared.startswith("All runs: cifar10, Dir(0.1), ")
    assert len(runs.splitlines()) == 6
    assert title == "cifar10, Dir(0.1)"
    assert [line.split()[0] for line in table.splitlines()[2:]] == ["fml", "standalone"]
    assert "95 % t interval" in note
    assert cli.main(["report", str(tmp_path), "--markdown", "--out", str(tmp_path / "page.html")]) == 0
    assert "## cifar10, Dir(0.1)\n\n| method | ANN | SNN | all | ANN vs standalone |" in capsys.readouterr().out
    assert "Methods over seeds" in (tmp_path / "page.html").read_text()
    assert cli.main(["report", str(tmp_path), "--compare"]) == 0
    assert capsys.readouterr().out.strip().split("\n\n") == [title, table, note]
    assert cli.main(["report", str(tmp_path), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 4
    assert cli.main(["report", str(tmp_path), "--compare", "--json"]) == 0
    (compared,) = json.loads(capsys.readouterr().out)
    assert compared["reference"] == "standalone"
    difference = compared["methods"]["fml"]["difference"]["all"]
    assert (difference["n"], difference["unit"]) == (2, "seeds")
    assert difference["low"] <= difference["mean"] <= difference["high"]
    assert compared["methods"]["standalone"]["difference"] == {}


def test_a_report_as_a_page_and_as_figures(finished: Any, tmp_path: Path, capsys: Any) -> None:
    summary = json.loads((finished[0] / "summary.json").read_text())
    words = ["report", str(finished[0]), "--out", str(tmp_path / "page.html"), "--figures", str(tmp_path / "figures")]
    assert cli.main([*words, "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == [summary]
    assert f"report: {tmp_path / 'page.html'}" in err
    page = (tmp_path / "page.html").read_text()
    assert f">{summary['accuracy']['all']:.2f}<" in page
    assert "Shards:" in page
    figures = list((tmp_path / "figures" / "run").iterdir())
    assert {f.suffix for f in figures} == {".pdf", ".png", ".svg"}
    assert f"figures: {len(figures)} files" in err


def test_the_summary_says_who_holds_which_class(finished: Any) -> None:
    clients = json.loads((finished[0] / "summary.json").read_text())["clients"]
    assert [sum(c["labels"]) for c in clients] == [c["train"] for c in clients]
    assert [sum(column) for column in zip(*(c["labels"] for c in clients), strict=True)] == [4] * 10


@pytest.mark.parametrize("recipe", ["quickstart", "cpu", "paper"])
@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_recipe_can_be_shown_for_every_method(recipe: str, method: str, capsys: Any) -> None:
    assert cli.main(["show", recipe, f"method={method}"]) == 0
    assert f'name = "{method}"' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["paper", "data=cifar10-dvs"], {"T": 10, "image_size": 48}),
        (["paper", "data=cifar10-dvs", "T=8", "image_size=32"], {"T": 8, "image_size": 32}),
        (["paper", "data=cifar100"], {"T": 4, "image_size": 0}),
        (["cpu"], {"train_per_class": 150, "image_size": 16}),
        (["cpu", "data=cifar100"], {"train_per_class": 15, "image_size": 16}),
        (["cpu", "data=cifar10-dvs", "train_per_class=9"], {"train_per_class": 9, "image_size": 24}),
        (["cpu", "data=npz:cifar100"], {"train_per_class": 150, "image_size": 16}),
        (["quickstart", "data=cifar10-dvs"], {"T": 4, "image_size": 0}),
    ],
    ids=" ".join,
)
def test_a_recipe_takes_what_the_data_set_demands(words: list[str], expected: dict[str, int]) -> None:
    spec = cli.resolve(words)
    assert {key: getattr(spec, key) for key in expected} == expected


# Bad input: exit code 2, one line that says what and where


@pytest.fixture
def refused(capsys: Any, tmp_path: Path) -> Callable[..., str]:
    def call(*words: str | Path) -> str:
        given = [str(word) for word in words]
        if given[:1] == ["run"] and not {"--out", "--resume"} & set(given):
            given += ["--out", str(tmp_path / "out")]
        code = cli.main(given)
        out, err = capsys.readouterr()
        assert code == 2, err
        assert out == ""
        assert err.count("\n") == 1, err
        assert "Traceback" not in err
        return err

    return call


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["rum"], "'rum'"),
        (["run", "--wat"], "--wat"),
        (["run", "--engine", "mpi"], "'mpi'"),
        (["run", "--workers", "2"], "--workers 2: the local engine has no workers; add --engine pool"),
        (["run", "--engine", "pool", "--workers", "0"], "--workers: invalid number of processes '0': expected 1 to"),
        (["run", "--engine", "pool", "--workers", "-1"], "--workers: invalid number of processes '-1'"),
        (["run", "--engine", "pool", "--workers", "two"], "--workers: invalid number of processes 'two'"),
        (["run", "--engine", "pool", "--workers", "9999"], "--workers: invalid number of processes '9999'"),
        (["run", "--resume"], "--resume needs --out"),
        (["list", "wishes"], "'wishes'"),
        (["data"], "ACTION"),
        (["data", "check"], "NAME"),
        (["data", "check", "mnist"], "mnist"),
        (["data", "check", "npz:none.npz"], "none.npz"),
        (["report"], "DIR"),
        (["report", "no-such-folder"], "no-such-folder: no such folder"),
        (
            ["reproduce", "main", "--scale", "smoke", "--set", "roundz=5"],
            "unknown key 'roundz'; did you mean 'rounds'?",
        ),
        (["reproduce", "main", "--scale", "smoke", "--set", "rounds=0"], "rounds=0 is out of range"),
        (["reproduce", "main", "--scale", "smoke", "--set", "rounds"], "'rounds' is not KEY=VALUE"),
        (
            ["reproduce", "main", "--scale", "smoke", "--set", "seed=3"],
            "--set seed=3: the experiment sets it; use --seeds",
        ),
        (
            ["reproduce", "rates", "--scale", "smoke", "--set", "method.mu=1"],
            "method.mu=1: not a field of as-fedbridge",
        ),
        (["reproduce", "computation", "--scale", "smoke", "--set", "T=2"], "computation has no runs"),
        (["show", "quikstart"], "'quikstart' is neither a recipe nor a .toml file; did you mean 'quickstart'?"),
        (["show", "none.toml"], "none.toml: no such file"),
        (["show", "cpu", "paper"], "give one recipe or file, not 2: cpu paper"),
        (["show", "=5"], "'=5' is not KEY=VALUE"),
        (["show", "method=fedavgg"], "method=fedavgg: unknown method; did you mean 'fedavg'?"),
        (["show", "method.name=[1]"], "method"),
        (["show", "method=5", "method.bridge_lr=1"], "method=5"),
        (["show", "fleet=resnet19:ann"], "fleet entry 1 'resnet19:ann': unknown model 'resnet19'"),
        (["show", "fleet=resnet18@9:ann"], "width 9 is out of range"),
        (["show", "fleet=0*resnet18:ann"], "count 0 is out of range"),
        (["show", "roundz=5"], "unknown key 'roundz'; did you mean 'rounds'?"),
        (["show", "method.bridge_with=5"], "unknown key 'method.bridge_with'; did you mean 'method.bridge_width'?"),
        (["show", "T=0"], "T=0 is out of range"),
        (["show", "T=65"], "T=65 is out of range"),
        (["show", "rounds=0"], "rounds=0 is out of range"),
        (["show", "rounds=ten"], "rounds='ten' must be a whole number"),
        (["show", "rounds=1.5"], "rounds=1.5 must be a whole number"),
        (["show", "alpha=0"], "alpha=0"),
        (["show", "alpha=nan"], "alpha=nan"),
        (["show", "participation=0"], "participation=0"),
        (["show", "participation=1.5"], "participation=1.5"),
        (["show", "batch_size=-1"], "batch_size=-1"),
        (["show", "seed=-1"], "seed=-1"),
        (["show", "optimiser.lr_ann=-1"], "optimiser.lr_ann=-1"),
        (["show", 'augment="a\\nb"'], "augment="),
        (["run", "data=mnist"], "data 'mnist' is not known"),
        (["run", "image_size=7"], "image_size=7"),
        (["run", "train_per_class=100000"], "train_per_class=100000"),
        (["run", "test_per_class=50"], "test_per_class=50"),
        (["run", "fleet=2000*resnet18@0.125:ann", "partition=iid"], "clients=2000"),
        (["run", "fleet=200*resnet18@0.125:ann", "alpha=0.5"], "clients=200"),
        (["run", "alpha=0.001"], "alpha=0.001"),
        (["run", "fleet=resnet18@0.5:ann,resnet18@0.25:ann", "method=fedavg"], "do not have the same shapes"),
        (["run", "projector=identity"], "projector=identity"),
        (["run", "data=cifar10", "--data-root", "no-such-root"], "asfedbridge data fetch cifar10"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_usage(refused: Any, tmp_path: Path, words: list[str], expected: str) -> None:
    assert expected in refused(*words)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("words", [["rum"], ["run", "--wat"]])
def test_bad_usage_in_a_real_process(words: list[str]) -> None:
    code, out, err = run(*words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words[-1] in err
    assert "Traceback" not in err


def test_a_gpu_that_is_not_there(refused: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert "device=cuda: torch finds no CUDA device" in refused("run", *SMALL, "device=cuda")
    assert "device=cuda:1: torch finds no CUDA device" in refused("run", *SMALL, "device=cuda:1")
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: False)
    assert "device=mps: torch finds no Metal device" in refused("run", *SMALL, "device=mps")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert "device=cuda:2: torch finds 2 CUDA devices here; use cuda:0 to cuda:1" in refused("run", "device=cuda:2")


def test_a_precision_that_the_device_does_not_train_in(refused: Any) -> None:
    told = refused("run", *SMALL, "device=cpu", "precision=fp16")
    assert "precision=fp16 needs a CUDA device, not cpu; use precision=bf16" in told


def archive(path: Path, **changes: Any) -> Path:
    rng = np.random.default_rng(changes.pop("seed", 0))
    arrays = {
        "x_train": rng.integers(0, 256, (60, 8, 8), dtype=np.uint8),
        "y_train": np.arange(60) % 3,
        "x_test": rng.integers(0, 256, (12, 8, 8), dtype=np.uint8),
        "y_test": np.arange(12) % 3,
    }
    np.savez(path, **arrays | changes)
    return path


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"x_train": np.zeros((60, 8, 8))}, "x_train is float64"),
        ({"x_train": np.full((60, 8, 8), np.nan, dtype=np.float32)}, "x_train is float32"),
        ({"y_train": np.arange(60) % 3 - 1}, "negative label -1"),
        ({"y_train": np.arange(60) % 3 + 1}, "class 0 of 4 has no training example"),
        ({"classes": np.array(["a", "b"])}, "label 2 is out of range"),
        ({"y_train": np.arange(59) % 3}, "60 images but y_train has 59 labels"),
        ({"y_test": np.zeros(12)}, "y_test is float64"),
        ({"x_train": np.zeros((60, 8, 9), dtype=np.uint8)}, "not square"),
    ],
)
def test_bad_arrays(refused: Any, tmp_path: Path, changes: Any, expected: str) -> None:
    path = archive(tmp_path / "mine.npz", **changes)
    message = refused("run", f"data=npz:{path}", "fleet=2*resnet18@0.125:ann", "partition=iid")
    assert expected in message
    assert "mine.npz" in message


def test_fewer_examples_than_clients(refused: Any, tmp_path: Path) -> None:
    path = archive(tmp_path / "mine.npz")
    message = refused("run", f"data=npz:{path}", "fleet=13*resnet18@0.125:ann", "partition=iid")
    assert "clients=13" in message
    assert "12 test examples" in message


def test_arrays_that_are_not_there_or_cut(refused: Any, tmp_path: Path) -> None:
    assert "none.npz: no such file" in refused("run", f"data=npz:{tmp_path / 'none.npz'}")
    path = archive(tmp_path / "mine.npz")
    content = path.read_bytes()
    for size in (0, 10, len(content) // 2, len(content) - 5):
        path.write_bytes(content[:size])
        assert "mine.npz" in refused("run", f"data=npz:{path}")


def test_folders_that_cannot_be_used(refused: Any, finished: Any, tmp_path: Path) -> None:
    assert "contains another run" in refused("run", *SMALL, "--out", finished[0])
    message = refused("run", *SMALL, "seed=7", "--out", finished[0], "--resume")
    assert "seed = 7" in message
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("mine")
    assert "contains other files" in refused("run", *SMALL, "--out", tmp_path / "notes")
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        assert str(out) in refused("run", *SMALL, "--out", out)
        assert "Traceback" not in refused("run", *SMALL, "--out", out, "--resume")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_file_where_tables_should_go(refused: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    assert "cannot create the folder" in refused("reproduce", "main", "--scale", "smoke", "--out", tmp_path / "file")


def test_resume_where_there_is_no_run(refused: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistyped folder must not begin a quick start of its own."""
    monkeypatch.setattr("asfedbridge.runs.run.execute", lambda *_: pytest.fail("a run was begun"))
    assert str(tmp_path / "typo") in refused("run", "--resume", "--out", tmp_path / "typo")


@pytest.fixture
def half_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Path:
    """A run on its own data that stopped after its second round."""
    from asfedbridge.report.progress import Progress

    def stop(self: Progress, run: Any, rnd: Any, records: Any) -> None:
        if rnd.index == 1:
            raise KeyboardInterrupt

    data = archive(tmp_path / "mine.npz")
    words = [word for word in ALONE if "per_class" not in word]
    with monkeypatch.context() as patch:
        patch.setattr(Progress, "on_round_end", stop)
        assert cli.main(["run", *words, f"data=npz:{data}", "--out", str(tmp_path / "run")]) == 130
    err = capsys.readouterr().err
    assert f"asfedbridge run --resume --out {tmp_path / 'run'}" in err
    return tmp_path / "run"


def test_a_damaged_checkpoint(refused: Any, half_done: Path) -> None:
    path = half_done / "checkpoint" / "clients" / "client-0001-round-000002.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    message = refused("run", "--resume", "--out", half_done)
    assert str(path) in message
    assert "damaged" in message


def test_a_checkpoint_of_other_data(refused: Any, half_done: Path) -> None:
    archive(half_done.parent / "mine.npz", seed=1)
    assert "belongs to another data" in refused("run", "--resume", "--out", half_done)


def test_a_checkpoint_of_another_specification(refused: Any, half_done: Path) -> None:
    spec = half_done / "spec.toml"
    spec.write_text(spec.read_text().replace("seed = 42", "seed = 7"))
    assert "belongs to another specification" in refused("run", "--resume", "--out", half_done)


def test_the_same_run_goes_on(half_done: Path, capsys: Any) -> None:
    assert cli.main(["run", "--resume", "--out", str(half_done), "--json"]) == 0
    out, err = capsys.readouterr()
    assert "resumed after round 2" in err
    assert json.loads(out)["rounds"] == 3
    assert [r["round"] for r in rounds(half_done)] == [0, 0, 1, 1, 2, 2, 3, 3]


# Numbers that are none


def test_divergence_names_client_round_and_stage(tmp_path: Path, capsys: Any) -> None:
    code = cli.main(["run", *SMALL, "optimiser.lr_ann=1e30", "--out", str(tmp_path / "run")])
    err = capsys.readouterr().err
    assert code == 1
    last = err.splitlines()[-1]
    assert "client 0 (resnet18@0.125:ann), round 0" in last
    assert "extract" in last or "inject" in last
    assert "Traceback" not in err
    assert not (tmp_path / "run" / "summary.json").exists()


def test_a_promise_of_a_good_checkpoint_is_kept(tmp_path: Path, capsys: Any) -> None:
    """One batch per round, one client alone: the weights break in the last step, after the last loss was looked at."""
    from safetensors.torch import load_file

    words = [*ALONE, "batch_size=64", "optimiser.lr_ann=1e30", "--out", str(tmp_path / "run")]
    assert cli.main(["run", *words]) == 1
    assert "client 0" in capsys.readouterr().err
    for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines():
        record = json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
        assert record["received.loss"] < 100
    for file in (tmp_path / "run" / "checkpoint").rglob("*.safetensors"):
        for name, tensor in load_file(file).items():
            assert tensor.isfinite().all(), name
            assert tensor.abs().max() < 1e6, name


# Interrupted, killed, out of space: the same bits after --resume


def wait_for(process: subprocess.Popen[str], condition: Callable[[], bool], seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < end, "the run never came so far"
        time.sleep(0.002)


def checkpoint_after(out: Path, index: int) -> Callable[[], bool]:
    return (out / "checkpoint" / f"round-{index:06d}").is_dir


def test_interrupted_and_resumed(finished: Any, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with start("run", *SMALL, "--out", out) as process:
        wait_for(process, checkpoint_after(out, 1))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"asfedbridge run --resume --out {out}" in err
    assert "Traceback" not in err
    assert not (out / "summary.json").exists()
    assert cli.main(["run", "--resume", "--out", str(out)]) == 0
    assert same(finished[0], out)


@pytest.mark.long
def test_a_closed_terminal_is_like_ctrl_c(finished: Any, tmp_path: Path) -> None:
    out = tmp_path / "my run"
    with start("run", *SMALL, "--out", out) as process:
        wait_for(process, checkpoint_after(out, 1))
        process.send_signal(signal.SIGHUP)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.splitlines()[-1] == f"interrupted; continue with: asfedbridge run --resume --out '{out}'"
    assert cli.main(["run", "--resume", "--out", str(out)]) == 0
    assert same(finished[0], out)


@pytest.mark.long
def test_nohup_stays_nohup(finished: Any, tmp_path: Path) -> None:
    out = tmp_path / "run"
    ignored = {"preexec_fn": lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)}
    with start("run", *SMALL, "--out", out, **ignored) as process:
        wait_for(process, checkpoint_after(out, 1))
        process.send_signal(signal.SIGHUP)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert same(finished[0], out)


def test_back_to_an_earlier_round(finished: Any, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "run"
    shutil.copytree(finished[0], out)
    words = ["run", "--resume", "--out", str(out), "--from-round"]
    assert cli.main([*words, "1"]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"asfedbridge: --from-round 1: {out}/checkpoint has no checkpoint after 1 rounds; ")
    assert last.endswith("available: 2, 3")
    assert cli.main([*words, "2"]) == 0
    err = capsys.readouterr().err
    assert "resumed after round 2" in err
    assert "round 3/3" in err
    assert same(finished[0], out)
    index = out / "checkpoint" / "round-000003" / "checkpoint.json"
    index.write_text(index.read_text().replace('"next_round": 3', '"next_round": 2'))
    (out / "summary.json").unlink()
    assert cli.main(words[:-1]) == 2
    err = capsys.readouterr().err
    assert "is damaged" in err
    assert err.endswith("or go back to the checkpoint after 2 rounds with --resume --from-round 2\n")
    assert cli.main([*words, "2"]) == 0
    assert same(finished[0], out)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--from-round", "2"], "--from-round 2 works only with resume; add --resume"),
        (["--resume", "--from-round", "0"], "invalid number '0': expected a positive integer"),
    ],
)
def test_a_way_back_that_is_none(words: list[str], message: str, tmp_path: Path, capsys: Any) -> None:
    assert cli.main(["run", *words, "--out", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    "moment",
    [pytest.param("first state", marks=LONG), "after round 1", pytest.param("closing", marks=LONG)],
)
def test_killed_and_resumed(finished: Any, tmp_path: Path, moment: str) -> None:
    out = tmp_path / "run"
    lines = out / "rounds.jsonl"
    conditions: dict[str, Callable[[], bool]] = {
        "first state": lambda: any((out / "checkpoint" / "clients").glob("*")),
        "after round 1": checkpoint_after(out, 1),
        "closing": lambda: lines.exists() and lines.read_bytes().count(b"\n") >= 6,
    }
    with start("run", *SMALL, "--out", out) as process:
        wait_for(process, conditions[moment])
        process.kill()
        process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert cli.main(["run", "--resume", "--out", str(out)]) == 0
    assert same(finished[0], out)
    assert not list(out.rglob("*.partial"))


@pytest.mark.long
def test_a_full_disk_and_then_space(finished: Any, tmp_path: Path) -> None:
    """A limit on the size of files stands in for a disk: tables fit, tensors do not."""
    out = tmp_path / "run"
    limit = 100_000
    code, stdout, err = run(
        "run", *SMALL, "--out", out, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    )
    assert (code, stdout) == (2, "")
    last = err.splitlines()[-1]
    assert str(out) in last
    assert "cannot write" in last
    assert "--resume" in last
    assert "Traceback" not in err
    assert cli.main(["run", "--resume", "--out", str(out)]) == 0
    assert same(finished[0], out)


# Worker processes: the same run, and nobody left behind


def processes(session: int) -> dict[int, tuple[int, str]]:
    """Parent and command line of every living process of a session, by process."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, parent, _, own = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except (OSError, ValueError):
            continue  # gone while we looked
        if int(own) == session and state != "Z":
            found[int(folder.name)] = (int(parent), command)
    return found


def workers_of(session: int) -> list[int]:
    found = processes(session)
    return [pid for pid, (parent, _) in found.items() if "forkserver" in found.get(parent, (0, ""))[1]]


def assert_all_gone(session: int, seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while left := processes(session):
        assert time.monotonic() < end, left
        time.sleep(0.05)


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")


@pytest.fixture
def pool_run(tmp_path: Path) -> Any:
    """A run in two workers, in a session of its own, that has written its first checkpoint."""
    out = tmp_path / "run"
    words = ["run", *SMALL, "--engine", "pool", "--workers", "2", "--out", out]
    with start(*words, start_new_session=True) as process:
        wait_for(process, checkpoint_after(out, 1))
        assert len(workers_of(process.pid)) == 2
        yield process, out
        if process.poll() is None:
            process.kill()


@needs_proc
def test_a_run_in_workers_leaves_the_same_folder_and_nobody(finished: Any, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ["run", *SMALL, "--engine", "pool", "--out", out, "--json"]
    with start(*words, start_new_session=True) as process:
        stdout, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert_all_gone(process.pid)  # the fork server takes a moment to unload torch
    assert same(finished[0], out)
    assert {p.name for p in out.iterdir()} == {p.name for p in finished[0].iterdir()}
    summary = json.loads(stdout)
    assert (summary["engine"], summary["threads"]) == ("pool", 1)
    assert 1 <= summary["workers"] <= 2
    assert "round 1/3" in err


@needs_proc
@pytest.mark.parametrize("stop", ["ctrl-c", pytest.param("terminate", marks=LONG), pytest.param("hang-up", marks=LONG)])
def test_workers_stopped_by_the_user(finished: Any, pool_run: Any, stop: str) -> None:
    """Ctrl-C goes to every process of the terminal, and so does its end; a plain kill to the one that was started."""
    process, out = pool_run
    if stop != "terminate":
        os.killpg(process.pid, signal.SIGINT if stop == "ctrl-c" else signal.SIGHUP)
    else:
        process.terminate()
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert err.splitlines()[-1] == f"interrupted; continue with: asfedbridge run --resume --out {out} --engine pool"
    assert "Traceback" not in err
    assert_all_gone(process.pid)
    assert cli.main(["run", "--resume", "--out", str(out)]) == 0
    assert same(finished[0], out)


@needs_proc
def test_a_killed_parent_leaves_no_worker(finished: Any, pool_run: Any) -> None:
    process, out = pool_run
    process.kill()
    process.communicate(timeout=60)
    assert_all_gone(process.pid)
    assert cli.main(["run", "--resume", "--out", str(out), "--engine", "pool"]) == 0
    assert same(finished[0], out)


@needs_proc
def test_a_killed_worker_ends_the_run_in_one_line(finished: Any, pool_run: Any) -> None:
    process, out = pool_run
    os.kill(workers_of(process.pid)[0], signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    last = err.splitlines()[-1]
    assert last.startswith("asfedbridge: worker ")
    assert "died (signal 9) while " in last
    assert last.endswith("continue with --resume")
    assert "Traceback" not in err
    assert_all_gone(process.pid)
    assert cli.main(["run", "--resume", "--out", str(out)]) == 0
    assert same(finished[0], out)


@LONG
def test_a_full_disk_in_a_worker(finished: Any, tmp_path: Path) -> None:
    out = tmp_path / "run"
    limit = 100_000
    words = ["run", *SMALL, "--engine", "pool", "--out", out]
    code, _, err = run(*words, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
    assert code == 2, err
    assert f"--out {out}: cannot write" in err.splitlines()[-1]
    assert cli.main(["run", "--resume", "--out", str(out)]) == 0
    assert same(finished[0], out)


def test_words_may_stand_between_options(tmp_path: Path, capsys: Any) -> None:
    args = cli.parse(["run", "smoke", "--out", str(tmp_path), "rounds=1", "--json", "method=fedavg"])
    assert args.what == ["smoke", "rounds=1", "method=fedavg"]
    assert cli.parse(["run", "--out", str(tmp_path), "smoke"]).what == ["smoke"]
    for words in (["run", "smoke", "--colour", "x"], ["report", str(tmp_path), "--json", "--colour"]):
        assert cli.main(words) == 2
        assert "unrecognized arguments: --colour" in capsys.readouterr().err


def test_seeds_and_lists_are_runs_of_their_own(tmp_path: Path, capsys: Any) -> None:
    """Each below --out; the same command again reuses what is finished and reports means over seeds."""
    out = tmp_path / "sweep"
    words = ["run", *ALONE, "rounds=1", "epochs=1", "--seeds", "0,1", "--out", str(out)]
    assert cli.main(words) == 0
    stdout, stderr = capsys.readouterr()
    assert {p.name for p in out.iterdir() if p.is_dir()} == {"seed=0", "seed=1"}
    assert "2 runs in" in stderr
    assert "Mean ± sample standard deviation over n seeds" in stdout
    assert stdout.splitlines()[1].split()[:3] == ["method", "seed", "folder"]
    before = (out / "seed=0" / "summary.json").stat().st_mtime_ns
    assert cli.main([*words, "--json"]) == 0
    stdout, stderr = capsys.readouterr()
    assert [entry["seed"] for entry in json.loads(stdout)] == [0, 1]
    assert "2 of 2 runs are already finished" in stderr
    assert (out / "seed=0" / "summary.json").stat().st_mtime_ns == before
    assert cli.main(["run", "--resume", "--out", str(out)]) == 2
    assert "contains several runs; repeat the command that started them" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--seeds", "0,x"], "invalid seeds '0,x': expected comma-separated integers, e.g. 0,1,2"),
        (["--jobs", "2"], "--jobs 2: there is one run; list seeds or values"),
        (["--seeds", "0,1", "--jobs", "2", "--engine", "pool"], "--jobs 2: --engine pool executes one run at a time"),
        (["--seeds", "0,1", "seed=1"], "seed=1 with --seeds 0,1: give the seeds in one place"),
    ],
)
def test_bad_sweeps(words: list[str], expected: str, refused: Callable[..., str]) -> None:
    assert expected in refused("run", "smoke", *words)
