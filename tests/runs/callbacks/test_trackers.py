"""The real packages MLflow and Weights & Biases without a network: every round is logged once, resumed or not."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from asfedbridge.core.errors import BadInput
from asfedbridge.runs.callback import make_callback
from asfedbridge.runs.callbacks import MLflowLogger, WandbLogger
from asfedbridge.runs.record_files import read_rounds
from asfedbridge.runs.run import execute

Make = Callable[..., Any]


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_the_error_names_a_missing_package(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(BadInput, match=rf"pip install 'asfedbridge\[{name}\]'"):
        make_callback(name)


# MLflow: a file store, which is faster than a database


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return pytest.importorskip("mlflow")


def test_mlflow_has_every_round_once(mlflow: Any, make_spec: Make, tmp_path: Path, leaves: Any) -> None:
    out, spec, uri = tmp_path / "run", make_spec(rounds=3, checkpoint_every=2), (tmp_path / "mlruns").as_uri()
    client = mlflow.MlflowClient(uri)

    def status() -> Any:
        (experiment,) = client.search_experiments(filter_string="name = 'mine'")
        (found,) = client.search_runs([experiment.experiment_id])
        return found

    with pytest.raises(KeyboardInterrupt):
        execute(spec, out, tmp_path, [MLflowLogger("mine", uri), leaves(2)])  # the last checkpoint is of round 2
    assert status().info.status == "KILLED"
    summary = execute(spec, out, tmp_path, [MLflowLogger("mine", uri)], resume=True)
    run = status()
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "run"
    assert run.data.params["method.name"] == "fedavg"
    assert run.data.params["rounds"] == "3"
    rounds = read_rounds(out)
    history = client.get_metric_history(run.info.run_id, "client/1/received.accuracy")
    assert {(m.step, m.value) for m in history} == {
        (r["round"], r["received.accuracy"]) for r in rounds if r["client"] == 1
    }
    assert len(history) == 4
    means = client.get_metric_history(run.info.run_id, "uplink_bytes/all")
    assert [m.step for m in means] == [0, 1, 2, 3]
    assert run.data.metrics["summary/accuracy/all"] == summary["accuracy"]["all"]


def test_a_callback_added_later_sends_the_earlier_rounds(
    mlflow: Any, make_spec: Make, tmp_path: Path, leaves: Any
) -> None:
    out, spec, uri = tmp_path / "run", make_spec(rounds=2), (tmp_path / "mlruns").as_uri()
    with pytest.raises(KeyboardInterrupt):
        execute(spec, out, tmp_path, [leaves(0)])
    execute(spec, out, tmp_path, [MLflowLogger(uri=uri)], resume=True)
    known = json.loads((out / "mlflow.json").read_text())
    history = mlflow.MlflowClient(uri).get_metric_history(known["run"], "downlink_bytes/ann")
    assert [m.step for m in history] == [0, 1, 2]


def test_the_error_names_an_unusable_store(mlflow: Any, make_spec: Make, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match="callback mlflow: cannot use uri=nowhere://x"):
        execute(make_spec(), tmp_path / "run", tmp_path, [MLflowLogger(uri="nowhere://x")])
    assert read_rounds(tmp_path / "run") == []


# Weights & Biases: offline, its files read back


def offline_records(content: bytes) -> Iterator[bytes]:
    """LevelDB's log: blocks of 32 KiB; parts with checksum, length and type (1: whole; 2, 3, 4: a part)."""
    place, parts, header, block = 7, b"", 7, 1 << 15  # the file's own header has 7 bytes, too
    while place + header <= len(content):
        if block - place % block < header:
            place += block - place % block
            continue
        length, kind = int.from_bytes(content[place + 4 : place + 6], "little"), content[place + 6]
        parts += content[place + header : place + header + length]
        place += header + length
        if kind in (1, 4):
            yield parts
            parts = b""


def read_offline(folder: Path) -> list[tuple[int, dict[str, Any]]]:
    """Steps and numbers of all parts of a run, in the order in which they were written."""
    from wandb.proto import wandb_internal_pb2

    found = []
    for file in sorted(folder.glob("wandb/offline-run-*/*.wandb"), key=lambda file: file.stat().st_mtime):
        for content in offline_records(file.read_bytes()):
            record = wandb_internal_pb2.Record()  # type: ignore[attr-defined]
            record.ParseFromString(content)
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                row = {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in items}
                found.append((int(row.get("_step", record.history.step.num)), row))
    return found


def test_wandb_has_every_round_once(
    make_spec: Make, tmp_path: Path, leaves: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    out, spec = tmp_path / "run", make_spec(rounds=3, checkpoint_every=2)
    with pytest.raises(KeyboardInterrupt):
        execute(spec, out, tmp_path, [WandbLogger(), leaves(2)])
    execute(spec, out, tmp_path, [WandbLogger()], resume=True)
    deadline = time.monotonic() + 60  # the wandb service may still write after `finish` has returned
    while len(rows := read_offline(out)) < 4 and time.monotonic() < deadline:
        time.sleep(0.5)
    assert [step for step, _ in rows] == [0, 1, 2, 3]
    for index, row in rows:
        for record in (r for r in read_rounds(out) if r["round"] == index):
            assert row[f"client/{record['client']}/received.accuracy"] == record["received.accuracy"]
    assert len({file.name for file in out.glob("wandb/offline-run-*/*.wandb")}) == 1  # two parts of one run


def test_an_unknown_mode_is_bad_input() -> None:
    pytest.importorskip("wandb")
    with pytest.raises(BadInput, match="mode=sometimes must be one of online, offline, disabled"):
        make_callback("wandb:mode=sometimes")
