"""The benchmarks: their harness, every script, and the command that starts them. No other SNN library is needed."""

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from asfedbridge import cli
from asfedbridge.models.zoo import outline_backbone
from asfedbridge.report import bench

ROOT = Path(__file__).parents[1]
SCRIPTS = ("clients", "latency", "limit", "loader", "models", "neuron", "round", "step")
QUICKLY = ("--quick", "--json", "--repeats=1", "--threads=1")
CALM = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}  # read when torch is loaded
KEYS = {"benchmark", "claim", "quick", "repeats", "threads", "clock", "machine", "versions", "equal", "cases"}

TOY = """
import os, subprocess, sys, tempfile, time
from pathlib import Path
import numpy as np
from sidebyside import Benchmark, Case, Contender, Unavailable, Work, main

def make(name, case):
    def step():
        Path("log").open("a").write(name + "\\n")
        if name == "slow":
            helper = subprocess.Popen(["sleep", "600"])
            Path("scratch").write_text(tempfile.gettempdir())
            Path("pids").write_text(f"{os.getpid()} {helper.pid}")
            time.sleep(600)
        if name == "broken":
            raise ValueError("on purpose")
    if name == "hopeless":
        raise Unavailable("not on this machine")
    value = 1.0 if name == "wrong" else 0.5 if name == "close" else 0.0
    print("noise on stdout")
    return Work(step, lambda: {"value": np.array([value])}, facts=lambda: {"threads": os.environ["OMP_NUM_THREADS"]})

BENCHMARK = Benchmark(
    script=os.path.abspath(__file__),
    claim="toys",
    baseline="a",
    cases=lambda args: [{"size": 1}],
    contenders=lambda case: [
        Contender(
            name,
            lambda case, name=name: make(name, case),
            needs=["no_such_library"] if name == "missing" else [],
            differs="by nature" if name == "close" else "",
            threads=3 if name == "b" else None,
        )
        for name in os.environ["TOYS"].split()
    ],
)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
"""


@pytest.fixture(scope="module")
def sidebyside() -> ModuleType:
    return import_script("sidebyside")


