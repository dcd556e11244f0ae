"""Bells between real processes: who waits is woken, and a ring never blocks."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from asfedbridge.deploy.bells import Bell, ring
from asfedbridge.deploy.sockets import FOLDER

LONG = 600.0


@pytest.fixture
def folder(monkeypatch: Any) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as place:  # tmp_path is too long for sockets
        monkeypatch.setenv(FOLDER, place)
        yield Path(place)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["node-1", "node-*"])
def test_a_ring_from_another_process_ends_the_wait(folder: Path, name: str) -> None:
    bell = Bell("node-1")
    assert bell
    child = os.fork()
    if child == 0:
        ring(name)
        os._exit(0)
    bell.wait(LONG)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.timeout(60)
def test_a_ring_before_the_wait_counts_once(folder: Path) -> None:
    bell, other = Bell("a"), Bell("b")
    for _ in range(10_000):  # more than the socket holds
        ring("a")
    ring("nobody")
    bell.wait(LONG)
    bell.wait(0.0)
    ring("b")
    other.wait(LONG)


@pytest.mark.timeout(60)
def test_a_program_that_is_started_again_has_its_bell(folder: Path) -> None:
    Bell("a")
    bell = Bell("a")
    ring("a")
    bell.wait(LONG)


def test_without_a_folder_there_is_nothing_to_ring(monkeypatch: Any) -> None:
    monkeypatch.delenv(FOLDER, raising=False)
    bell = Bell("a")
    assert not bell
    ring("a")
    bell.wait(0.0)
