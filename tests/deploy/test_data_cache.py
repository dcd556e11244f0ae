"""The cache between real forks, as a node's task server makes them."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from asfedbridge.deploy.data_cache import MAX_REQUEST, DataCache, Request


def in_fork(work: Callable[[], int]) -> int:
    """The exit code of ``work`` in a forked process."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            code = work()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Source:
    """Data on disk that count how often they are read, in whatever process."""

    def __init__(self, log: Path) -> None:
        self.log = log

    def read(self, request: Request) -> str:
        with self.log.open("a") as log:
            log.write(f"{request['run']}\n")
        if request["run"] == 13:
            raise ValueError("damaged")
        return f"data of {request['run']}"

    def count(self) -> int:
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source(tmp_path / "reads")


def test_data_are_read_once_in_the_parent_and_inherited(source: Source) -> None:
    cache = DataCache(source.read)
    found = []
    for _ in range(4):
        cache.refresh()
        found.append(in_fork(lambda: int(cache.find({"run": 1}) == "data of 1")))
    assert found == [0, 1, 1, 1]
    assert source.count() == 1


def test_another_run_replaces_the_data(source: Source) -> None:
    cache = DataCache(source.read)
    for run, expected in [(1, 0), (1, 1), (2, 0), (2, 1), (1, 0), (1, 1)]:
        cache.refresh()
        assert in_fork(lambda run=run: int(cache.find({"run": run}) == f"data of {run}")) == expected  # type: ignore[misc]
    assert source.count() == 3


def test_data_that_cannot_be_read_are_left_to_the_turn(source: Source) -> None:
    cache = DataCache(source.read)
    for _ in range(2):
        cache.refresh()
        assert in_fork(lambda: int(cache.find({"run": 13}) is None)) == 1
    cache.refresh()
    in_fork(lambda: int(cache.find({"run": 1}) is None))
    cache.refresh()
    assert in_fork(lambda: int(cache.find({"run": 1}) == "data of 1")) == 1


def test_requests_that_no_pipe_takes_whole_are_not_sent(source: Source) -> None:
    cache = DataCache(source.read)
    assert cache.find({"run": 1, "file": "x" * MAX_REQUEST}) is None
    cache.refresh()
    assert source.count() == 0


def test_a_full_pipe_does_not_block(source: Source) -> None:
    cache = DataCache(source.read)
    for number in range(200):
        cache.find({"run": 1, "file": "x" * 3000, "number": number})
    cache.refresh()
    assert source.count() == 1
