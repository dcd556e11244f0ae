"""The run folder: one run and one process at a time, no lost records, and other files are left alone."""

import json
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from asfedbridge.core.errors import BadInput
from asfedbridge.core.task import Round
from asfedbridge.engines.failures import Event
from asfedbridge.runs.folder import RunFolder, read_spec, read_summary
from asfedbridge.runs.recipes import quickstart
from asfedbridge.runs.record_files import read_events, read_rounds
from asfedbridge.runs.records import event_records
from asfedbridge.runs.spec import apply_overrides

SPEC = apply_overrides(quickstart(), {"rounds": 3})


def refused(path: Path, spec: Any = SPEC, resume: bool = False) -> str:
    with pytest.raises(BadInput) as caught:
        RunFolder(path, spec, resume)
    assert len(str(caught.value).splitlines()) == 1
    assert str(path) in str(caught.value)
    return str(caught.value)


def entry(index: int, client: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "round": index,
        "client": client,
        "kind": "ann",
        "seconds": 1.0,
        "uplink_bytes": 4,
        "loss": 0.5 + index,
    } | more


def test_a_new_folder_is_complete_from_the_start(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "deep" / "run", SPEC, resume=False)
    assert read_spec(folder.path) == SPEC
    env = json.loads((folder.path / "env.json").read_text())
    assert env["spec"] == SPEC.digest()
    assert {"asfedbridge", "python", "torch", "numpy", "platform", "cores", "threads"} <= set(env)
    assert read_summary(folder.path) is None


def test_a_missing_field_has_its_default(tmp_path: Path) -> None:
    """Not the requested value, which is refused like any other difference."""
    RunFolder(tmp_path, SPEC, resume=False).hand_over()
    file = tmp_path / "spec.toml"
    lines = [line for line in file.read_text().splitlines() if line.split(" =")[0] not in ("compress", "gate", "clip")]
    file.write_text("\n".join(lines))
    assert read_spec(tmp_path) == SPEC
    for key, value in (("compress", "int8"), ("method.gate", "right"), ("optimiser.clip", 1.0)):
        name = key.rpartition(".")[2]
        assert f"{name} = " in refused(tmp_path, apply_overrides(SPEC, {key: value}), resume=True)
    RunFolder(tmp_path, SPEC, resume=True)


def test_an_empty_folder_is_accepted(tmp_path: Path) -> None:
    RunFolder(tmp_path, SPEC, resume=False)
    assert (tmp_path / "spec.toml").is_file()


def test_resume_without_a_run_begins_one(tmp_path: Path) -> None:
    RunFolder(tmp_path / "new", SPEC, resume=True)
    assert (tmp_path / "new" / "spec.toml").is_file()


@pytest.mark.parametrize("resume", [False, True])
def test_other_files_are_not_touched(tmp_path: Path, resume: bool) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    assert "contains other files" in refused(tmp_path, resume=resume)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_another_run_is_not_overwritten(tmp_path: Path) -> None:
    RunFolder(tmp_path, SPEC, resume=False)
    assert "contains another run; add resume=True" in refused(tmp_path)


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ({"seed": 7}, "seed = 7"),
        ({"method.bridge_lr": 0.25}, "bridge_lr = 0.25"),
        ({"method": "fedavg"}, 'name = "fedavg"'),
        ({"neuron.decay": 0.25}, "decay = 0.25"),
        ({"rounds": 4, "alpha": 9.0, "T": 9, "epochs": 9}, "..."),
    ],
)
def test_resuming_another_specification_says_what_differs(tmp_path: Path, overrides: Any, named: str) -> None:
    RunFolder(tmp_path, SPEC, resume=False)
    assert named in refused(tmp_path, apply_overrides(SPEC, overrides), resume=True)
    assert read_spec(tmp_path) == SPEC


def test_checkpoint_every_may_change(tmp_path: Path) -> None:
    RunFolder(tmp_path, SPEC, resume=False)
    RunFolder(tmp_path, replace(SPEC, checkpoint_every=5), resume=True)


def test_the_error_names_a_broken_specification(tmp_path: Path) -> None:
    RunFolder(tmp_path, SPEC, resume=False)
    (tmp_path / "spec.toml").write_text("rounds = ")
    assert "spec.toml: is not valid TOML" in refused(tmp_path, resume=True)


