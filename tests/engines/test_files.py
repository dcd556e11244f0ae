"""Only our own files are read, written and removed: no link is followed, and no FIFO keeps anybody waiting."""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from asfedbridge.core.errors import BadInput
from asfedbridge.engines import checkpoint, files
from asfedbridge.engines.checkpoint import CLIENTS, INDEX, SERVER, list_folders, load, save
from asfedbridge.engines.host import owner, state_name

pytestmark = pytest.mark.timeout(60)  # who waits for a FIFO waits for ever
IDENTITY = {"specification": "s" * 64}
NAME, STATE = "round-000002", state_name(0, 2)


class Shelf:
    """An engine that only keeps the state of one client."""

    def __init__(self, root: Path, next_round: int = 0) -> None:
        self.folder, self.next_round = root / CLIENTS, next_round

    def save(self) -> dict[str, str]:
        files.make_folder(self.folder)
        name = state_name(0, self.next_round)
        return {name: files.write_tensors(self.folder / name, {"w": torch.ones(2)})}

    def restore(self, states: Any) -> None:
        for name, sha256 in states.items():
            assert owner(name) == 0
            files.verify(self.folder / name, sha256)


def write(root: Path, next_round: int, keep: int = 2) -> None:
    save(root, next_round, {"w": torch.zeros(2)}, Shelf(root, next_round), IDENTITY, keep=keep)  # type: ignore[arg-type]


def resume(root: Path, **more: Any) -> Any:
    return load(root, Shelf(root), IDENTITY, **{"keep": 2, **more})  # type: ignore[arg-type]


