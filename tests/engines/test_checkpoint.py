"""Checkpoints are whole or not there."""

import errno
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from asfedbridge.core.errors import BadInput
from asfedbridge.core.payload import Payload
from asfedbridge.engines import files
from asfedbridge.engines.checkpoint import CLIENTS, load, save
from asfedbridge.engines.host import owner, state_name

IDENTITY = {"specification": "s" * 64, "data": "d" * 64, "partition": "p" * 64}


class Shelf:
    """An engine that only keeps the states of two clients, in the checkpoint's own folder."""

    def __init__(self, root: Path, next_round: int = 0, value: float = 0.0) -> None:
        self.folder, self.next_round = root / CLIENTS, next_round
        self.states: dict[int, Payload] = {i: {"module/a/w": torch.full((3,), value + i)} for i in range(2)}

    def save(self) -> dict[str, str]:
        self.folder.mkdir(exist_ok=True)
        names = {i: state_name(i, self.next_round) for i in self.states}
        return {name: files.write_tensors(self.folder / name, self.states[i]) for i, name in names.items()}

    def restore(self, states: Mapping[str, str]) -> None:
        self.states = {owner(name): files.read_tensors(self.folder / name, sha) for name, sha in states.items()}  # type: ignore[misc]


def write(root: Path, next_round: int, value: float, identity: Any = IDENTITY) -> None:
    save(root, next_round, {"w": torch.full((2,), value)}, Shelf(root, next_round, value), identity)  # type: ignore[arg-type]


def read(root: Path, identity: Any = IDENTITY) -> tuple[int, float, list[float]] | None:
    shelf = Shelf(root)
    found = load(root, shelf, identity)  # type: ignore[arg-type]
    if found is None:
        return None
    return found.next_round, found.server["w"][0].item(), [s["module/a/w"][0].item() for s in shelf.states.values()]


def listing(root: Path) -> list[str]:
    return sorted(p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file())


def files_of(index: int) -> list[str]:
    """All that a checkpoint leaves, clients first."""
    return [
        f"clients/client-0000-round-{index:06d}.safetensors",
        f"clients/client-0001-round-{index:06d}.safetensors",
        f"round-{index:06d}/checkpoint.json",
        f"round-{index:06d}/server.safetensors",
    ]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


def test_what_is_written_is_read(root: Path) -> None:
    assert read(root) is None
    write(root, 1, 10.0)
    assert read(root) == (1, 10.0, [10.0, 11.0])
    assert listing(root) == files_of(1)


def test_an_empty_server_state_is_a_state(root: Path) -> None:
    save(root, 1, {}, Shelf(root), IDENTITY, seconds=2.5)  # type: ignore[arg-type]
    found = load(root, Shelf(root), IDENTITY)  # type: ignore[arg-type]
    assert found is not None
    assert (found.next_round, found.server, found.seconds) == (1, {}, 2.5)


def test_the_newer_replaces_the_older(root: Path) -> None:
    for index in (1, 9, 10, 100):
        write(root, index, float(index))
        assert listing(root) == files_of(index)
        assert read(root) == (index, float(index), [float(index), index + 1.0])


def test_the_newest_is_read_even_if_an_older_is_there(root: Path, tmp_path: Path) -> None:
    write(root, 2, 2.0)
    shutil.copytree(root / "round-000002", tmp_path / "kept")
    write(root, 10, 10.0)
    shutil.copytree(tmp_path / "kept", root / "round-000002")  # as if power failed before it was removed
    assert read(root) == (10, 10.0, [10.0, 11.0])
    write(root, 11, 11.0)
    assert listing(root) == files_of(11)


def test_the_older_is_removed_only_when_the_newer_is_complete(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(root, 1, 1.0)
    there: list[list[str]] = []
    unlink = os.unlink

    def watched_unlink(path: Path) -> None:
        there.append(listing(root))
        unlink(path)

    monkeypatch.setattr(files.os, "unlink", watched_unlink)
    write(root, 2, 2.0)
    assert len(there) == 4  # index, server, and two clients
    assert all(set(files_of(2)) <= set(found) for found in there)


def test_everything_is_flushed_before_the_rename(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    fsync, rename = os.fsync, os.rename

    def watched_fsync(handle: int) -> None:
        log.append(os.readlink(f"/proc/self/fd/{handle}"))
        fsync(handle)

    def watched_rename(path: Path, to: Path) -> None:
        log.append("rename")
        rename(path, to)

    monkeypatch.setattr(files.os, "fsync", watched_fsync)
    monkeypatch.setattr(files.os, "rename", watched_rename)
    write(root, 1, 1.0)
    names = [Path(entry).name for entry in log]
    cut = names.index("rename")
    parents = {root.parent.name, "checkpoint"}  # of folders that were made
    made = {CLIENTS, "round-000001.partial"}
    assert set(names[:cut]) - parents == {*(Path(name).name for name in files_of(1)), *made}
    assert names[cut + 1 :] == ["checkpoint"]


def test_leftovers_of_a_crash_are_ignored_and_cleaned(root: Path) -> None:
    write(root, 1, 1.0)
    for name in ("round-000002.partial", "round-000001.partial"):
        (root / name).mkdir()
        (root / name / "server.safetensors").write_bytes(b"half")
    (root / CLIENTS / state_name(0, 2)).write_bytes(b"half")
    assert read(root) == (1, 1.0, [1.0, 2.0])
    assert listing(root) == files_of(1)
    write(root, 2, 2.0)
    assert listing(root) == files_of(2)
    assert read(root) == (2, 2.0, [2.0, 3.0])


def test_only_leftovers_are_no_checkpoint(root: Path) -> None:
    (root / "round-000001.partial").mkdir(parents=True)
    assert read(root) is None


def test_a_round_can_be_written_again(root: Path) -> None:
    write(root, 1, 1.0)
    write(root, 1, 5.0)
    assert read(root) == (1, 5.0, [5.0, 6.0])


FILES = files_of(1)


def one_line(root: Path, identity: Any = IDENTITY) -> str:
    with pytest.raises(BadInput) as caught:
        read(root, identity)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".safetensors")])
