"""Temporary folders: what a killed run left is removed at the next start, and nothing else."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("flwr")
from asfedbridge.core.errors import BadInput
from asfedbridge.deploy.scratch import LOCK, PREFIX, YOUNG, Scratch
from asfedbridge.deploy.sockets import address_of, path_of

OWNER = """
import os, signal, tempfile
from asfedbridge.deploy.scratch import Scratch
kept = Scratch()
(kept.path / "log").write_text("x")
print(kept.path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def test_it_is_its_users_alone_and_gone_at_the_end(place: Path) -> None:
    with Scratch() as folder:
        assert folder.parent == place
        assert folder.stat().st_mode & 0o777 == 0o700
    assert list(place.iterdir()) == []


def test_what_a_killed_run_left_is_removed() -> None:
    told = subprocess.run([sys.executable, "-c", OWNER], capture_output=True, text=True)
    assert told.returncode == -9, told.stderr
    left = Path(told.stdout.strip())
    assert (left / "log").exists()
    with Scratch() as folder:
        assert not left.exists()
        with Scratch():
            assert folder.exists()  # its owner lives


def make_stale(folder: Path) -> Path:
    folder.mkdir()
    (folder / "file").write_text("x")
    return folder


def test_nothing_else_is_removed(place: Path) -> None:
    mine = make_stale(place / "mine")
    (mine / LOCK).touch()
    link = place / f"{PREFIX}link"
    link.symlink_to(mine)
    young = make_stale(place / f"{PREFIX}young")  # is just being made
    held = make_stale(place / f"{PREFIX}held")
    (held / LOCK).symlink_to(mine / "file")
    old = make_stale(place / f"{PREFIX}old")  # of a version that had no locks
    os.utime(old, (0, os.stat(old).st_mtime - 2 * YOUNG))
    Scratch().close()
    assert link.is_symlink()
    assert (mine / "file").exists()
    assert young.exists()
    assert held.exists()
    assert not old.exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make the folder of another user")
def test_another_users_folder_is_not_removed(place: Path) -> None:
    theirs = make_stale(place / f"{PREFIX}theirs")
    (theirs / LOCK).touch()
    os.chown(theirs, 65534, 65534)
    Scratch().close()
    assert (theirs / "file").exists()


def test_a_path_that_is_too_long_for_a_socket_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="set TMPDIR to a shorter one"):
        path_of(tmp_path / ("x" * 90), address_of("superlink"))
