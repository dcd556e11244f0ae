"""Runs with ``diagnose_every``: the same file on every engine, resumed or not, and no effect on training."""

import json
from pathlib import Path
from typing import Any

import pytest

from asfedbridge import cli
from asfedbridge.core.errors import BadInput
from asfedbridge.core.task import Round
from asfedbridge.deploy.app_folder import write_deployment
from asfedbridge.runs.analyze import analyse
from asfedbridge.runs.callback import Callback, Run
from asfedbridge.runs.recipes import quickstart
from asfedbridge.runs.record_files import DIAGNOSTICS, read_course, read_diagnostics, read_rounds
from asfedbridge.runs.run import execute
from asfedbridge.runs.spec import Spec, apply_overrides
from asfedbridge.runs.summary import Summary

TINY = {
    "fleet": "2*resnet18@0.0625:ann,2*resnet18@0.0625:snn",
    "T": 2,
    "train_per_class": 2,
    "test_per_class": 2,
    "batch_size": 8,
    "feature_dim": 16,
    "partition": "iid",
    "rounds": 3,
    "neuron.threshold": 0.3,  # SNN clients that fire from the start
    "diagnose_every": 2,
}


class Leaves(Callback):
    """Interrupts the run after the round of this index."""

    def __init__(self, index: int) -> None:
        self.index = index

    def on_round_end(self, run: Run, rnd: Round, records: Any) -> None:
        if rnd.index == self.index:
            raise KeyboardInterrupt


def make_spec(method: str = "fedavg", **changes: Any) -> Spec:
    return apply_overrides(quickstart(method), TINY | changes)


def play(spec: Spec, out: Path, **options: Any) -> Summary:
    return execute(spec, out, out.parent, **options)


def untimed(folder: Path) -> list[dict[str, Any]]:
    return [{key: v for key, v in r.items() if key != "seconds"} for r in read_rounds(folder)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    play(make_spec(snapshot_every=1), folder)
    return folder


def test_every_nth_round_and_the_last_one_are_diagnosed(run: Path) -> None:
    lines = read_diagnostics(run)
    assert [line["round"] for line in lines] == [1, 2]
    assert len({line["mmd"]["bandwidth"] for line in lines}) == 1
    for line in lines:
        assert line["clients"] == [0, 1, 2, 3]
        for measure in ("cka", "mmd", "gradients"):
            blocks = line[measure]["blocks"]
            assert {name: block["pairs"] for name, block in blocks.items()} == {"ann": 1, "snn": 1, "cross": 4}
    assert lines[0]["gradients"] != lines[1]["gradients"]


def test_diagnostics_equal_an_analysis_of_snapshots(run: Path) -> None:
    """Live and rebuilt clients give the same bits, except for MMD, whose bandwidth is chosen differently."""
    (found,) = analyse([run], run.parent, lambda line: None).runs
    course = read_course(run)
    snapshots = {entry["round"]: entry for entry in found["by_round"]}
    assert [entry["round"] for entry in course] == [2, 3]
    for entry in course:
        then = snapshots[entry["round"]]
        assert entry["accuracy"] == then["accuracy"]
        assert entry["accuracy"]["received"].keys() == {"ann", "snn", "all"}
        for measure in ("cka", "gradients"):
            assert entry[measure]["blocks"] == then[measure]["blocks"]


def test_the_error_names_an_invalid_line(run: Path, tmp_path: Path) -> None:
    first, second = (run / DIAGNOSTICS).read_text().splitlines()
    (tmp_path / DIAGNOSTICS).write_text(first + "\n" + json.dumps({**json.loads(second), "cka": {"blocks": 5}}) + "\n")
    with pytest.raises(BadInput, match=r"diagnostics\.jsonl: .*line 2: cka\.blocks=5 \(must be an object\)"):
        read_course(tmp_path)


def test_diagnostics_do_not_affect_training(run: Path, tmp_path: Path) -> None:
    """All numbers equal those of a run without diagnostics to the last bit; only the digest differs."""
    assert make_spec(diagnose_every=0).digest() != make_spec().digest()
    play(make_spec(diagnose_every=0), tmp_path / "fedavg")
    assert untimed(tmp_path / "fedavg") == untimed(run)
    assert not (tmp_path / "fedavg" / DIAGNOSTICS).exists()
    for every in (0, 1):
        play(make_spec("as-fedbridge", rounds=2, diagnose_every=every), tmp_path / f"bridge-{every}")
    assert untimed(tmp_path / "bridge-0") == untimed(tmp_path / "bridge-1")


def test_the_pool_writes_the_same_file(run: Path, tmp_path: Path) -> None:
    play(make_spec(), tmp_path / "pool", engine="pool", workers=2)
    assert (tmp_path / "pool" / DIAGNOSTICS).read_bytes() == (run / DIAGNOSTICS).read_bytes()


@pytest.mark.parametrize("index", [0, 1, 2])
def test_an_interrupted_run_ends_with_the_same_file(run: Path, tmp_path: Path, index: int) -> None:
    """Interrupted before the first diagnosed round, after it, and after the last; with checkpoints that lag behind."""
    spec = make_spec(checkpoint_every=2)
    with pytest.raises(KeyboardInterrupt):
        play(spec, tmp_path / "run", callbacks=[Leaves(index)])
    with (tmp_path / "run" / DIAGNOSTICS).open("ab") as file:
        file.write(b'{"round": 1, "cl')  # as kill -9 leaves it
    play(spec, tmp_path / "run", resume=True)
    assert (tmp_path / "run" / DIAGNOSTICS).read_bytes() == (run / DIAGNOSTICS).read_bytes()


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        play(make_spec(rounds=2, diagnose_every=1), tmp_path / "run", callbacks=[Leaves(0)])
    (tmp_path / "run" / DIAGNOSTICS).unlink()
    with pytest.raises(BadInput, match=r"diagnostics\.jsonl: lacks diagnosed rounds"):
        play(make_spec(rounds=2, diagnose_every=1), tmp_path / "run", resume=True)


def test_only_participants_are_compared(tmp_path: Path) -> None:
    play(make_spec(participation=0.5, rounds=2, diagnose_every=1), tmp_path / "run")
    for line in read_diagnostics(tmp_path / "run"):
        assert line["clients"] == [r["client"] for r in read_rounds(tmp_path / "run") if r["round"] == line["round"]]


def test_diagnostics_are_refused_for_clients_behind_a_network(tmp_path: Path, capsys: Any) -> None:
    reason = "diagnose_every=2: the features and gradients of clients do not leave their nodes"
    with pytest.raises(BadInput, match=reason):
        write_deployment(tmp_path / "app", make_spec())
    words = ["run", "smoke", "diagnose_every=2", "--engine", "flower", "--out", str(tmp_path / "run")]
    pytest.importorskip("flwr")
    assert cli.main(words) == 2
    error = capsys.readouterr().err
    assert reason in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_lines_are_plain_json(run: Path) -> None:
    for line in (run / DIAGNOSTICS).read_text().splitlines():
        assert json.dumps(json.loads(line), allow_nan=False) == line
