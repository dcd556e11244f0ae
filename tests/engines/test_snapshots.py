"""A snapshot is a checkpoint that stays: whole or not there, and there whenever the run goes on after it."""

import itertools
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fuzz.disk import Disk

from asfedbridge.core.errors import BadInput
from asfedbridge.engines import checkpoint, files
from asfedbridge.engines.checkpoint import CLIENTS, list_folders, load, read, save
from asfedbridge.engines.host import state_name

IDENTITY = {"specification": "s" * 64, "data": "d" * 64, "partition": "p" * 64}
EVERY, ROUNDS = 2, 4


class Counter:
    """An engine with one client whose state is the number of rounds it has played."""

    def __init__(self, root: Path) -> None:
        self.folder, self.played = root / CLIENTS, 0

    def save(self) -> dict[str, str]:
        files.make_folder(self.folder)
        name = state_name(0, self.played)
        return {name: files.write_tensors(self.folder / name, {"module/a/n": torch.tensor([self.played])})}

    def restore(self, states: Any) -> None:
        ((name, sha256),) = states.items()
        self.played = int(files.read_tensors(self.folder / name, sha256)["module/a/n"])


def play(root: Path) -> None:
    """As a run does it: from the last checkpoint to the end."""
    engine = Counter(root)
    found = load(root, engine, IDENTITY)  # type: ignore[arg-type]
    for index in range(found.next_round if found else 0, ROUNDS):
        engine.played += 1
        aside = root.parent / "snapshots" if (index + 1) % EVERY == 0 else None
        server = {"w": torch.full((2,), float(engine.played))}
        save(root, index + 1, server, engine, IDENTITY, aside=aside)  # type: ignore[arg-type]


def content(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def check(folder: Path) -> None:
    """What a snapshot names is there, and is of its round."""
    found = read(folder, IDENTITY)
    ((name, sha256),) = found.states.items()
    assert folder.name == f"round-{found.next_round:06d}"
    assert int(files.read_tensors(folder / CLIENTS / name, sha256)["module/a/n"]) == found.next_round
    assert found.server["w"].tolist() == [found.next_round] * 2


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


def test_snapshots_outlive_the_checkpoints_they_were(root: Path) -> None:
    play(root)
    assert [p.name for p in list_folders(root)] == ["round-000004"]
    assert [p.name for p in (root / CLIENTS).iterdir()] == [state_name(0, 4)]
    snapshots = list_folders(root.parent / "snapshots")
    assert [p.name for p in snapshots] == ["round-000002", "round-000004"]
    for folder in snapshots:
        check(folder)


def test_where_files_have_one_name_only_they_are_copied(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, other: Path) -> None:
        raise PermissionError("no links here")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    play(root)
    snapshots = list_folders(root.parent / "snapshots")
    assert len(snapshots) == 2
    for folder in snapshots:
        check(folder)


def test_cut_off_at_any_step_and_resumed_nothing_is_missing_or_harmed(tmp_path: Path) -> None:
    """Every operation on the disk is once the last one; then the run goes on."""
    (tmp_path / "whole").mkdir()
    play(tmp_path / "whole" / "checkpoint")
    whole = content(tmp_path / "whole")
    for last in itertools.count(1):
        root = tmp_path / str(last) / "checkpoint"
        root.parent.mkdir()
        with Disk(root.parent, fail_at=last, cuts=False) as disk, suppress(OSError):
            play(root)
        if len(disk.steps) < last:
            break  # there were no more
        for folder in list_folders(root.parent / "snapshots"):
            check(folder)
        play(root)
        assert content(root.parent) == whole, last
    assert last > 40


def test_a_damaged_index_is_named(root: Path) -> None:
    play(root)
    folder = root.parent / "snapshots" / "round-000002"
    (folder / checkpoint.INDEX).write_text("{")
    with pytest.raises(BadInput, match=r"round-000002/checkpoint\.json.*damaged"):
        read(folder, IDENTITY)