@pytest.mark.parametrize("place", [0, 12, -1])
def test_a_flipped_bit_is_found(root: Path, name: str, place: int) -> None:
    write(root, 1, 1.0)
    path = root / name
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    message = one_line(root)
    assert str(path) in message
    assert "damaged" in message


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("keep", [0, 10, -1])
def test_a_cut_file_is_found(root: Path, name: str, keep: int) -> None:
    write(root, 1, 1.0)
    path = root / name
    path.write_bytes(path.read_bytes()[:keep])
    assert f"{path}: this checkpoint is damaged" in one_line(root)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_found(root: Path, name: str) -> None:
    write(root, 1, 1.0)
    (root / name).unlink()
    assert f"{root / name}: this checkpoint is damaged" in one_line(root)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "5", "{}", "\xff\xfe", '{"next_round": "x"}'])
def test_a_broken_index_is_found(root: Path, text: str) -> None:
    write(root, 1, 1.0)
    (root / "round-000001" / "checkpoint.json").write_bytes(text.encode("latin-1"))
    assert "checkpoint.json: this checkpoint is damaged" in one_line(root)


@pytest.mark.parametrize("field", ["clients", "server", "identity", "next_round", "seconds", "format"])
@pytest.mark.parametrize("value", [None, [], "x"])
def test_a_wrong_type_in_the_index_is_found(root: Path, field: str, value: Any) -> None:
    write(root, 1, 1.0)
    path = root / "round-000001" / "checkpoint.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: value}))
    assert str(root) in one_line(root)


def test_another_format_is_refused(root: Path) -> None:
    write(root, 1, 1.0)
    path = root / "round-000001" / "checkpoint.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))
    assert "format 99" in one_line(root)


@pytest.mark.parametrize("what", ["specification", "data", "partition"])
def test_another_identity_is_refused_by_name(root: Path, what: str) -> None:
    write(root, 1, 1.0)
    message = one_line(root, IDENTITY | {what: "x" * 64})
    assert f"belongs to another {what}" in message
    assert "x" * 12 in message
    assert IDENTITY[what][:12] in message


@pytest.mark.parametrize("call", range(4))
@pytest.mark.parametrize("half", [True, False])
def test_a_full_disk_leaves_the_last_checkpoint_good(
    root: Path, monkeypatch: pytest.MonkeyPatch, call: int, half: bool
) -> None:
    write(root, 1, 1.0)
    original, calls = files.write_through, []

    def fails(path: Path, content: bytes, flush: bool = True) -> None:
        calls.append(path)
        if len(calls) == call + 1:
            if half:
                path.write_bytes(content[: len(content) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        original(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_through", fails)
        with pytest.raises(OSError, match="No space"):
            write(root, 2, 2.0)
    assert len(calls) == call + 1
    assert read(root) == (1, 1.0, [1.0, 2.0])
    write(root, 2, 2.0)
    assert read(root) == (2, 2.0, [2.0, 3.0])
    assert listing(root) == files_of(2)


def test_a_failed_rename_leaves_the_last_checkpoint_good(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(root, 1, 1.0)

    def fails(path: Path, target: Path) -> Path:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "rename", fails)
        with pytest.raises(OSError, match="Input/output"):
            write(root, 2, 2.0)
    assert read(root) == (1, 1.0, [1.0, 2.0])


def test_write_atomic_keeps_the_old_file_when_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.json"
    files.write_atomic(path, b"old")

    def fails(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "fsync", fails)
        with pytest.raises(OSError, match="No space"):
            files.write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    files.write_atomic(path, b"newer")
    assert path.read_bytes() == b"newer"
    assert [p.name for p in tmp_path.iterdir()] == ["file.json"]


def test_states_on_nodes_and_here_are_told_apart(root: Path) -> None:
    write(root, 1, 1.0)
    assert "on this machine, not on nodes" in one_line(root, IDENTITY | {"states": "nodes"})
    write(root, 1, 1.0, IDENTITY | {"states": "nodes"})
    assert "on nodes, not on this machine" in one_line(root, IDENTITY)


@pytest.mark.parametrize(
    "changed",
    [
        {"clients": {}},  # who is not named would begin anew
        {"next_round": 2},
        {"seconds": 7.5},
        {"records": "x"},
        {"identity": IDENTITY | {"more": "x"}},
        {"more": 1},
    ],
)
def test_an_index_that_was_changed_is_found(root: Path, changed: dict[str, Any]) -> None:
    write(root, 1, 1.0)
    path = root / "round-000001" / "checkpoint.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    assert f"{path}: this checkpoint is damaged (its checksum differs)" in one_line(root)
    assert set(files_of(1)) <= set(listing(root))


def test_an_index_without_a_checksum_is_refused(root: Path) -> None:
    write(root, 1, 1.0)
    path = root / "round-000001" / "checkpoint.json"
    index = json.loads(path.read_text())
    del index["sha256"]
    path.write_text(json.dumps(index))
    assert "its checksum differs" in one_line(root)
    path.write_text(json.dumps(index | {"format": 2}))
    assert "format 2 is not supported; this version reads format 3" in one_line(root)


def test_what_the_records_were_is_remembered(root: Path) -> None:
    save(root, 1, {}, Shelf(root), IDENTITY, records="r" * 64)  # type: ignore[arg-type]
    found = load(root, Shelf(root), IDENTITY)  # type: ignore[arg-type]
    assert found
    assert found.records == "r" * 64