@pytest.fixture
def toy(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Starts a script of toy contenders in its own folder."""
    (tmp_path / "toy.py").write_text(TOY)

    def start(toys: str, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "toy.py", "--threads", "1", *words],
            cwd=tmp_path,
            env=os.environ | {"TOYS": toys, "PYTHONPATH": search_path()},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
        )

    return start


def search_path() -> str:
    return os.pathsep.join([str(ROOT / "benchmarks"), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])


def finish(process: subprocess.Popen[str], seconds: float = 300) -> tuple[int, dict[str, Any], str]:
    out, err = process.communicate(timeout=seconds)
    lines = out.splitlines()
    return process.returncode, json.loads(lines[-1]) if lines else {}, err


def rows(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in result["cases"][0]["contenders"]}


def test_statistics(sidebyside: ModuleType) -> None:
    assert sidebyside.spread([3.0, 1.0, 2.0, 10.0]) == {"median": 2.5, "min": 1.0, "max": 10.0}
    # The machine is twice as slow in the second repeat, which affects a ratio of medians, but not the paired ratios.
    assert sidebyside.paired_ratios([2.0, 4.0, 9.0], [1.0, 2.0, 3.0]) == [2.0, 2.0, 3.0]


def test_turns_alternate_and_every_contender_begins_once(sidebyside: ModuleType) -> None:
    order = list(sidebyside.turns(["a", "b", "c"], 6))
    assert order[:2] == [["a", "b", "c"], ["c", "b", "a"]]
    assert all(sorted(turn) == ["a", "b", "c"] for turn in order)
    assert {turn[0] for turn in order} == {"a", "b", "c"}


def test_differences(sidebyside: ModuleType) -> None:
    mine = {"x": np.array([1.0, 2.0]), "text": np.array("ab"), "only": np.zeros(1), "shape": np.zeros(2)}
    theirs = {"x": np.array([1.0, 2.5]), "text": np.array("ab"), "shape": np.zeros(3)}
    found = sidebyside.largest_difference(mine, theirs)
    assert found == {"x": 0.5, "text": 0.0, "only": float("inf"), "shape": float("inf")}
    assert sidebyside.largest_difference({"x": np.array([np.nan])}, {"x": np.array([1.0])}) == {"x": float("inf")}
    assert sidebyside.largest_difference({"t": np.array("a")}, {"t": np.array("b")}) == {"t": float("inf")}


@pytest.mark.parametrize("how", [(), ("--fork",)], ids=["apart", "forked"])
def test_a_race(toy: Callable[..., Any], tmp_path: Path, how: tuple[str, ...]) -> None:
    code, result, err = finish(toy("a b missing hopeless close", "--json", "--repeats", "3", *how))
    assert (code, result["equal"], result["benchmark"], result["repeats"]) == (0, True, "toy", 3)
    found = rows(result)
    assert {name: row["status"] for name, row in found.items()} == {
        "a": "ok",
        "b": "ok",
        "missing": "not installed",
        "hopeless": "unavailable",
        "close": "ok",
    }
    assert "no_such_library" in found["missing"]["reason"]
    assert found["a"]["n"] == len(found["a"]["seconds"]) == 3
    assert found["a"]["ratio"] == {"median": 1.0, "min": 1.0, "max": 1.0}
    assert found["b"]["difference"] == {"value": 0.0}
    assert found["close"]["difference"] == {"value": 0.5}  # shown, not enforced
    assert (found["a"]["facts"]["threads"], found["b"]["facts"]["threads"]) == ("1", "3")
    log = (tmp_path / "log").read_text().split()
    assert sorted(log[:3]) == ["a", "b", "close"]  # warm-up
    assert log[3:] == ["a", "b", "close", "close", "b", "a", "b", "close", "a"]
    assert "not installed" in err
    assert "by nature" in err
    assert "noise" not in err


def test_a_mismatch_and_a_failure_are_errors(toy: Callable[..., Any]) -> None:
    code, result, err = finish(toy("a wrong", "--json", "--repeats", "1"))
    assert (code, result["equal"]) == (1, False)
    assert "not equal: wrong (size=1) differs from a" in err
    code, result, err = finish(toy("a broken", "--json", "--repeats", "1"))
    assert (code, rows(result)["broken"]["reason"]) == (1, "ValueError: on purpose")


def test_processor_time_excludes_waiting(sidebyside: ModuleType) -> None:
    child = import_script("child")
    work = sidebyside.Work(lambda: time.sleep(0.2), inner=2, scale=100.0)
    wall, cpu = (child.execute(work, "time", [], clock)["seconds"] for clock in (time.perf_counter, time.process_time))
    assert wall >= 20  # 0.2 s per step, times ``scale``
    assert cpu < wall / 2


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("--model=vgg", "unknown model 'vgg'"),
        ("--kind=ann,bnn", "unknown kind 'bnn'"),
        ("--width=x", "invalid"),
        ("--batch=0", "expected"),
    ],
)
def test_limit_is_restricted_to_what_exists(
    sidebyside: ModuleType, word: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    limit = import_script("limit")
    with pytest.raises(SystemExit) as stopped:
        sidebyside.main(limit.BENCHMARK, [word])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_layers_alone_are_those_of_the_step(sidebyside: ModuleType) -> None:
    """FLOPs of all passes equal torch's count of a dense step, stem without input gradient included."""
    limit = import_script("limit")
    for kind, model in (("ann", "resnet18"), ("snn", "resnet18"), ("snn", "vgg9")):
        case = {"model": model, "kind": kind, "width": 0.125, "batch": 2, "size": 8}
        task, info = limit.describe(case)
        network = outline_backbone(task, info)
        with FlopCounterMode(display=False) as counter:
            network(torch.empty(2, 3, 8, 8, device="meta")).logits.sum().backward()
        assert sum(layer.flops for layer in limit.layers_of(case)) == counter.get_total_flops()


def import_script(name: str) -> ModuleType:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.pop(0)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_children_end_with_the_parent(toy: Callable[..., Any], tmp_path: Path, number: signal.Signals) -> None:
    process = toy("slow")
    wait_for(lambda: (tmp_path / "pids").exists() and len((tmp_path / "pids").read_text().split()) == 2)
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert all(map(is_alive, pids))
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == {signal.SIGKILL: -9, signal.SIGTERM: 143, signal.SIGINT: 130}[number]
    wait_for(lambda: not any(map(is_alive, pids)))
    assert not Path((tmp_path / "scratch").read_text()).exists()


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.long
@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_runs(name: str) -> None:
    """One as users start it; the contenders of the others are forks, which saves the import of torch in each."""
    how = [] if name == "loader" else ["--fork"]
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), *QUICKLY, *how],
        env=os.environ | CALM | {"PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    code, result, err = finish(process)
    assert code == 0, err
    assert result.keys() == KEYS
    assert (result["benchmark"], result["quick"], result["equal"]) == (name, True, True)
    for case in result["cases"]:
        found = {row["name"]: row for row in case["contenders"]}
        assert found[case["baseline"]]["status"] == "ok"
        for row in found.values():
            assert row["status"] in ("ok", "not installed", "unavailable", "skipped")
            if row["status"] == "ok":
                assert {"median", "min", "max", "ratio", "seconds", "facts"} <= row.keys()
                assert row["n"] == 1
    assert len(err.splitlines()) < 40  # a table, not what libraries print


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_rounds_over_a_network() -> None:
    pytest.importorskip("flwr")
    words = ("--network", "2", "--only", "pool of 2,flower forked,flower simulated")
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "benchmarks" / "latency.py"), *words, *QUICKLY],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    code, result, err = finish(process, 1500)
    assert code == 0, err
    assert result["equal"]
    found = rows(result)
    assert [row["status"] for row in found.values()] == ["ok"] * 4, found
    assert all(row["facts"]["seconds a round"] > 0 for row in found.values())
    assert found["flower forked"]["facts"]["server's RSS in bytes"] > 2**26


