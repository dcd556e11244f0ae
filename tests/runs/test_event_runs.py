"""Runs on event data, from the specification to the summary."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asfedbridge.cli import main
from asfedbridge.core.errors import BadInput
from asfedbridge.core.method import METHODS
from asfedbridge.paper.experiments import find_experiment
from asfedbridge.paper.grid import Bench, select
from asfedbridge.runs.recipes import quickstart
from asfedbridge.runs.setting import Setting, prepare
from asfedbridge.runs.spec import apply_overrides

T = 3
FLEET = "1*resnet18@0.125:ann,1*resnet18@0.125:snn"


@pytest.fixture
def events(tmp_path: Path) -> Path:
    """Recordings of three classes whose events come from different corners, at different times."""
    rng = np.random.default_rng(0)
    labels = np.arange(36) % 3
    counts = rng.integers(40, 80, 36)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    owner = np.repeat(labels, counts)
    x, y = rng.integers(0, 5, (2, offsets[-1])) + np.stack([owner % 2 * 7, owner // 2 * 7])
    path = tmp_path / "events.npz"
    np.savez(
        path,
        x=x,
        y=y,
        p=rng.integers(0, 2, offsets[-1]),
        t=np.concatenate([np.sort(rng.integers(0, 1000, n)) for n in counts]),
        offsets=offsets,
        labels=labels,
        split=np.array(["train"] * 24 + ["test"] * 12),
        sensor_size=np.array([12, 12]),
    )
    return path


def setting(path: Path, **changes: Any) -> Setting:
    spec = {"data": f"npz:{path}", "T": T, "fleet": FLEET, "partition": "iid", "feature_dim": 16, "batch_size": 8}
    return prepare(apply_overrides(quickstart(changes.get("method", "as-fedbridge")), spec | changes), path.parent)


def test_frames_are_the_runs_steps(events: Path) -> None:
    made = setting(events)
    assert (made.task.frames, made.task.channels, made.task.image_size) == (T, 2 * T, 12)
    assert made.task.stems_differ
    assert [c.T for c in made.clients] == [1, T]
    assert [s.augment for s in made.shards] == ["crop", "crop"]
    for fleet in ("2*resnet18@0.125:ann", "2*resnet18@0.125:snn"):
        assert not setting(events, fleet=fleet).task.stems_differ
    assert not setting(events, T=1).task.stems_differ


def test_subsets_and_holdouts_work(events: Path) -> None:
    made = setting(events, train_per_class=4, test_per_class=2, holdout=0.5, image_size=8)
    assert [s.train_size + s.test_size for s in made.shards] == [6, 6]
    assert made.task.image_size == 8


def test_frames_by_changes_the_data_set(events: Path) -> None:
    assert setting(events).fingerprint != setting(events, frames_by="time").fingerprint


def test_an_snn_with_other_steps_is_refused(events: Path) -> None:
    with pytest.raises(BadInput, match=r"client 1 .*has T=2, but each example has 3 frames"):
        setting(events, fleet="1*resnet18@0.125:ann,1*resnet18@0.125:snn:T=2")


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_accepts_event_data_or_explains_why_not(events: Path, method: str) -> None:
    if method == "fedfree":
        with pytest.raises(BadInput, match=r"stem of shape .*; use one model and width, or set method.mismatch=prefix"):
            setting(events, method=method)
    else:
        made = setting(events, method=method)
        assert bool(made.notes) == (method in ("fedavg", "fedprox"))


@pytest.mark.parametrize("method", ["as-fedbridge", "fedavg", "sfedhifi"])
def test_a_round_of_both_kinds(events: Path, method: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = events.parent / "run"
    words = [f"data=npz:{events}", f"T={T}", f"fleet={FLEET}", "rounds=1", "partition=iid", f"method={method}"]
    assert main(["run", *words, "feature_dim=16", "--out", str(out), "--json"]) == 0
    printed = capsys.readouterr()
    summary = json.loads(printed.out)
    assert summary["accuracy"].keys() == {"ann", "snn", "all"}
    assert "24 training examples of 3 frames, 12x12" in printed.err
    assert ("notes" in summary) == (method == "fedavg")
    for note in summary.get("notes", ()):
        assert "6 and 2 channels" in note
        assert note in printed.err
    assert 'frames_by = "count"' in (out / "spec.toml").read_text()
    assert "skip_damaged = false" in (out / "spec.toml").read_text()


def test_fedfree_of_the_main_table_can_be_set_up_on_frames(events: Path) -> None:
    bench = Bench("cpu", {"cifar10-dvs": f"npz:{events}"})
    (cell,) = select(find_experiment("main").cells(bench), ["fedfree"], ["cifar10-dvs"])
    small = {"fleet": FLEET, "partition": "iid", "train_per_class": 0, "test_per_class": 0, "image_size": 0}
    spec = apply_overrides(cell.spec, small)
    assert prepare(spec, events.parent).task.stems_differ
    with pytest.raises(BadInput, match=r"set method\.mismatch=prefix"):
        prepare(apply_overrides(spec, {"method.mismatch": "refuse"}), events.parent)
