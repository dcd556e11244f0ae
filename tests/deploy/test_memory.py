"""A client that stays in memory between turns has the states of one that is read from its files every time."""

import random
from pathlib import Path
from typing import Any

import pytest

from asfedbridge.core.errors import BadInput
from asfedbridge.core.payload import Payload
from asfedbridge.core.task import Round
from asfedbridge.engines.host import ClientHost
from asfedbridge.methods.standalone import Standalone

pytest.importorskip("flwr")
from asfedbridge.deploy.node import Memory, Site
from asfedbridge.deploy.node_states import NodeStates

RUN, OTHER = "0123456789abcdef", "fedcba9876543210"


class Node:
    """Takes turns as `node._turn` does; with a memory, or without one."""

    def __init__(self, pair: Any, root: Path, memory: Memory | None) -> None:
        self.pair, self.root, self.memory = pair, root, memory
        self.restored = 0  # turns that read the client from its file, or built it

    def turn(self, index: int, since: int, safe: int = 0, run: str = RUN, closing: bool = False) -> Payload:
        states = NodeStates(self.root, run, 0, allow_rollback=True)
        memory = self.memory or Memory()
        host = memory.take(states.folder)
        if host is None:
            pair = self.pair
            host = ClientHost(Standalone(), pair.task, pair.clients[:1], pair.shards[:1], folder=states.folder)
        before = host._clients.get(0)
        states.go_to(host, index, since)
        self.restored += before is None or host._clients.get(0) is not before
        host.turn(0, {}, Round(index, index if closing else 99))
        if not closing:
            states.keep(host, index, safe)
        state = host.state(0)
        memory.put(host)
        return state


def same(one: Payload, other: Payload) -> bool:
    return one.keys() == other.keys() and all(one[name].equal(other[name]) for name in one)


def files(root: Path) -> dict[str, bytes]:
    return {str(f.relative_to(root)): f.read_bytes() for f in sorted(root.rglob("*")) if f.is_file()}


@pytest.fixture
def warm(pair: Any, tmp_path: Path) -> Node:
    return Node(pair, tmp_path / "warm", Memory())


@pytest.fixture
def cold(pair: Any, tmp_path: Path) -> Node:
    return Node(pair, tmp_path / "cold", None)


def test_rounds_that_follow_each_other_read_no_file(warm: Node, cold: Node) -> None:
    for index in range(4):
        assert same(warm.turn(index, index, index), cold.turn(index, index, index))
    assert (warm.restored, cold.restored) == (1, 4)
    assert files(warm.root) == files(cold.root)


@pytest.mark.parametrize("draw", range(3))
def test_any_course_of_rounds_gives_the_same_states(warm: Node, cold: Node, draw: int) -> None:
    """Repeated rounds, lost replies, rollbacks, a closing visit and another run between the turns."""
    choose = random.Random(draw)
    next_round = since = 0
    for _ in range(12):
        what = choose.choice(["next", "next", "lost", "again", "back", "closing", "run"])
        if what == "closing":
            assert same(warm.turn(next_round, since, closing=True), cold.turn(next_round, since, closing=True))
            continue
        if what == "run":
            assert same(warm.turn(0, 0, run=OTHER), cold.turn(0, 0, run=OTHER))
            continue
        if what == "again":
            next_round = since = max(0, next_round - 1)
        if what == "back":
            next_round = since = 0
        assert same(warm.turn(next_round, since), cold.turn(next_round, since))
        next_round += 1
        if what != "lost":
            since = next_round
    assert files(warm.root) == files(cold.root)
    assert warm.restored < cold.restored


def test_a_closing_visit_is_not_the_start_of_a_turn(warm: Node, cold: Node) -> None:
    for node in (warm, cold):
        node.turn(0, 0)
        node.turn(1, 1, closing=True)
    assert same(warm.turn(1, 1), cold.turn(1, 1))


@pytest.mark.parametrize("harm", ["damaged", "gone"])
def test_a_state_whose_file_is_damaged_or_gone_is_not_used(warm: Node, harm: str) -> None:
    """In memory it is still there, but a resume could not find it."""
    warm.turn(0, 0)
    (file,) = warm.root.rglob("*.safetensors")
    if harm == "gone":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(BadInput, match="damaged"):
        warm.turn(1, 1)


def test_a_state_that_another_process_wrote_is_read(warm: Node, cold: Node) -> None:
    """The server did not wait for a turn, and asked a new process."""
    warm.turn(0, 0)
    cold.root = warm.root
    later = cold.turn(1, 1)
    assert same(warm.turn(1, 1), later)  # repeated: from the file before it
    cold.turn(2, 2)
    assert same(warm.turn(3, 3), cold.turn(3, 3))


def test_the_site_is_that_of_the_settings(pair: Any, tmp_path: Path) -> None:
    def make(warm: float) -> Site:
        info, shard = pair.clients[0], pair.shards[0]
        return Site(Standalone(), pair.task, info, shard, tmp_path, {}, keep_warm=warm)

    memory = Memory()
    assert memory.patience == 0
    first = memory.open("a", lambda: make(5))
    assert memory.open("a", lambda: make(6)) is first
    assert memory.patience == 5
    host = ClientHost(Standalone(), pair.task, pair.clients[:1], pair.shards[:1], folder=tmp_path)
    memory.put(host)
    assert memory.take(tmp_path / "other") is None
    memory.put(host)
    assert memory.open("b", lambda: make(6)) is not first
    assert memory.take(tmp_path) is None
    memory.forget()
    assert memory.patience == 0
    with pytest.raises(ZeroDivisionError):
        memory.open("c", lambda: make(1 // 0))
    assert memory.patience == 0
