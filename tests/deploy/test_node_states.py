"""States on a node: every round can be played again from what the server's checkpoint leads back to."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from asfedbridge.core.errors import BadInput
from asfedbridge.core.payload import Payload
from asfedbridge.core.task import Round
from asfedbridge.engines.host import ClientHost
from asfedbridge.methods.standalone import Standalone

pytest.importorskip("flwr")
from asfedbridge.deploy.node_states import NodeStates

RUN = "0123456789abcdef"


@pytest.fixture
def turn(pair: Any, tmp_path: Path) -> Any:
    """A turn as a new process would take it: nothing in memory, only the folder."""

    def take(
        index: int, since: int, safe: int, keep: bool = True, allow_rollback: bool = False, history: int = 0
    ) -> Payload:
        method = Standalone()
        states = NodeStates(tmp_path, RUN, 0, allow_rollback)
        with states.held():
            host = ClientHost(method, pair.task, pair.clients[:1], pair.shards[:1], capacity=1, folder=states.folder)
            states.go_to(host, index, since)
            host.turn(0, {}, Round(index, 9))
            if keep:
                states.keep(host, index, safe, history)
            return host.state(0)

    return take


def same(one: Payload, other: Payload) -> bool:
    return one.keys() == other.keys() and all(one[name].equal(other[name]) for name in one)


def kept(folder: Path) -> list[int]:
    files = sorted((folder / RUN / "client-0000").glob("client-*"))
    index = json.loads((folder / RUN / "client-0000" / "states.json").read_text())["states"]
    assert [f.name for f in files] == sorted(index)
    return [int(f.name[18:24]) for f in files]


def test_rounds_follow_each_other_and_can_be_played_again(turn: Any, tmp_path: Path) -> None:
    first = turn(0, since=0, safe=0)
    second = turn(1, since=1, safe=1)
    assert kept(tmp_path) == [1, 2]  # before and after its last turn
    assert same(turn(1, since=1, safe=1), second)  # the server was killed before its checkpoint
    third = turn(2, since=2, safe=2)
    assert kept(tmp_path) == [2, 3]
    assert same(turn(2, since=2, safe=2), third)
    assert not same(first, second)


def test_a_server_that_lost_its_checkpoint_is_not_obeyed(turn: Any, tmp_path: Path) -> None:
    """Unless the node's operator says so; then the last state is kept aside."""
    states = [turn(i, since=i, safe=i) for i in range(4)]
    content = {file.name: file.read_bytes() for file in (tmp_path / RUN / "client-0000").glob("client-*")}
    for index, since in ((0, 0), (2, 0)):
        with pytest.raises(
            BadInput, match=f"refuses to go back to round {index}.*checkpoint of round 3.*allow-rollback"
        ):
            turn(index, since=since, safe=0)
    assert kept(tmp_path) == [3, 4]
    assert same(turn(3, since=3, safe=2), states[3])  # what it says of its checkpoint now does not matter
    with pytest.raises(BadInput, match="refuses to go back"):
        turn(2, since=2, safe=2)
    assert same(turn(0, since=0, safe=0, allow_rollback=True), states[0])
    assert kept(tmp_path) == [1]
    (aside,) = (tmp_path / RUN / "client-0000" / "aside").iterdir()
    assert aside.read_bytes() == content["client-0000-round-000004.safetensors"]
    assert same(turn(1, since=1, safe=1), states[1])  # from there on as ever
    with pytest.raises(BadInput, match="checkpoint of round 1"):
        turn(0, since=0, safe=0)


def test_what_the_server_may_fall_back_to_is_kept(turn: Any, tmp_path: Path) -> None:
    states = [turn(i, since=i, safe=0) for i in range(3)]  # a checkpoint every so many rounds
    assert kept(tmp_path) == [1, 2, 3]
    assert same(turn(1, since=1, safe=1), states[1])
    assert kept(tmp_path) == [1, 2]


def test_what_somebody_may_go_back_to_is_kept(turn: Any, tmp_path: Path) -> None:
    for index in range(5):
        turn(index, since=index, safe=index, history=2)
    assert kept(tmp_path) == [2, 3, 4, 5]


