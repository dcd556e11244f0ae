"""A node's turns in one process: real forks, which are stopped and killed."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from asfedbridge.deploy.processes import fork
from asfedbridge.deploy.turn_process import TurnProcess

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
LONG = 600.0


def wait_for(condition: Callable[[], Any], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def gone(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


class Node:
    """A task server's turns. A turn writes its token and its process; some tokens misbehave."""

    def __init__(self, log: Path, idle: float = LONG, patience: float = LONG) -> None:
        self.log, self.idle = log, idle
        self.turns = TurnProcess(self.take, patience)

    def take(self, token: str) -> float:
        with self.log.open("a") as log:
            log.write(f"{token} {os.getpid()}\n")
        if token == "hang":
            time.sleep(LONG)
        if token == "raise":
            raise ValueError
        return 0.0 if token == "fail" else self.idle

    def told(self) -> list[tuple[str, int]]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [(token, int(process)) for token, process in map(str.split, lines)]

    def do(self, run: int, token: str) -> int:
        """Start a turn and return its process."""
        before = len(self.told())
        self.turns.start(run, token)
        wait_for(lambda: len(self.told()) > before)
        (turn,) = self.told()[before:]
        assert turn[0] == token
        return turn[1]


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    made: list[Node] = []

    def make(**options: Any) -> Node:
        made.append(Node(tmp_path / "turns", **options))
        return made[-1]

    yield make
    for node in made:
        node.turns.end()
        for process in {process for _, process in node.told()}:
            if not gone(process):
                os.kill(process, signal.SIGKILL)
                os.waitpid(process, 0)


def test_turns_of_a_run_share_a_process_and_runs_do_not(make_node: Callable[..., Node]) -> None:
    node = make_node()
    first = {node.do(1, token) for token in ("a", "b", "c")}
    second = {node.do(2, token) for token in ("d", "e")}
    assert len(first) == len(second) == 1
    assert os.getpid() not in first | second
    assert not first & second
    wait_for(lambda: gone(*first))
    assert node.do(1, "f") not in first | second


@pytest.mark.parametrize("token", ["fail", "raise"])
def test_a_turn_that_fails_ends_the_process(make_node: Callable[..., Node], token: str) -> None:
    node = make_node()
    first = node.do(1, "a")
    assert node.do(1, token) == first
    second = node.do(1, "b")
    assert second != first
    assert gone(first)
    assert node.do(1, "c") == second


@pytest.mark.parametrize("idle", [True, False])
def test_a_killed_process_is_replaced(make_node: Callable[..., Node], idle: bool) -> None:
    node = make_node()
    first = node.do(1, "a" if idle else "hang")
    os.kill(first, signal.SIGKILL)
    assert node.do(1, "b") != first


def test_a_stopped_process_never_takes_the_turn_that_another_took(make_node: Callable[..., Node]) -> None:
    node = make_node(patience=1.0)
    first = node.do(1, "a")
    wait_for(lambda: node.turns._connection and node.turns._connection.poll())  # it is free
    os.kill(first, signal.SIGSTOP)
    assert node.do(1, "b") != first
    wait_for(lambda: gone(first))
    assert [token for token, _ in node.told()] == ["a", "b"]


def test_a_turn_that_hangs_does_not_stop_the_next_one(make_node: Callable[..., Node]) -> None:
    node = make_node(patience=0.1)
    first = node.do(1, "hang")
    assert node.do(1, "b") != first
    assert not gone(first)  # its timer ends it


def test_an_idle_process_ends_and_is_replaced(make_node: Callable[..., Node]) -> None:
    node = make_node(idle=0.01)
    first = node.do(1, "a")
    wait_for(lambda: gone(first))
    assert node.do(1, "b") != first


def test_it_ends_with_the_task_server(make_node: Callable[..., Node]) -> None:
    node = make_node()

    def serve() -> None:
        node.turns.start(1, "a")
        time.sleep(LONG)

    server = fork(serve)
    wait_for(lambda: node.told())
    ((_, process),) = node.told()
    assert not gone(process)
    os.kill(server, signal.SIGKILL)
    wait_for(lambda: gone(process))


def test_handles_do_not_accumulate(make_node: Callable[..., Node]) -> None:
    node = make_node()
    counts = []
    for run in range(5):
        process = node.do(run, "a")
        counts.append((len(os.listdir("/proc/self/fd")), len(os.listdir(f"/proc/{process}/fd"))))
    assert len(set(counts)) == 1
