"""Every step of a short run on its disk: a power cut or an error there, then a resume. Same bits, nothing lost."""

import errno
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.fuzz.disk import Disk, Tree, restore
from tests.fuzz.disk import __file__ as disk_file
from tests.fuzz.outcome import compare, outcome
from tests.fuzz.tiny_run import make_run

from asfedbridge.core.errors import BadInput
from asfedbridge.core.task import Round
from asfedbridge.engines import checkpoint, files
from asfedbridge.runs.callback import Callback, Run
from asfedbridge.runs.run import execute
from asfedbridge.runs.setting import Setting
from asfedbridge.runs.spec import Spec

CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate")
OLDER = re.compile(r"checkpoint/(clients/client-|round-\d+\.partial/)")
WATCHED: dict[str, Any] = {"root": "", "missed": []}


def watch(event: str, args: tuple[Any, ...]) -> None:
    """Python tells of every file that is about to be opened for writing, renamed or removed: `Disk` must know."""
    writes = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)
    if WATCHED["root"] and (writes or event in CHANGES) and str(args[0]).startswith(WATCHED["root"]):
        caller = sys._getframe(1).f_code.co_filename
        WATCHED["missed"] += [(event, str(args[0]))] if caller != disk_file else []


sys.addaudithook(watch)


class Witness(Callback):
    """Where a run begins, and which rounds are promised to be there from now on."""

    def __init__(self, disk: Disk) -> None:
        self.disk, self.began, self.closed = disk, 0, False

    def on_run_begin(self, run: Run) -> None:
        self.began = run.next_round

    def on_round_end(self, run: Run, rnd: Round, records: Any) -> None:
        if not rnd.closing and run.played % run.spec.checkpoint_every == 0:
            self.disk.reached = run.played


class Trial:
    """A run that nobody disturbed, and attempts to come to the same end after an accident."""

    def __init__(self, folder: Path, spec: Spec, setting: Setting) -> None:
        self.folder, self.spec, self.setting = folder, spec, setting
        (folder / "whole").mkdir()
        disk = Disk(folder / "whole", cuts=False)
        self.play(folder / "whole", disk)
        self.steps = len(disk.steps)
        self.expected = outcome(folder / "whole" / "run")

    def play(self, root: Path, disk: Disk | None = None, **more: Any) -> int:
        """Play a run to its end; returns the round that it began with."""
        disk = disk or Disk(root, cuts=False)
        with disk:
            witness = Witness(disk)
            execute(self.spec, root / "run", root, [witness], resume=True, setting=self.setting, **more)
            disk.reached = self.spec.rounds + 1  # the summary, too
        return witness.began

    def resume(self, tree: Tree, reached: int, how: str) -> None:
        root = self.folder / "cut"
        restore(tree, root)
        finished = (root / "run" / "summary.json").exists()
        try:
            began = self.play(root)
            assert finished or began >= min(reached, self.spec.rounds), "rounds are lost"
            assert finished or reached <= self.spec.rounds, "the summary is lost"
            found = outcome(root / "run")
            if finished:  # nobody tidies up any more: what was removed last may be there again
                found = {name: content for name, content in found.items() if not OLDER.match(name)} | {
                    name: found.get(name) for name in self.expected
                }
            compare(found, self.expected)
            complete(root / "run", self.spec.rounds)
        except BaseException as error:
            error.add_note(f"power cut at {how}")
            raise
        shutil.rmtree(root)

    def fail(self, step: int, error: int) -> str:
        """A step that fails, then a resume; returns what the run said, if it had to end."""
        root, said = self.folder / "fail", ""
        root.mkdir()
        disk = Disk(root, step, error, cuts=False)
        try:
            try:
                self.play(root, disk)
            except BadInput as refused:
                said = str(refused)
            assert not said or str(root / "run") in said
            began = self.play(root)
            assert began >= disk.reached or disk.reached >= self.spec.rounds
            compare(outcome(root / "run"), self.expected)
        except BaseException as wrong:
            wrong.add_note(f"{errno.errorcode[error]} at step {step}, {disk.steps[-1]}")
            raise
        shutil.rmtree(root)
        return said


def complete(out: Path, rounds: int) -> None:
    """What has no checksum, as it holds times."""
    (events,) = (out / "tensorboard").iterdir()
    assert events.read_bytes().count(b"hparams") >= 2  # the last record is there
    starts = json.loads((out / "env.json").read_text())["starts"]
    assert starts
    assert all(0 <= start["next_round"] <= rounds for start in starts)


@contextmanager
def nothing_else_changes(root: Path) -> Iterator[None]:
    WATCHED.update(root=str(root), missed=[])
    try:
        yield
    finally:
        WATCHED["root"] = ""
    assert WATCHED["missed"] == []