@pytest.mark.long
def test_the_table_of_attacks() -> None:
    """Tiny runs: every cell is present, with its refused uploads and failed clients."""
    words = ("--methods=fedavg,fedproto", "--attacks=none,label,1e30,nan", "--defences=mean,median")
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "benchmarks" / "attacks.py"), "--quick", "--json", *words],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    code, result, err = finish(process)
    assert code == 0, err
    cells = {(c["method"], c["attack"], c["defence"]): c for c in result["cells"]}
    assert len(cells) == 2 * (3 * 2 + 1)  # NaN is played with the mean only
    assert all(0 <= cell["accuracy"] <= 100 for cell in cells.values())
    assert cells["fedavg", "1e30", "mean"]["failed"] >= 4  # every honest client, from the second round on
    assert cells["fedavg", "1e30", "median"]["failed"] == 0
    assert cells["fedavg", "nan", "mean"]["refused"] == 2  # in the second round they are in quarantine
    assert "| `fedproto` | 1e30 |" in err


def test_attacks_by_hand(sidebyside: ModuleType) -> None:
    attacks = import_script("attacks")
    draws = torch.Generator().manual_seed(0)
    up, start = {"w": torch.tensor([2.0, 1.0])}, {"w": torch.tensor([1.0, 1.0])}
    assert attacks.flip(up, start, draws)["w"].tolist() == [1 - 4 * (2 - 1), 1.0]
    assert attacks.ATTACKS["1e30"](up, start, draws)["w"].tolist() == [torch.tensor(1e30).item()] * 2
    wide = {"w": torch.full((10000,), 3.0)}, {"w": torch.full((10000,), 1.0)}
    noise = attacks.drown(*wide, draws)["w"] - 3
    assert noise.std().item() == pytest.approx(10 * 2.0, rel=0.05)
    assert noise.mean().item() == pytest.approx(0.0, abs=1.0)