def listing(root: Path) -> list[str]:
    return sorted(p.relative_to(root).as_posix() for p in root.rglob("*"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Checkpoints after rounds 1 and 2."""
    write(tmp_path / "checkpoint", 1)
    write(tmp_path / "checkpoint", 2)
    return tmp_path / "checkpoint"


def linked(path: Path) -> None:
    """The same content, elsewhere, beside what is dear to somebody."""
    elsewhere = next(p for p in (path, *path.parents) if p.name in ("checkpoint", "run")).parent / "elsewhere"
    path.rename(elsewhere) if path.exists() else elsewhere.write_text("dear")
    if elsewhere.is_dir():
        (elsewhere / "thesis.txt").write_text("dear")
        (elsewhere / "round-000001.partial").mkdir(exist_ok=True)
        (elsewhere / state_name(7, 1)).write_text("dear")
    path.symlink_to(elsewhere)


def fifo(path: Path) -> None:
    move_away(path)
    os.mkfifo(path)


def bound(path: Path) -> None:
    move_away(path)
    before = Path.cwd()
    os.chdir(path.parent)  # the name of a socket has few characters
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path.name)
    finally:
        os.chdir(before)


def folder(path: Path) -> None:
    move_away(path)
    path.mkdir()


def move_away(path: Path) -> None:
    if path.exists():
        path.rename(path.with_name("moved-away"))


LATER = state_name(0, 3)
READ = ["", CLIENTS, NAME, f"{NAME}/{INDEX}", f"{NAME}/{SERVER}", f"{CLIENTS}/{STATE}", f"{CLIENTS}/{LATER}"]
WRITTEN = ["", CLIENTS, "round-000003", "round-000003.partial", f"{CLIENTS}/{LATER}"]


@pytest.mark.parametrize("make", [linked, fifo, bound])
@pytest.mark.parametrize("place", READ)
def test_a_resume_refuses_what_is_not_ours_in_one_line(root: Path, place: str, make: Callable[[Path], None]) -> None:
    path = root / place if place else root
    make(path)
    before = listing(root.parent)
    with pytest.raises(BadInput) as caught:
        resume(root)
    assert len(str(caught.value).splitlines()) == 1
    assert str(path) in str(caught.value)
    assert {linked: "symbolic link", fifo: "FIFO", bound: "socket"}[make] in str(caught.value)
    assert listing(root.parent) == before, "something was removed"


def test_a_checkpoint_under_another_name_is_refused(root: Path) -> None:
    """Its content is whole, but of another round."""
    (root / NAME).rename(root / "away")
    (root / "round-000001").rename(root / NAME)
    for back in (None, 2):
        with pytest.raises(BadInput, match=r"round-000002/checkpoint.json: .*damaged \(its index is for round 1\)"):
            resume(root, from_round=back)


@pytest.mark.parametrize("place", [f"{NAME}/{INDEX}", f"{NAME}/{SERVER}", f"{CLIENTS}/{STATE}"])
def test_a_huge_file_is_refused_before_it_is_read(root: Path, place: str) -> None:
    os.truncate(root / place, 2**40)  # takes no room on the disk
    with pytest.raises(BadInput, match=r"damaged \(it is larger than [\d,]+ MB\).* from_round=1"):
        resume(root)
    with pytest.raises(BadInput, match="it is larger than"):
        files.read_state(root / place)


@pytest.mark.parametrize("make", [linked, fifo, bound])
@pytest.mark.parametrize("place", WRITTEN)
def test_a_checkpoint_is_not_written_through_it(root: Path, place: str, make: Callable[[Path], None]) -> None:
    path = root / place if place else root
    make(path)
    before = {p: p.read_bytes() for p in root.parent.rglob("*") if p.is_file() and not p.is_symlink()}
    with pytest.raises(BadInput, match=r"is a (symbolic link|FIFO|socket)"):
        write(root, 3)
    assert {p: content for p, content in before.items() if not p.exists() or p.read_bytes() != content} == {}


def test_foreign_names_stay_where_they_are(root: Path) -> None:
    foreign = ["notes.txt", "backup/round-000001/server.safetensors", "round-abc/x", "round-0000001.partial.old/x"]
    foreign += [f"{CLIENTS}/{name}" for name in ("mine.txt", "client-1.safetensors", f"kept/{STATE}")]
    foreign += [f"{NAME}/notes.txt"]
    for name in foreign:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("dear")
    os.mkfifo(root / "pipe")
    (root / "link").symlink_to(root.parent)
    for index in (3, 4, 5):
        assert resume(root).next_round == index - 1
        write(root, index)
    foreign[-1] = f"{NAME}.partial/notes.txt"  # of a checkpoint that was removed but for this
    assert all((root / name).read_text() == "dear" for name in foreign)
    assert {"pipe", "link"} <= set(os.listdir(root))
    assert [p.name for p in list_folders(root)] == ["round-000004", "round-000005"]


def test_a_link_to_the_run_folder_itself_is_the_users(root: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    assert resume(tmp_path / "link" / "checkpoint").next_round == 2


@pytest.mark.parametrize("make", [linked, fifo, bound, folder])
def test_single_files(tmp_path: Path, make: Callable[[Path], None]) -> None:
    place = tmp_path / "run"
    place.mkdir()
    file = place / "rounds.jsonl"
    file.write_bytes(b"{}\n")
    make(file)
    for act in (
        lambda: files.read_file(file),
        lambda: files.is_there(file),
        lambda: files.write_atomic(file, b"x"),
        lambda: files.write_through(file, b"x"),
        lambda: files.append_through(file, b"x"),
        lambda: files.remove_file(file),
        lambda: files.take_lock(file),
        lambda: files.verify(file, "0" * 64),
        lambda: files.read_tensors(file, "0" * 64),
    ):
        with pytest.raises(BadInput, match=r"rounds.jsonl: is a (symbolic link|FIFO|socket|folder), expected a file"):
            act()
    if make is linked:
        assert file.resolve().read_bytes() == b"{}\n"


def test_a_file_with_a_second_name_is_not_overwritten(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    files.write_through(first, b"one")
    files.add_name(first, second)
    files.write_through(first, b"two")
    assert (first.read_bytes(), second.read_bytes()) == (b"two", b"one")


def test_folders_last_when_files_are_created_in_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[str] = []
    fsync = os.fsync

    def watched_fsync(handle: int) -> None:
        flushed.append(os.readlink(f"/proc/self/fd/{handle}"))
        fsync(handle)

    monkeypatch.setattr(files.os, "fsync", watched_fsync)
    files.make_folder(tmp_path / "a" / "b")
    assert flushed == [str(tmp_path), str(tmp_path / "a")]
    flushed.clear()
    files.append_through(tmp_path / "a" / "b" / "c", b"1")
    assert flushed == [str(tmp_path / "a" / "b" / "c"), str(tmp_path / "a" / "b")]
    files.append_through(tmp_path / "a" / "b" / "c", b"2")
    assert len(flushed) == 3  # it has its name already


class TestTheWayBack:
    def test_the_last_few_stay_and_share_states(self, root: Path) -> None:
        for index in (3, 4):
            write(root, index, keep=3)
        assert [p.name for p in list_folders(root)] == ["round-000002", "round-000003", "round-000004"]
        assert sorted(os.listdir(root / CLIENTS)) == [state_name(0, i) for i in (2, 3, 4)]
        write(root, 5, keep=1)
        assert [p.name for p in list_folders(root)] == ["round-000005"]
        assert os.listdir(root / CLIENTS) == [state_name(0, 5)]

    def test_back_to_an_older_one(self, root: Path) -> None:
        assert resume(root, from_round=1).next_round == 1
        assert [p.name for p in list_folders(root)] == ["round-000001"]
        assert os.listdir(root / CLIENTS) == [state_name(0, 1)]

    def test_snapshots_of_later_rounds_go(self, root: Path, tmp_path: Path) -> None:
        for index in (3, 4):
            engine = Shelf(root, index)
            save(root, index, {}, engine, IDENTITY, aside=tmp_path / "snapshots", keep=2)  # type: ignore[arg-type]
        resume(root, from_round=3, snapshots=tmp_path / "snapshots")
        assert [p.name for p in list_folders(tmp_path / "snapshots")] == ["round-000003"]
        assert [p.name for p in list_folders(root)] == ["round-000003"]

    def test_what_is_there_is_named(self, root: Path) -> None:
        with pytest.raises(BadInput, match=r"from_round=7: .* available: 1, 2"):
            resume(root, from_round=7)
        with pytest.raises(BadInput, match=r"from_round=7: .* there are no checkpoints"):
            resume(root.parent / "other", from_round=7)

    @pytest.mark.parametrize("name", [f"{NAME}/{INDEX}", f"{NAME}/{SERVER}", f"{CLIENTS}/{STATE}"])
    def test_a_damaged_one_says_which_is_good(self, root: Path, name: str) -> None:
        (root / name).write_bytes(b"{")
        with pytest.raises(BadInput, match=r"damaged.*go back to the checkpoint after 1 rounds with resume=True from"):
            resume(root)
        assert resume(root, from_round=1).next_round == 1

    def test_where_no_other_is_good_none_is_named(self, root: Path) -> None:
        for index in (1, 2):
            (root / f"round-00000{index}" / INDEX).write_bytes(b"{")
        with pytest.raises(BadInput) as caught:
            resume(root)
        assert "go back" not in str(caught.value)

    def test_states_of_a_damaged_older_one_stay_with_it(self, root: Path) -> None:
        (root / "round-000002" / INDEX).write_bytes(b"{")
        write(root, 3)
        assert {state_name(0, i) for i in (2, 3)} <= set(os.listdir(root / CLIENTS))
        write(root, 4)
        assert sorted(os.listdir(root / CLIENTS)) == [state_name(0, i) for i in (3, 4)]

    def test_a_million_rounds_are_in_order(self, tmp_path: Path) -> None:
        for index in (999_999, 1_000_000):
            write(tmp_path / "checkpoint", index)
        assert [checkpoint.number(p) for p in list_folders(tmp_path / "checkpoint")] == [999_999, 1_000_000]


def test_a_file_of_tensors_does_not_depend_on_their_memory_format(tmp_path: Path) -> None:
    """Tensors as networks hold them, larger than one write: the file has the bytes of contiguous copies."""
    held = torch.rand(64, 64, 5, 5, requires_grad=True).contiguous(memory_format=torch.channels_last)
    assert held.nbytes > 2 * files.PIECE
    assert not held.is_contiguous()
    copy = held.detach().contiguous()
    assert files.write_tensors(tmp_path / "held", {"w": held}) == files.write_tensors(tmp_path / "copy", {"w": copy})
    assert (tmp_path / "held").read_bytes() == (tmp_path / "copy").read_bytes()
    sha256 = files.write_tensors(tmp_path / "held", {"w": held})
    assert torch.equal(files.read_tensors(tmp_path / "held", sha256)["w"], copy)
