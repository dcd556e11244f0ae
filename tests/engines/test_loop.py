"""Rounds: who takes part, what may cross, what happens in the closing visit."""

import weakref
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from asfedbridge.core import payload
from asfedbridge.core.client import Client
from asfedbridge.core.errors import Diverged, GuardError
from asfedbridge.core.method import Method
from asfedbridge.core.payload import Payload, Shapes
from asfedbridge.core.task import ClientInfo, Round, Task, Upload
from asfedbridge.engines.loop import draw, federate, play_round
from asfedbridge.methods.fedavg import FedAvg
from asfedbridge.methods.standalone import Standalone

TEN = [ClientInfo(i, "ann", "resnet18") for i in range(10)]


@pytest.mark.parametrize(
    ("clients", "participation", "count"),
    [(10, 1.0, 10), (10, 0.5, 5), (10, 0.34, 3), (10, 0.36, 4), (10, 1e-6, 1), (1, 0.1, 1), (3, 0.99, 3), (2, 0.5, 1)],
)
def test_draw_takes_the_asked_share_and_at_least_one(clients: int, participation: float, count: int) -> None:
    for index in range(5):
        chosen = draw(TEN[:clients], participation, 42, Round(index, 5))
        assert len({c.id for c in chosen}) == len(chosen) == count


def test_draw_is_in_id_order_and_a_function_of_seed_and_round() -> None:
    drawn = [[c.id for c in draw(TEN, 0.4, 42, Round(i, 50))] for i in range(50)]
    assert drawn == [[c.id for c in draw(TEN, 0.4, 42, Round(i, 50))] for i in range(50)]
    assert all(ids == sorted(ids) for ids in drawn)
    assert len({tuple(ids) for ids in drawn}) > 30
    assert drawn != [[c.id for c in draw(TEN, 0.4, 43, Round(i, 50))] for i in range(50)]


def test_draw_ignores_the_global_generator() -> None:
    torch.manual_seed(0)
    first = draw(TEN, 0.4, 42, Round(0, 5))
    before = torch.get_rng_state()
    torch.manual_seed(1)
    assert draw(TEN, 0.4, 42, Round(0, 5)) == first
    torch.manual_seed(0)
    assert torch.equal(torch.get_rng_state(), before)


def test_draw_is_fair() -> None:
    times = Counter(c.id for i in range(1000) for c in draw(TEN, 0.3, 7, Round(i, 1000)))
    assert all(230 < times[i] < 370 for i in range(10))


def test_everybody_takes_part_in_the_closing_visit() -> None:
    assert draw(TEN, 0.1, 42, Round(5, 5)) == TEN
    assert len(draw(TEN, 0.1, 42, Round(4, 5))) == 1


@dataclass(frozen=True)
class Leaking(FedAvg):
    """Declares the trainable tensors, sends one more."""

    extra: str = "stages.0.0.norm1.running_mean"

    def client_round(self, client: Client, rnd: Round) -> Upload:
        up = payload.select(client.backbone, buffers=True)
        declared = self.uploads(client.task, client.info)
        return Upload({name: t for name, t in up.items() if name in declared or name == self.extra})


def test_a_private_tensor_that_tries_to_leave_is_named(pair: Any, make_engine: Any) -> None:
    method = Leaking()
    with pytest.raises(GuardError, match=r"upload of client 0 .*'stages.0.0.norm1.running_mean' is private"):
        federate(method, pair.task, make_engine(method), lambda *_: None)


def test_standalone_cannot_send_its_backbone(pair: Any, make_engine: Any) -> None:
    @dataclass(frozen=True)
    class Sending(Standalone):
        def client_round(self, client: Client, rnd: Round) -> Upload:
            return Upload(payload.select(client.backbone))

    with pytest.raises(GuardError, match=r"'stem\.weight' is private"):
        federate(Sending(), pair.task, make_engine(Sending()), lambda *_: None)


class Echo:
    """An engine whose clients reply what they are told to, unseen by any client-side check."""

    def __init__(self, infos: list[ClientInfo], reply: Any) -> None:
        self.infos, self.reply = infos, reply

    def clients(self) -> list[ClientInfo]:
        return self.infos

    def train(self, rnd: Round, downs: Any) -> dict[int, Upload]:
        return {i: self.reply(i, downs[i]) for i in reversed(list(downs))}


@dataclass(frozen=True)
class One(Method):
    """Exchanges one tensor of two numbers; the server takes the mean."""

    def uploads(self, task: Task, client: ClientInfo) -> Shapes:
        return {"w": (2,)}

    downloads = uploads

    def client_round(self, client: Client, rnd: Round) -> Upload:
        raise AssertionError("the engine replies itself")

    def server_init(self, task: Task, clients: Any) -> Payload:
        return {"w": torch.zeros(2)}

    def server_send(self, state: Payload, client: ClientInfo, rnd: Round) -> Payload:
        return state

    def server_round(self, state: Payload, clients: Any, ups: Any, rnd: Round) -> Payload:
        assert list(ups) == [c.id for c in clients] == sorted(ups)
        return payload.weighted_mean([u.payload for u in ups.values()], [c.train_size for c in clients])


TASK = Task(classes=2, channels=1, image_size=8, rounds=3)
TWO = [ClientInfo(0, "ann", "resnet18", train_size=1), ClientInfo(1, "snn", "resnet18", train_size=3)]