def test_a_turn_that_the_server_never_heard_of_counts(turn: Any, tmp_path: Path) -> None:
    turn(0, since=0, safe=0)
    turn(1, since=1, safe=1)  # its reply is lost
    turn(4, since=1, safe=4)
    assert kept(tmp_path) == [2, 5]


def test_a_turn_that_was_killed_changes_nothing(turn: Any, tmp_path: Path) -> None:
    turn(0, since=0, safe=0)
    turn(1, since=1, safe=1, keep=False)
    assert kept(tmp_path) == [1]
    turn(1, since=1, safe=1)
    assert kept(tmp_path) == [1, 2]


def test_a_round_that_does_not_fit_costs_nothing(turn: Any, tmp_path: Path) -> None:
    """The server's folder may have come from an old backup: the states are there when it has the right one."""
    states = [turn(i, since=i, safe=i) for i in range(4)]
    assert kept(tmp_path) == [3, 4]
    with pytest.raises(BadInput, match="no state for round 1"):
        turn(1, since=1, safe=1, allow_rollback=True)
    assert kept(tmp_path) == [3, 4]
    assert same(turn(3, since=3, safe=3), states[3])


def test_a_state_that_is_missing_is_said(turn: Any, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="holds none; restore the folder"):
        turn(5, since=4, safe=5)
    turn(0, since=0, safe=0)
    with pytest.raises(BadInput, match="no state for round 5: the server has its uploads up to round 3") as error:
        turn(5, since=4, safe=5)
    assert "\n" not in str(error.value)


def test_damage_is_said(turn: Any, tmp_path: Path) -> None:
    turn(0, since=0, safe=0)
    (file,) = (tmp_path / RUN / "client-0000").glob("client-*")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(BadInput, match="checksum differs"):
        turn(1, since=1, safe=1)
    (tmp_path / RUN / "client-0000" / "states.json").write_text('{"committed": 0, "states": {"../../x": "0"}}')
    with pytest.raises(BadInput, match="names unknown files"):
        turn(1, since=1, safe=1)
    (tmp_path / RUN / "client-0000" / "states.json").write_text('{"committed": -1, "states": {}}')
    with pytest.raises(BadInput, match="committed is not a round"):
        turn(1, since=1, safe=1)


@pytest.mark.parametrize("run", ["../../etc", "", "a/b", "0123456\n89", "x" * 20])
def test_a_run_cannot_choose_its_folder(tmp_path: Path, run: str) -> None:
    with pytest.raises(BadInput, match="not a valid name of a folder"):
        NodeStates(tmp_path, run, 0)
    assert list(tmp_path.iterdir()) == []


def test_two_turns_at_once_are_refused(tmp_path: Path) -> None:
    with (
        NodeStates(tmp_path, RUN, 0).held(),
        pytest.raises(BadInput, match="busy"),
        NodeStates(tmp_path, RUN, 0).held(),
    ):
        pass


def test_states_are_the_users_alone(tmp_path: Path) -> None:
    assert NodeStates(tmp_path, RUN, 0).folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("name", ["", "states.json", ".lock", "client-0000-round-000001.safetensors"])
def test_links_are_not_followed(turn: Any, tmp_path: Path, name: str) -> None:
    turn(0, 0, 0)
    place = tmp_path / RUN / "client-0000"
    path = place / name if name else place
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadInput, match=f"{re.escape(str(path))}: is a symbolic link, expected a f"):
        turn(1, 1, 1)
    assert (tmp_path / "elsewhere").exists()


def test_foreign_files_stay(turn: Any, tmp_path: Path) -> None:
    turn(0, 0, 0)
    mine = tmp_path / RUN / "client-0000" / "client-notes.txt"
    mine.write_text("dear")
    turn(1, 1, 1)
    turn(2, 2, 2)
    assert mine.read_text() == "dear"


def test_an_index_that_is_nested_too_deeply_is_damaged(turn: Any, tmp_path: Path) -> None:
    turn(0, 0, 0)
    (index,) = tmp_path.rglob("states.json")
    index.write_text("[" * 100_000 + "]" * 100_000)
    with pytest.raises(BadInput, match=r"states\.json: this checkpoint is damaged"):
        turn(1, 1, 0)
