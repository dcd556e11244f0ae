"""The server's side and the nodes' side in one process: same bits, every fault named, every liar refused."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")
from flwr.app import ConfigRecord, Error, Message
from tests.deploy.grid import InProcessGrid, copied

from asfedbridge.core.errors import TooFewClients
from asfedbridge.core.method import METHODS, Method
from asfedbridge.core.task import Upload
from asfedbridge.deploy import node_registry, polling
from asfedbridge.deploy.engine import FlowerEngine
from asfedbridge.deploy.messages import LINGER
from asfedbridge.deploy.node import Site, make_client_app
from asfedbridge.deploy.node_registry import Roster
from asfedbridge.engines.failures import Event, Tolerance
from asfedbridge.engines.host import ClientHost
from asfedbridge.engines.local import LocalEngine
from asfedbridge.engines.loop import federate
from asfedbridge.methods.as_fedbridge import ASFedBridge
from asfedbridge.methods.fedavg import FedAvg
from asfedbridge.runs.recipes import quickstart
from asfedbridge.runs.setting import Setting, prepare
from asfedbridge.runs.spec import apply_overrides

RUN = "fedcba9876543210"
IDENTITY = {"specification": "s", "data": "d"}
FLEET = {
    "fleet": "2*resnet18@0.125:ann,1*resnet18@0.125:snn",
    "T": 2,
    "train_per_class": 2,
    "test_per_class": 1,
    "batch_size": 8,
    "feature_dim": 16,
    "partition": "iid",
    "rounds": 2,
}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "POLL", 0.0)
    monkeypatch.setattr(node_registry, "ASK_AFTER", 0.0)
    monkeypatch.setattr(node_registry, "GRACE", 0.2)
    monkeypatch.setattr(node_registry, "PAUSE", 0.0)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    return prepare(apply_overrides(quickstart(), FLEET), Path(tmp_path_factory.mktemp("data")))


class Stage:
    """A fleet of nodes and all that was told."""

    def __init__(self, setting: Setting, method: Method, folder: Path) -> None:
        self.setting, self.method, self.folder = setting, method, folder
        self.told: list[tuple[int, Event]] = []
        self.metrics: dict[tuple[int, int], dict[str, float]] = {}
        self.grid = InProcessGrid({100 - c.id: self.node(c.id) for c in setting.clients})
        self.tolerance = Tolerance(lambda rnd, event: self.told.append((rnd.index, event)), 1, pause=0.0)

    def node(self, client: int, **changes: Any) -> tuple[Any, dict[str, Any]]:
        info, shard = self.setting.clients[client], self.setting.shards[client]
        site = Site(self.method, self.setting.task, info, shard, self.folder / str(client), IDENTITY)
        return make_client_app(lambda context: dataclasses.replace(site, **changes)), {"client-id": client}

    def seat(self) -> FlowerEngine:
        found = Roster(self.grid, self.setting.clients, IDENTITY)
        found.gather(0.0, lambda event: self.told.append((-1, event)))
        return FlowerEngine(self.grid, found, self.method, self.setting.task, self.tolerance, RUN, 0.3)

    def play(self, engine: Any, after: Any = None, **options: Any) -> Any:
        def after_round(rnd: Any, clients: Any, sent: Any, ups: Mapping[int, Upload], state: Any) -> None:
            for i, up in ups.items():
                self.metrics[rnd.index, i] = {k: v for k, v in up.metrics.items() if k != "seconds"}
            if after:
                after(rnd, state)

        return federate(self.method, self.setting.task, engine, after_round, **options)

    def state(self, client: int, next_round: int) -> Any:
        import safetensors.torch

        (file,) = self.folder.glob(f"{client}/{RUN}/client-*/client-*-round-{next_round:06d}.safetensors")
        return safetensors.torch.load_file(file)


def same(one: Any, other: Any) -> bool:
    return one.keys() == other.keys() and all(one[k].numpy().tobytes() == other[k].numpy().tobytes() for k in one)


def make_method(name: str) -> Method:
    fields = {f.name for f in dataclasses.fields(METHODS[name])}
    return METHODS[name](**({"bridge_width": 0.34} if "bridge_width" in fields else {}))


def compare_with_local(setting: Setting, name: str, folder: Path) -> None:
    stage = Stage(setting, make_method(name), folder)
    server = stage.play(stage.seat(), tolerance=stage.tolerance)
    over = dict(stage.metrics)
    local = LocalEngine(stage.method, setting.task, setting.clients, setting.shards)
    states: dict[int, Any] = {}

    def look(rnd: Any, state: Any) -> None:
        if rnd.index == rnd.total - 1:
            states.update({c.id: local.client_state(c.id) for c in setting.clients})

    assert same(server, stage.play(local, look))
    assert over == stage.metrics
    assert all(same(stage.state(i, 2), states[i]) for i in states)
    assert stage.told == []


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"centralized"}))
def test_every_method_has_the_bits_of_local(three: Setting, tmp_path: Path, name: str) -> None:
    compare_with_local(three, name, tmp_path)


@pytest.mark.parametrize("name", ["as-fedbridge", "fedproto"])
@pytest.mark.parametrize("codec", ["fp16", "int8"])
def test_rounded_payloads_have_the_bits_of_local(three: Setting, tmp_path: Path, codec: Any, name: str) -> None:
    task = dataclasses.replace(three.task, compress=codec)
    compare_with_local(dataclasses.replace(three, task=task), name, tmp_path)


def test_one_message_each_way_with_a_time_to_live_and_one_array(three: Setting, tmp_path: Path) -> None:
    stage = Stage(three, FedAvg(), tmp_path)
    engine = stage.seat()
    stage.play(engine, tolerance=stage.tolerance)
    trains = [m for _, m in stage.grid.sent if m.metadata.message_type == "train"]
    assert len(trains) == 3 * 3
    assert all(m.metadata.ttl <= 0.3 + LINGER and len(m.content["payload"]) == 1 for m in trains)


def test_a_run_goes_on_from_a_checkpoint(three: Setting, tmp_path: Path) -> None:
    """The server dies in round 1 after the nodes trained: the round is played again, all bits are the same."""
    stage = Stage(three, make_method("as-fedbridge"), tmp_path / "whole")
    expected = stage.play(stage.seat(), tolerance=stage.tolerance)
    metrics = dict(stage.metrics)
    again = Stage(three, stage.method, tmp_path / "again")
    saved: dict[str, Any] = {}
    first = again.seat()

    def after(rnd: Any, state: Any) -> None:
        if rnd.index == 0:
            saved.update(states=first.save(), state=state)
        else:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        again.play(first, after, tolerance=again.tolerance)
    second = again.seat()
    second.restore(saved["states"])
    assert same(again.play(second, start=1, state=saved["state"], tolerance=again.tolerance), expected)
    assert again.metrics == metrics
    assert same(again.state(0, 2), stage.state(0, 2))


# Faults


def spoil(stage: Stage, client: int, rounds: set[int], change: Any) -> None:
    def meddle(node: int, message: Message, reply: Message) -> Message | None:
        train = message.metadata.message_type == "train"
        if train and node == 100 - client and message.content["about"]["round"] in rounds:
            return change(message, reply)
        return reply

    stage.grid.meddle = meddle


def set_field(record: str, name: str, value: Any) -> Any:
    def change(message: Message, reply: Message) -> Message:
        reply.content[record][name] = value
        return reply

    return change


def with_numbers(value: float) -> Any:
    def change(message: Message, reply: Message) -> Message:
        array = reply.content["payload"]["flat"]
        array.data = array.data[:-4] + np.float32(value).tobytes()
        return reply

    return change


@pytest.mark.parametrize(
    ("change", "what", "reason"),
    [
        (lambda m, r: None, "timeout", "no reply in 0.3 seconds"),
        (lambda m, r: Message(Error(2, "boom\n\x1b[31m"), reply_to=m), "error", "Flower's error 2: boom"),
        (lambda m, r: Message(Error(5, None), reply_to=m), "lost", "Flower's error 5"),
        (lambda m, r: Message(Error(8, "stopped"), reply_to=m), "lost", "stopped"),
        (lambda m, r: Message(Error(3, "ttl"), reply_to=m), "timeout", "ttl"),
        (with_numbers(float("nan")), "refused", "NaN or infinity"),
        (with_numbers(float("inf")), "refused", "NaN or infinity"),
        (set_field("about", "train", 10**12), "refused", "'train': 1000000000000"),
        (set_field("about", "train", -5), "refused", "'train': -5"),
        (set_field("about", "round", 0), "refused", "'round': 0"),
        (set_field("about", "client", 2), "refused", "'client': 2"),
        (set_field("metrics", "uplink_bytes", 1), "refused", "uplink_bytes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_fault_is_named_and_the_others_go_on(
    three: Setting, tmp_path: Path, change: Any, what: str, reason: str
) -> None:
    stage = Stage(three, FedAvg(), tmp_path)
    spoil(stage, 1, {1}, change)
    stage.play(stage.seat(), tolerance=stage.tolerance)
    index, event = stage.told[0]
    assert (index, event.what, event.client) == (1, what, 1)
    assert reason in event.reason
    assert event.reason.isprintable()
    assert sorted(i for r, i in stage.metrics if r == 1) == [0, 2]
    assert sorted(i for r, i in stage.metrics if r == 2) == [0, 1, 2]
    came_back = [e.what for _, e in stage.told[1:]]
    then = {"timeout": ["returned"], "lost": ["returned"], "refused": ["quarantined"]}  # for one round
    assert came_back == then.get(what, [])


def test_what_a_client_says_of_its_failure_is_told(three: Setting, tmp_path: Path, monkeypatch: Any) -> None:
    stage = Stage(three, FedAvg(), tmp_path)
    turn = ClientHost.turn

    def fail(self: ClientHost, client: int, down: Any, rnd: Any) -> Upload:
        if client == 2 and rnd.index == 0:
            raise RuntimeError("out of\nmemory " + "x" * 1000)
        return turn(self, client, down, rnd)

    monkeypatch.setattr(ClientHost, "turn", fail)
    stage.play(stage.seat(), tolerance=stage.tolerance)
    ((_, event),) = stage.told
    assert (event.what, event.client) == ("error", 2)
    assert event.reason.startswith("RuntimeError: out of memory xxx")
    assert len(event.reason) <= 320


def test_absent_clients_join_and_return_with_their_state(three: Setting, tmp_path: Path) -> None:
    method = ASFedBridge(bridge_width=0.34)
    stage = Stage(dataclasses.replace(three, task=dataclasses.replace(three.task, rounds=4)), method, tmp_path)
    late = stage.grid.nodes.pop(100)  # client 0 joins in round 2
    before: dict[str, Any] = {}

    def after(rnd: Any, state: Any) -> None:
        if rnd.index == 0:
            before["node"] = stage.grid.nodes.pop(99)  # client 1 is away in round 1
            before["state"] = stage.state(1, 1)
        if rnd.index == 1:
            stage.grid.nodes[100] = late
            stage.grid.nodes[55] = before["node"]  # under a new number, as a SuperNode without keys
            assert same(stage.state(1, 1), before["state"])

    stage.play(stage.seat(), after, tolerance=stage.tolerance)
    assert [(r, e.what, e.client) for r, e in stage.told] == [
        (0, "absent", 0), (1, "absent", 0), (1, "absent", 1), (2, "joined", 0), (2, "returned", 1),
    ]  # fmt: skip
    assert sorted(i for r, i in stage.metrics if r == 2) == [0, 1, 2]


def test_a_node_at_work_for_another_server_is_met_when_it_is_free(three: Setting, tmp_path: Path) -> None:
    """It was asked once; its answer comes in a later round, and nobody waits for it meanwhile."""
    stage = Stage(dataclasses.replace(three, task=dataclasses.replace(three.task, rounds=4)), FedAvg(), tmp_path)
    held: dict[str, Message] = {}

    def meddle(node: int, message: Message, reply: Message) -> Message | None:
        if node == 99 and message.metadata.message_type == "query":
            held[message.metadata.message_id] = reply
            return None
        return reply

    def after(rnd: Any, state: Any) -> None:
        if rnd.index == 1:
            (number,) = held
            held[number].metadata.__dict__["_reply_to_message_id"] = number
            stage.grid._replies |= held

    stage.grid.meddle = meddle
    stage.play(stage.seat(), after, tolerance=stage.tolerance)
    assert [(r, e.what, e.client) for r, e in stage.told] == [(0, "absent", 1), (1, "absent", 1), (2, "joined", 1)]
    assert len(held) == 1


def test_who_answered_badly_has_to_say_again_who_it_is(three: Setting, tmp_path: Path) -> None:
    """A node was restarted as another client, under the same key: both are where they belong in the next round."""
    stage = Stage(dataclasses.replace(three, task=dataclasses.replace(three.task, rounds=3)), FedAvg(), tmp_path)

    def after(rnd: Any, state: Any) -> None:
        if rnd.index == 0:
            nodes = stage.grid.nodes
            nodes[99], nodes[100] = nodes[100], nodes[99]

    stage.play(stage.seat(), after, tolerance=stage.tolerance)
    assert [(r, e.what, e.client) for r, e in stage.told] == [(1, "error", 0), (1, "error", 1)]
    assert sorted(i for r, i in stage.metrics if r == 2) == [0, 1, 2]


def test_no_other_node_takes_the_place_of_a_client_whose_turn_failed(three: Setting, tmp_path: Path) -> None:
    """A failed turn costs a client its seat until it says again who it is. Meanwhile another node claims to be it."""
    stage = Stage(dataclasses.replace(three, task=dataclasses.replace(three.task, rounds=3)), FedAvg(), tmp_path)
    stage.grid.nodes[5] = stage.node(1)  # its own data, the number of client 1
    thief: list[str] = []

    def meddle(node: int, message: Message, reply: Message) -> Message:
        kind = message.metadata.message_type
        if node == 5:
            thief.append(kind)
        if (node, kind) == (99, "train") and message.content["about"]["round"] == 0:  # type: ignore[index]
            return Message(Error(2, "out of memory"), reply_to=message)
        return reply

    stage.grid.meddle = meddle
    late = stage.grid.nodes.pop(5)
    engine = stage.seat()
    stage.grid.nodes[5] = late
    stage.play(engine, tolerance=stage.tolerance)
    assert "train" not in thief
    assert sorted(r for r, i in stage.metrics if i == 1) == [1, 2, 3]
    assert [(e.what, e.client) for _, e in stage.told if e.what == "refused"] == [("refused", None)]
    assert engine._roster.seats[1] == 99
    del stage.grid.nodes[99]  # once its node is gone, another one may take its place
    engine._roster.meet(lambda event: None)
    assert engine._roster.seats[1] == 5


def test_replies_that_come_twice_count_once(three: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    once, twice = (Stage(three, FedAvg(), tmp_path / name) for name in ("once", "twice"))
    pull = twice.grid.pull_messages
    monkeypatch.setattr(twice.grid, "pull_messages", lambda ids: [m for m in pull(ids) for _ in range(2)])
    states = [stage.play(stage.seat(), tolerance=stage.tolerance) for stage in (once, twice)]
    assert same(*states)
    assert once.metrics == twice.metrics
    assert twice.told == []


def test_the_reply_of_another_round_is_refused(three: Setting, tmp_path: Path) -> None:
    """Client 1 sends the reply of the first round again and again, to the closing visit too."""
    stage = Stage(three, FedAvg(), tmp_path)
    first: list[Any] = []

    def repeat(node: int, message: Message, reply: Message) -> Message:
        if node != 99 or message.metadata.message_type != "train":
            return reply
        first.append(copied(reply.content))
        return Message(copied(first[0]), reply_to=message)

    stage.grid.meddle = repeat
    stage.play(stage.seat(), tolerance=stage.tolerance)
    refused = [(r, e.client) for r, e in stage.told if e.what == "refused"]
    assert refused == [(1, 1), (2, 1)]
    assert {r for r, i in stage.metrics if i == 1} == {0}


@pytest.mark.parametrize(
    "changed",
    [{"client": 2}, {"kind": "bnn"}, {"model": "vgg9@1"}, {"train": 10**8}, {"test": 1}, {"shape": [9, 1, 8, 1]}],
)
def test_who_is_another_one_after_the_first_round_gets_no_seat(three: Setting, tmp_path: Path, changed: Any) -> None:
    stage = Stage(three, FedAvg(), tmp_path)

    def turn_coat(node: int, message: Message, reply: Message) -> Message:
        if node == 99 and message.metadata.message_type == "query" and len(stage.grid.sent) > 3:
            reply.content["about"].update(changed)  # type: ignore[union-attr]
        elif node == 99 and message.metadata.message_type == "train":
            return Message(Error(2, "say again who you are"), reply_to=message)
        return reply

    stage.grid.meddle = turn_coat
    stage.play(stage.seat(), tolerance=stage.tolerance)
    assert {i for r, i in stage.metrics} == {0, 2}
    assert {r for r, i in stage.metrics} == {0, 1, 2}
    assert any(e.what == "refused" and e.client is None for _, e in stage.told)


def test_a_lost_state_folder_is_said(three: Setting, tmp_path: Path) -> None:
    stage = Stage(three, FedAvg(), tmp_path)

    def after(rnd: Any, state: Any) -> None:
        if rnd.index == 0:
            (tmp_path / "1").rename(tmp_path / "elsewhere")

    stage.play(stage.seat(), after, tolerance=stage.tolerance)
    assert "no state for round 1" in stage.told[0][1].reason


def test_too_few_end_the_run(three: Setting, tmp_path: Path) -> None:
    stage = Stage(three, FedAvg(), tmp_path)
    stage.grid.nodes.pop(99)
    tolerance = dataclasses.replace(stage.tolerance, min_clients=3)
    with pytest.raises(TooFewClients, match=r"2 of 3 clients sent a usable upload, 3 are needed \(client 1: absent\)"):
        stage.play(stage.seat(), tolerance=tolerance)


# Who may sit down


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"identity": IDENTITY | {"data": "other"}}, "its data differs from the server's"),
        ({"identity": {}}, "its specification differs from the server's"),
        ({"info": ("id", 7)}, "client-id=7, not one of this run"),
        ({"info": ("id", -1)}, "client-id=-1, not one of"),
        ({"info": ("id", 0)}, "client-id=0, which another node has already"),
        ({"info": ("kind", "snn")}, "its kind is snn, not ann"),
        ({"info": ("model", "vgg9")}, "its model is vgg9@0.125"),
        ({"info": ("train_size", 10**12)}, "train=1000000000000 is not a whole number"),
        ({"info": ("train_size", -3)}, "train=-3"),
        ({"info": ("train_size", 5000)}, "5000"),
    ],
)
def test_who_is_wrong_gets_no_seat(three: Setting, tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    stage = Stage(three, FedAvg(), tmp_path)
    if "info" in changes:
        name, value = changes["info"]
        changes = {"info": dataclasses.replace(three.clients[1], **{name: value})}
    del stage.grid.nodes[99]
    stage.grid.nodes[199] = stage.node(1, **changes)
    found = Roster(stage.grid, three.clients, IDENTITY)
    events: list[Event] = []
    for _ in range(3):
        found.meet(events.append)
    assert [e.what for e in events] == ["refused"]  # told once, not every round
    assert reason in events[0].reason
    assert found.seats == {0: 100, 2: 98}


def test_an_answer_of_nonsense_gets_no_seat(three: Setting, tmp_path: Path) -> None:
    stage = Stage(three, FedAvg(), tmp_path)

    def meddle(node: int, message: Message, reply: Message) -> Message:
        if node == 99:
            reply.content["about"] = ConfigRecord({"client": "1", "shape": ["x"]})
        return reply

    stage.grid.meddle = meddle
    stage.seat()
    assert "client-id=1, not one of this run" in stage.told[0][1].reason


def test_who_comes_first_does_not_say_what_the_data_are_where_the_server_knows(three: Setting, tmp_path: Path) -> None:
    stage = Stage(three, FedAvg(), tmp_path)
    false = dataclasses.replace(three.task, classes=11)
    stage.grid.nodes[98] = stage.node(2, task=false)  # its number is the lowest: it is asked first
    shape = (10, 1, three.task.image_size, 1)
    found = Roster(stage.grid, three.clients, IDENTITY, shape)
    events: list[Event] = []
    found.meet(events.append)
    assert found.seats == {0: 100, 1: 99}
    assert found.shape == shape
    assert "its shape is [11, 1, 8, 1], the others have [10, 1, 8, 1]" in events[0].reason


@pytest.mark.parametrize("liar", [0, 1, 2])
def test_most_nodes_say_what_the_data_are_where_only_they_know(three: Setting, tmp_path: Path, liar: int) -> None:
    stage = Stage(three, FedAvg(), tmp_path)
    unknown = [dataclasses.replace(c, train_size=0, test_size=0) for c in three.clients]
    honest = stage.grid.nodes[100 - liar]
    false = dataclasses.replace(three.clients[liar], train_size=10**8)
    stage.grid.nodes[100 - liar] = stage.node(liar, info=false, task=dataclasses.replace(three.task, classes=10**5))
    found = Roster(stage.grid, unknown, IDENTITY)
    events: list[Event] = []
    found.gather(0.0, events.append)
    assert found.shape is None
    assert len(found.seats) == 3
    found.agree(events.append)
    assert found.shape == (10, 1, three.task.image_size, 1)
    assert set(found.seats) == {0, 1, 2} - {liar}
    (event,) = events
    assert f"client {liar}: its shape is [100000, 1, 8, 1], the others have [10, 1, 8, 1]" in event.reason
    assert found.infos[liar] == unknown[liar]  # nothing of what it said is left
    stage.grid.nodes[200] = honest
    del stage.grid.nodes[100 - liar]
    found.meet(events.append)
    assert found.infos[liar] == three.clients[liar]


def test_sizes_are_filled_in_where_only_nodes_know_them(three: Setting, tmp_path: Path) -> None:
    stage = Stage(three, FedAvg(), tmp_path)
    unknown = [dataclasses.replace(c, train_size=0, test_size=0) for c in three.clients]
    found = Roster(stage.grid, unknown, {})
    found.gather(0.0, lambda event: None)
    found.agree(lambda event: None)
    assert list(found.infos.values()) == three.clients
    assert found.shape == (10, 1, three.task.image_size, 1)