@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        ({"w": torch.tensor([1.0, float("nan")])}, Diverged, "upload of client 1 .*round 0: 'w' holds NaN"),
        ({"w": torch.tensor([1.0, float("inf")])}, Diverged, "upload of client 1 .*round 0: 'w' holds NaN or infinity"),
        ({"w": torch.zeros(3)}, GuardError, r"'w' has shape \(3,\), declared \(2,\)"),
        ({"w": torch.zeros(2, dtype=torch.float64)}, GuardError, "'w' is torch.float64"),
        ({"w": torch.zeros(2, requires_grad=True)}, GuardError, "'w' is not a detached CPU tensor"),
        ({}, GuardError, "declared tensor 'w' is missing"),
        ({"w": torch.zeros(2), "v": torch.zeros(1)}, GuardError, "'v' is private"),
    ],
)
def test_the_server_checks_what_arrives(bad: Payload, error: type[Exception], message: str) -> None:
    engine = Echo(TWO, lambda i, down: Upload(bad if i == 1 else {"w": torch.ones(2)}))
    with pytest.raises(error, match=message):
        federate(One(), TASK, engine, lambda *_: None)  # type: ignore[arg-type]


def test_a_client_that_diverges_is_named(pair: Any, make_engine: Any) -> None:
    @dataclass(frozen=True)
    class Broken(FedAvg):
        def client_round(self, client: Client, rnd: Round) -> Upload:
            up = payload.select(client.backbone)
            if client.info.id == 1 and rnd.index == 1:
                up["classifier.bias"][3] = float("nan")
            return Upload(up)

    with pytest.raises(Diverged, match=r"upload of client 1 \(resnet18@0.125:snn\), round 1: 'classifier.bias'"):
        federate(Broken(), pair.task, make_engine(Broken()), lambda *_: None)


def test_a_download_is_checked_too(pair: Any, make_engine: Any) -> None:
    @dataclass(frozen=True)
    class Meddling(FedAvg):
        def server_send(self, state: Payload, client: ClientInfo, rnd: Round) -> Payload:
            return super().server_send(state, client, rnd) | {"more": torch.zeros(1)}

    with pytest.raises(GuardError, match=r"download to client 0 .*round 0: tensor 'more'"):
        federate(Meddling(), pair.task, make_engine(Meddling()), lambda *_: None)


def test_rounds_are_played_in_order_and_end_with_a_visit() -> None:
    seen = []
    engine = Echo(TWO[::-1], lambda i, down: Upload({"w": down["w"] + i}))

    def after(rnd: Round, clients: Any, downs: Any, ups: Any, state: Payload) -> None:
        seen.append((rnd.index, rnd.closing, [c.id for c in clients], list(ups), state["w"].tolist()))

    end = federate(One(), TASK, engine, after)  # type: ignore[arg-type]
    # client 1 of weight 3/4 adds one each round; nothing is aggregated in the closing visit
    assert seen == [(i, i == 3, [0, 1], [0, 1], [0.75 * min(i + 1, 3)] * 2) for i in range(4)]
    assert end["w"].tolist() == [2.25, 2.25]


def test_a_start_in_the_middle_needs_no_first_state() -> None:
    seen = []
    engine = Echo(TWO, lambda i, down: Upload({"w": down["w"] + 1}))
    state = {"w": torch.tensor([5.0, 6.0])}
    end = federate(One(), TASK, engine, lambda rnd, *_: seen.append(rnd.index), start=2, state=state)  # type: ignore[arg-type]
    assert seen == [2, 3]
    assert end["w"].tolist() == [6.0, 7.0]
    assert state["w"].tolist() == [5.0, 6.0]


def test_downloads_are_made_one_at_a_time() -> None:
    """A thousand clients in the closing visit, and never two payloads in memory."""
    alive: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()
    most = 0

    @dataclass(frozen=True)
    class Fresh(One):
        def server_send(self, state: Payload, client: ClientInfo, rnd: Round) -> Payload:
            nonlocal most
            down = payload.clone(state)
            alive.update(down.values())
            most = max(most, len(alive))
            return down

    many = [ClientInfo(i, "ann", "resnet18", train_size=1) for i in range(1000)]
    state = {"w": torch.tensor([1.0, 2.0])}
    engine = Echo(many, lambda i, down: Upload())
    _, sent, ups = play_round(Fresh(), TASK, engine, state, Round(3, 3), many)  # type: ignore[arg-type]
    assert most == 1
    assert len(alive) == 0
    assert sent == dict.fromkeys(range(1000), 8)
    assert list(ups) == list(range(1000))


def test_the_closing_visit_only_receives(pair: Any, make_engine: Any) -> None:
    calls: list[tuple[str, int, int]] = []

    @dataclass(frozen=True)
    class Noting(Standalone):
        def client_receive(self, client: Client, down: Payload, rnd: Round) -> None:
            calls.append(("receive", rnd.index, client.info.id))

        def client_round(self, client: Client, rnd: Round) -> Upload:
            calls.append(("round", rnd.index, client.info.id))
            return Upload()

        def server_round(self, state: Payload, clients: Any, ups: Any, rnd: Round) -> Payload:
            calls.append(("server", rnd.index, -1))
            return state

    metrics: dict[int, list[Upload]] = {}
    task = replace(pair.task, rounds=1)
    federate(
        Noting(), task, make_engine(Noting()), lambda rnd, c, d, ups, s: metrics.update({rnd.index: list(ups.values())})
    )
    assert calls == [
        ("receive", 0, 0), ("round", 0, 0), ("receive", 0, 1), ("round", 0, 1), ("server", 0, -1),
        ("receive", 1, 0), ("receive", 1, 1),
    ]  # fmt: skip
    points = [{key.partition(".")[0] for key in up.metrics if "." in key} for up in (metrics[0][0], metrics[1][0])]
    assert points == [{"received", "trained"}, {"received"}]
    assert metrics[1][0].payload == {}