def test_a_table_of_attacks_goes_on_after_finished_cells(sidebyside: ModuleType, tmp_path: Path) -> None:
    attacks = import_script("attacks")
    file = tmp_path / "cells.jsonl"
    cells = [{"spec": "a", "attack": "none", "accuracy": 1.0}, {"spec": "a", "attack": "sign", "accuracy": 2.0}]
    for cell in cells:
        attacks.Results(file).add(cell)
    with file.open("a") as open_file:
        open_file.write('{"spec": "b", "att')  # killed
    assert list(attacks.Results(file).cells.values()) == cells
    attacks.Results(file).add(cells[0] | {"spec": "b"})
    assert list(attacks.Results(file).cells) == [("a", "none"), ("a", "sign"), ("b", "none")]


def test_reversed_labels_reach_all_batches(sidebyside: ModuleType) -> None:
    attacks = import_script("attacks")
    setting = attacks.prepare(attacks.make_spec("fedavg", "mean", 0, {}, True), Path("data"))
    before = [shard.y_train.clone() for shard in setting.shards]
    attacks.reverse_labels(setting)
    for i, shard in enumerate(setting.shards):
        expected = 9 - before[i] if i in attacks.BYZANTINE else before[i]
        plain = torch.cat([y for _, y in shard.train_batches_plain(32)])
        shuffled = torch.cat([y for _, y in shard.batches(32, torch.Generator())])
        assert torch.equal(plain, expected)
        assert torch.equal(shuffled.bincount(minlength=10), expected.bincount(minlength=10))


def test_every_script_is_tested() -> None:
    assert tuple(bench.find_scripts()) == SCRIPTS


def test_an_unknown_benchmark_is_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "neurons"]) == 2
    assert capsys.readouterr().err == (
        f"asfedbridge: bench neurons: unknown benchmark; did you mean 'neuron'? known: {', '.join(SCRIPTS)}\n"
    )


@pytest.mark.parametrize("value", ["0", "-1", "x", "1.5"])
def test_invalid_repeats_are_refused(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "neuron", f"--repeats={value}"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "--repeats" in err


def test_without_a_source_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "FOLDER", tmp_path / "benchmarks")
    assert cli.main(["bench"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "source repository" in err


def test_the_command_collects_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text(TOY)
    (tmp_path / "part.py").write_text("")  # not a script
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench, "FOLDER", tmp_path)
    monkeypatch.setenv("PYTHONPATH", search_path())
    monkeypatch.setenv("TOYS", "a")
    assert cli.main(["bench", "--json", "--repeats", "1", "--threads", "1"]) == 0
    results = json.loads(capsys.readouterr().out)
    assert {name: result["benchmark"] for name, result in results.items()} == {"one": "one", "two": "two"}
    monkeypatch.setenv("TOYS", "a wrong")
    assert cli.main(["bench", "two", "--json", "--repeats", "1", "--threads", "1"]) == 1
    assert json.loads(capsys.readouterr().out)["equal"] is False


def test_a_script_ends_with_the_command(tmp_path: Path) -> None:
    (tmp_path / "toy.py").write_text(TOY)
    start = f"from pathlib import Path; from asfedbridge.report import bench; bench.FOLDER = Path({str(tmp_path)!r}); "
    process = subprocess.Popen(
        [sys.executable, "-c", start + "from asfedbridge import cli; cli.main(['bench', 'toy'])"],
        cwd=tmp_path,
        env=os.environ | {"TOYS": "slow", "PYTHONPATH": search_path()},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_for(lambda: (tmp_path / "pids").exists() and len((tmp_path / "pids").read_text().split()) == 2)
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    process.kill()
    process.wait()
    wait_for(lambda: not any(map(is_alive, pids)))