def test_one_process_at_a_time(tmp_path: Path) -> None:
    script = (
        "import fcntl, sys\n"
        "lock = open(sys.argv[1], 'a')\n"
        "fcntl.flock(lock, fcntl.LOCK_EX)\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    RunFolder(tmp_path, SPEC, resume=False)
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / ".lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        assert "another process is using this folder" in refused(tmp_path, resume=True)
        other.communicate()
    RunFolder(tmp_path, SPEC, resume=True)


def test_a_run_locks_its_folder(tmp_path: Path) -> None:
    running = RunFolder(tmp_path, SPEC, resume=False)
    assert "another process is using this folder" in refused(running.path, resume=True)
    del running
    RunFolder(tmp_path, SPEC, resume=True)


def test_a_patient_run_waits_for_the_lock(tmp_path: Path) -> None:
    """As the server of a resumed run does, while that of the stopped run ends."""
    running = RunFolder(tmp_path / "run", SPEC, resume=False)
    threading.Timer(0.5, running.hand_over).start()
    RunFolder(running.path, SPEC, resume=True, patience=60).hand_over()


def test_the_lock_of_a_killed_process_is_released(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    RunFolder(tmp_path, SPEC, resume=False)


def test_rounds_are_added_and_read(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, SPEC, resume=False)
    assert folder.begin(0) == []
    folder.add_records([entry(0), entry(0, 1)])
    folder.add_records([entry(1)])
    assert read_rounds(tmp_path) == [entry(0), entry(0, 1), entry(1)]


@pytest.mark.parametrize("cut", [1, 5, 30])
def test_a_truncated_last_line_is_ignored(tmp_path: Path, cut: int) -> None:
    folder = RunFolder(tmp_path, SPEC, resume=False)
    folder.begin(0)
    folder.add_records([entry(0), entry(0, 1)])
    folder.add_records([entry(1), entry(1, 1)])
    file = tmp_path / "rounds.jsonl"
    file.write_bytes(file.read_bytes()[: -cut - 1])
    assert read_rounds(tmp_path) == [entry(0), entry(0, 1), entry(1)]
    assert folder.begin(1) == [entry(0), entry(0, 1)]
    folder.add_records([entry(1), entry(1, 1)])
    assert read_rounds(tmp_path) == [entry(0), entry(0, 1), entry(1), entry(1, 1)]


def test_records_of_rounds_to_be_repeated_are_dropped(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, SPEC, resume=False)
    folder.begin(0)
    for index in range(3):
        folder.add_records([entry(index), entry(index, 1, kind="snn", loss=9.5)])
    assert [r["round"] for r in folder.begin(1)] == [0, 0]
    folder.add_records([entry(1, loss=77.0)])
    assert [(r["round"], r["loss"]) for r in read_rounds(tmp_path)] == [(0, 0.5), (0, 9.5), (1, 77.0)]


@pytest.mark.parametrize("text", ["{", "", "[1, 2]", "5", "null"])
def test_the_error_names_a_broken_summary(tmp_path: Path, text: str) -> None:
    (tmp_path / "summary.json").write_text(text)
    with pytest.raises(BadInput, match=r"summary\.json"):
        read_summary(tmp_path)


def test_events_are_stored_with_the_rounds_and_skipped_by_tables(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, SPEC, resume=False)
    folder.begin(0)
    lost = event_records(Round(1, 9), [Event("lost", 1, "node unavailable")])
    assert lost == [{"round": 1, "event": "lost", "client": 1, "reason": "node unavailable"}]
    folder.add_records([entry(0), entry(0, 1)])
    folder.add_records(lost)
    folder.add_records([entry(1)])
    assert read_rounds(tmp_path) == [entry(0), entry(0, 1), entry(1)]
    assert read_events(tmp_path) == lost
    assert [(e.round, e.event, e.client, e.reason) for e in lost] == [(1, "lost", 1, "node unavailable")]
    assert folder.begin(2) == [entry(0), entry(0, 1), entry(1)]
    assert read_events(tmp_path) == lost
    folder.begin(1)
    assert read_events(tmp_path) == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"client": "1"}, "client must be a whole number"),
        ({"event": None}, "event must be text"),
        ({"reason": 5}, "reason must be text"),
    ],
)
def test_the_error_names_an_invalid_event(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    event = {"round": 1, "event": "refused", "client": None, "reason": "not of this run"}
    (tmp_path / "rounds.jsonl").write_text(json.dumps(event) + "\n")
    assert [e.client for e in read_events(tmp_path)] == [None]
    (tmp_path / "rounds.jsonl").write_text(f"{json.dumps(event)}\n{json.dumps(event | changes)}\n")
    with pytest.raises(BadInput, match=rf"rounds\.jsonl: line 2 is damaged: {reason}"):
        read_events(tmp_path)


@pytest.mark.parametrize(
    "line", [b"5", b"null", b"[]", b"{}", b'{"round": "1"}', b'{"round": true}', b"{", b"", b'{"round": 0}']
)
def test_the_error_names_a_damaged_line(tmp_path: Path, line: bytes) -> None:
    folder = RunFolder(tmp_path, SPEC, resume=False)
    folder.begin(0)
    folder.add_records([entry(0)])
    file = tmp_path / "rounds.jsonl"
    file.write_bytes(file.read_bytes() + line + b"\n")
    folder.add_records([entry(1)])
    for read in (lambda: read_rounds(tmp_path), lambda: folder.begin(1)):
        with pytest.raises(BadInput, match=r"rounds\.jsonl: line 2 is damaged"):
            read()


def test_a_resumed_run_needs_its_own_records(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, SPEC, resume=False)
    folder.begin(0)
    folder.add_records([entry(0), entry(0, 1)])
    sha256 = folder.records_sha256()
    folder.add_records([entry(1), entry(1, 1)])
    file = tmp_path / "rounds.jsonl"
    whole = file.read_bytes()
    for content in (whole.replace(b"0.5", b"0.6"), b"".join(whole.splitlines(keepends=True)[1:]), b""):
        file.write_bytes(content)
        with pytest.raises(BadInput, match=r"rounds\.jsonl: has changed since round 0; restore it"):
            folder.begin(1, sha256)
        assert file.read_bytes() == content
    file.write_bytes(whole)
    assert folder.begin(1, sha256) == [entry(0), entry(0, 1)]


def test_a_run_killed_while_creating_its_folder_can_begin(tmp_path: Path) -> None:
    (tmp_path / "spec.toml.partial").write_text("half")
    RunFolder(tmp_path, SPEC, resume=False).hand_over()
    (tmp_path / "env.json").unlink()  # killed between the two
    RunFolder(tmp_path, SPEC, resume=True).hand_over()
    assert sorted(p.name for p in tmp_path.iterdir()) == [".lock", "env.json", "spec.toml"]
