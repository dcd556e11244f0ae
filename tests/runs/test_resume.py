"""Resuming a run, also from an earlier round: the same results, refused inputs, and the record of starts."""

import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.fuzz.outcome import compare, outcome
from tests.fuzz.tiny_run import make_run

from asfedbridge.core.errors import BadInput
from asfedbridge.runs.api import check_from_round
from asfedbridge.runs.callback import Callback
from asfedbridge.runs.folder import ENV, SPEC, SUMMARY, RunFolder
from asfedbridge.runs.record_files import DIAGNOSTICS, RELEASES, ROUNDS, read_releases
from asfedbridge.runs.run import execute

pytestmark = pytest.mark.timeout(120)  # opening a FIFO would block for ever


class Leaves(Callback):
    """Interrupts a run, as Ctrl-C does."""

    def __init__(self, after: int) -> None:
        self.after = after

    def on_round_end(self, run: Any, rnd: Any, records: Any) -> None:
        if run.played == self.after:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A finished run of four rounds."""
    spec, setting = make_run(rounds=4, diagnose_every=2, keep_checkpoints=3)
    out = tmp_path_factory.mktemp("whole") / "run"
    execute(spec, out, out, setting=setting)
    return spec, setting, out


@pytest.fixture
def copied(whole: Any, tmp_path: Path) -> Any:
    spec, setting, out = whole
    shutil.copytree(out, tmp_path / "run")
    return spec, setting, tmp_path / "run"


@pytest.mark.parametrize(("engine", "to"), [("local", 2), ("local", 3), ("local", 4), ("pool", 2)])
def test_resuming_from_an_earlier_round_gives_the_same_bits(whole: Any, copied: Any, to: int, engine: str) -> None:
    spec, setting, out = copied
    seen: list[Any] = []

    class Watch(Callback):
        def on_run_begin(self, run: Any) -> None:
            seen.append((run.next_round, max(r["round"] for r in run.records)))
            seen.append((out / SUMMARY).exists())
            seen.append([json.loads(line)["round"] for line in (out / DIAGNOSTICS).read_text().splitlines()])
            seen.append(sorted(p.name for p in (out / "snapshots").iterdir()))

    more = {"engine": engine, "workers": 2} if engine == "pool" else {}
    execute(spec, out, out, [Watch()], resume=True, setting=setting, from_round=to, **more)
    assert seen[:2] == [(to, to - 1), False]
    assert seen[2] == [index for index in (1, 3) if index < to]
    assert seen[3] == [f"round-{index:06d}" for index in (2, 4) if index <= to]
    found, expected = outcome(out), outcome(whole[2])
    if engine == "pool":
        for one in (found, expected):
            one[SUMMARY] = {k: v for k, v in one[SUMMARY].items() if k not in ("engine", "workers", "threads")}
    compare(found, expected)


def test_a_missing_checkpoint_of_from_round_changes_nothing(copied: Any) -> None:
    spec, setting, out = copied
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    with pytest.raises(BadInput, match=r"from_round=1: .* available: 2, 3, 4"):
        execute(spec, out, out, resume=True, setting=setting, from_round=1)
    assert {p: p.read_bytes() for p in out.rglob("*") if p.is_file()} == before


def test_values_of_from_round_are_checked() -> None:
    for value in (0, -1, True, "2", 1.0):
        with pytest.raises(BadInput, match="from_round="):
            check_from_round(value, True)  # type: ignore[arg-type]
    check_from_round(1, True)


def test_releases_are_never_removed(copied: Any) -> None:
    spec, _, out = copied
    with RunFolder(out, spec, resume=True) as folder:
        for index in range(3):
            folder.add_release([0, index])
        folder.reopen()
        folder.begin(1)
    assert read_releases(out) == [[0, 0], [0, 1], [0, 2]]


def test_a_release_damaged_by_a_power_cut_is_ignored(copied: Any) -> None:
    spec, _, out = copied
    with RunFolder(out, spec, resume=True) as folder:
        folder.add_release([0, 1])
        with (out / RELEASES).open("ab") as file:
            file.write(bytes(8))
        folder.add_release([1])
    assert read_releases(out) == [[0, 1], [1]]
    (out / RELEASES).write_bytes(b"\n[0, \x001]\n")
    with pytest.raises(BadInput, match="damaged"):
        read_releases(out)


@pytest.mark.parametrize("rest", [b"\0" * 40, b'{"round": 3, "cl\0\0\0\0": 1}\n', b"\0\n", b'{"round"'])
def test_records_damaged_after_the_checkpoint_are_dropped(whole: Any, tmp_path: Path, rest: bytes) -> None:
    spec, setting, done = whole
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        execute(spec, out, out, [Leaves(2)], setting=setting)
    for name in (ROUNDS, DIAGNOSTICS):
        with (out / name).open("ab") as file:
            file.write(rest)
    execute(spec, out, out, resume=True, setting=setting)
    compare(outcome(out), outcome(done))


def test_every_start_is_recorded(whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, setting, _ = whole
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        execute(spec, out, out, [Leaves(2)], setting=setting)
    first = json.loads((out / ENV).read_text())
    monkeypatch.setattr("asfedbridge.runs.folder.torch.__version__", "9.9")
    monkeypatch.setattr("asfedbridge.runs.folder.platform.node", lambda: "another machine")
    execute(spec, out, out, resume=True, setting=setting)
    found = json.loads((out / ENV).read_text())
    starts = found.pop("starts")
    assert found == {key: value for key, value in first.items() if key != "starts"}  # describes the first start
    assert [start["next_round"] for start in starts] == [0, 2]
    assert [start["torch"] == "9.9" for start in starts] == [False, True]
    assert starts[1]["machine"] == "another machine"
    assert all({"time", "asfedbridge", "python", "numpy", "platform", "command"} <= set(start) for start in starts)
    execute(spec, out, out, resume=True, setting=setting)  # the run is finished: nothing starts
    assert len(json.loads((out / ENV).read_text())["starts"]) == 2


@pytest.mark.parametrize(
    "name", [SPEC, ENV, SUMMARY, ROUNDS, DIAGNOSTICS, ".lock", "checkpoint", "clients", "snapshots", "tensorboard"]
)
@pytest.mark.parametrize("what", ["link", "fifo"])
def test_links_and_fifos_in_the_run_folder_are_refused(copied: Any, name: str, what: str, tmp_path: Path) -> None:
    spec, setting, out = copied
    if name not in (SPEC, SUMMARY):
        (out / SUMMARY).unlink()
    (out / name).rename(tmp_path / "elsewhere")
    if what == "link":
        (out / name).symlink_to(tmp_path / "elsewhere")
    else:
        os.mkfifo(out / name)
    before = sorted(p for p in tmp_path.rglob("*"))
    with pytest.raises(BadInput) as caught:
        execute(spec, out, out, resume=True, setting=setting)
    assert str(caught.value).startswith(
        f"{out / name}: is a {'symbolic link' if what == 'link' else 'FIFO'}, expected a f"
    )
    assert len(str(caught.value).splitlines()) == 1
    gone = set(before) - set(tmp_path.rglob("*"))
    assert {path for path in gone if path.parent != out / "tensorboard"} == set()  # which is rewritten


@pytest.mark.parametrize(
    "name",
    [
        *(f"{name}.partial" for name in (ENV, SUMMARY, ROUNDS, DIAGNOSTICS)),
        "checkpoint/round-000004.partial", "checkpoint/clients/client-0000-round-000004.safetensors",
        "snapshots/round-000004", "snapshots/round-000004.partial",
        "clients/client-0000.json", "clients/client-0000.json.partial", "clients/client-0000.safetensors",
    ],
)  # fmt: skip
@pytest.mark.parametrize("victim", ["file", "folder"])
def test_links_in_the_place_of_what_is_to_be_written_are_not_followed(
    copied: Any, name: str, victim: str, tmp_path: Path
) -> None:
    """A resumed run plays rounds 2 and 3 and writes all of these."""
    spec, setting, out = copied
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "client-0000-round-000003.safetensors").write_text("dear")
    path = out / name
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    path.symlink_to(theirs if victim == "folder" else theirs / "client-0000-round-000003.safetensors")
    with suppress(BadInput):  # refused, or replaced
        execute(spec, out, out, resume=True, setting=setting, from_round=2)
    assert [p.name for p in theirs.iterdir()] == ["client-0000-round-000003.safetensors"]
    assert (theirs / "client-0000-round-000003.safetensors").read_text() == "dear"


def test_a_failure_releases_the_lock(tmp_path: Path, whole: Any) -> None:
    """The failure happens between locking and the first round, and the caller still holds the exception."""
    spec, setting, done = whole
    shutil.copytree(done, tmp_path / "run")
    (tmp_path / "run" / SUMMARY).write_text("{")
    with pytest.raises(BadInput) as caught:
        execute(spec, tmp_path / "run", tmp_path, resume=True, setting=setting)
    (tmp_path / "run" / SUMMARY).unlink()
    execute(spec, tmp_path / "run", tmp_path, resume=True, setting=setting)
    assert "summary.json" in str(caught.value)
    compare(outcome(tmp_path / "run"), outcome(done))