def cut_everywhere(trial: Trial, disk: Disk, name: str) -> None:
    begin = time.monotonic()
    for tree, reached, how in disk.left.values():
        trial.resume(tree, reached, how)
    figures = [len(disk.steps) + 1, disk.considered, len(disk.left), len(disk.left), 0]
    print(f"\n| power cut, {name} |", *(f"{n} |" for n in figures), f"{time.monotonic() - begin:.0f} |")


def cut_a_run(folder: Path, name: str, **settings: Any) -> None:
    trial = Trial(folder, *make_run(**settings))
    (folder / "first").mkdir()
    disk = Disk(folder / "first")
    with nothing_else_changes(disk.root):
        trial.play(disk.root, disk)
    cut_everywhere(trial, disk, name)


def cut_a_way_back(folder: Path, name: str, to: int, **settings: Any) -> None:
    """A run that has ended goes back to an earlier round."""
    trial = Trial(folder, *make_run(**settings))
    shutil.copytree(folder / "whole", folder / "first")
    disk = Disk(folder / "first")
    disk.reached = to
    with nothing_else_changes(disk.root):
        assert trial.play(disk.root, disk, from_round=to) == to
    compare(outcome(disk.root / "run"), trial.expected)
    cut_everywhere(trial, disk, name)


def fail_everywhere(folder: Path, name: str, **settings: Any) -> None:
    trial = Trial(folder, *make_run(**settings))
    begin, ended, unharmed = time.monotonic(), 0, 0
    for step in range(1, trial.steps + 1):
        for error in (errno.EIO, errno.ENOSPC):
            said = trial.fail(step, error)
            assert len(said.splitlines()) <= 1
            ended, unharmed = ended + bool(said), unharmed + (not said)
    figures = [trial.steps, 2 * trial.steps, 2 * trial.steps, unharmed, ended]
    print(f"\n| EIO and ENOSPC, {name} |", *(f"{n} |" for n in figures), f"{time.monotonic() - begin:.0f} |")


def test_power_cuts_in_one_round(tmp_path: Path) -> None:
    cut_a_run(tmp_path, "1 round", rounds=1, snapshot_every=1)


@pytest.mark.long
def test_errors_in_one_round(tmp_path: Path) -> None:
    fail_everywhere(tmp_path, "1 round", rounds=1, snapshot_every=0)


@pytest.mark.long
def test_power_cuts_in_three_rounds(tmp_path: Path) -> None:
    cut_a_run(tmp_path, "3 rounds, diagnoses", rounds=3, diagnose_every=2)


@pytest.mark.long
def test_power_cuts_where_clients_make_room(tmp_path: Path) -> None:
    settings = {"participation": 0.5, "checkpoint_every": 2, "snapshot_every": 0, "keep_checkpoints": 1}
    cut_a_run(tmp_path, "4 rounds, clients make room", rounds=4, **settings)


@pytest.mark.long
def test_power_cuts_on_the_way_back(tmp_path: Path) -> None:
    cut_a_way_back(tmp_path, "back from the end to round 2 of 3", to=2, rounds=3)


@pytest.mark.long
def test_errors_in_two_rounds(tmp_path: Path) -> None:
    fail_everywhere(tmp_path, "2 rounds", rounds=2, keep_checkpoints=1)


def forget(*_: Any) -> None:
    pass


def flush_files_only(paths: Iterable[Path]) -> None:
    """Forgets the names of files."""
    FLUSH(path for path in paths if not path.is_dir())


def early_tidy(root: Path, *rest: Any, **more: Any) -> None:
    """Removes older checkpoints before the new one is there."""
    checkpoint._tidy(root, 1)
    for folder in checkpoint.list_folders(root):
        checkpoint._discard(folder)
    SAVE(root, *rest, **more)


def write_unflushed(*given: Any) -> list[Path]:
    """Forgets to say what a new checkpoint is made of."""
    WRITE(*given)
    return []


FLUSH, SAVE, WRITE = files.flush, checkpoint.save, checkpoint._write


@pytest.mark.long
@pytest.mark.parametrize(
    ("where", "name", "fault"),
    [
        (files, "sync_folder", forget),
        (files, "flush_file", forget),
        (files, "flush", forget),
        (checkpoint, "_write", write_unflushed),
        (files, "flush", flush_files_only),
        (checkpoint, "save", early_tidy),
    ],
)
def test_a_planted_fault_is_found(
    where: Any, name: str, fault: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, name, fault)
    with pytest.raises((AssertionError, BadInput)):
        cut_a_run(tmp_path, f"{name} broken", rounds=2, snapshot_every=0)
