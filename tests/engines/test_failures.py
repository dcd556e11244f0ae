"""Clients behind a network: who fails is named and left out, who sends rubbish is refused, the others count."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from asfedbridge.core.client import Client
from asfedbridge.core.errors import Diverged, TooFewClients
from asfedbridge.core.method import Method
from asfedbridge.core.payload import GuardError, Payload, Shapes, weighted_mean
from asfedbridge.core.task import ClientInfo, Round, Task, Upload
from asfedbridge.engines.failures import Event, Reply, Tolerance
from asfedbridge.engines.loop import federate, play_round

TASK = Task(classes=2, channels=1, image_size=8, rounds=2)
FOUR = [ClientInfo(i, "ann", "resnet18", train_size=i + 1) for i in range(4)]
FIRST = Round(0, 2)
NAN, INFINITY = float("nan"), float("inf")


@dataclass(frozen=True)
class One(Method):
    """Exchanges one tensor of two numbers; the server takes the weighted mean."""

    def uploads(self, task: Task, client: ClientInfo) -> Shapes:
        return {"w": (2,)}

    downloads = uploads

    def client_round(self, client: Client, rnd: Round) -> Upload:
        raise NotImplementedError

    def server_init(self, task: Task, clients: Any) -> Payload:
        return {"w": torch.zeros(2)}

    def server_send(self, state: Payload, client: ClientInfo, rnd: Round) -> Payload:
        return state

    def server_round(self, state: Payload, clients: Any, ups: Mapping[int, Upload], rnd: Round) -> Payload:
        assert [c.id for c in clients] == list(ups) == sorted(ups)
        return weighted_mean([ups[c.id].payload for c in clients], [c.train_size for c in clients])


class Network:
    """Client i sends i + 1 unless ``odd`` has something else for it: one reply for each time it is asked."""

    def __init__(self, odd: Mapping[int, list[Reply]]) -> None:
        self.odd = {i: list(replies) for i, replies in odd.items()}
        self.asked: list[list[int]] = []

    def clients(self) -> list[ClientInfo]:
        return FOUR[::-1]

    def train(self, rnd: Round, downs: Mapping[int, Payload]) -> dict[int, Reply]:
        self.asked.append(sorted(downs))
        return {i: self._reply(i, rnd, downs[i]) for i in reversed(list(downs))}

    def _reply(self, client: int, rnd: Round, down: Payload) -> Reply:
        if self.odd.get(client):
            return self.odd[client].pop(0)
        return Upload({} if rnd.closing else {"w": torch.full((2,), client + 1.0)})


def gone(what: Any = "lost", client: int = 0) -> Event:
    return Event(what, client, "why")


def play(network: Network, rnd: Round = FIRST, **options: Any) -> tuple[Any, list[Event]]:
    told: list[Event] = []
    tolerance = Tolerance(lambda _, event: told.append(event), pause=0.0, **options)
    state = {"w": torch.zeros(2)}
    return play_round(One(), TASK, network, state, rnd, FOUR, tolerance), told  # type: ignore[arg-type]


@pytest.mark.parametrize("what", ["absent", "timeout", "lost", "error", "refused"])
def test_who_fails_is_left_out_and_named(what: Any) -> None:
    (state, sent, ups), told = play(Network({2: [gone(what, 2)]}), min_clients=3)
    assert list(ups) == [0, 1, 3]
    assert told == [Event(what, 2, "why")]
    assert state["w"].tolist() == pytest.approx([(1 * 1 + 2 * 2 + 4 * 4) / 7] * 2)  # weights of those that delivered
    assert sent == dict.fromkeys(range(4), 8)


@pytest.mark.parametrize(
    ("upload", "reason"),
    [
        ({"w": torch.tensor([1.0, NAN])}, "NaN or infinity"),
        ({"w": torch.tensor([1.0, -INFINITY])}, "NaN or infinity"),
        ({"w": torch.ones(3)}, r"shape \(3,\), declared \(2,\)"),
        ({"w": torch.ones(2, dtype=torch.float64)}, "payloads are float32"),
        ({"w": torch.ones(2), "backbone": torch.ones(2)}, "'backbone' is private"),
        ({}, "'w' is missing"),
    ],
    ids=["nan", "infinity", "shape", "dtype", "name", "missing"],
)
def test_rubbish_is_refused_and_the_others_count(upload: Payload, reason: str) -> None:
    (state, _, ups), told = play(Network({3: [Upload(upload)]}), min_clients=2, patience=60)
    assert list(ups) == [0, 1, 2]
    assert [(e.what, e.client) for e in told] == [("refused", 3)]
    assert told[0].reason.startswith("upload of client 3")
    with pytest.raises((GuardError, Diverged), match=reason):
        play_round(One(), TASK, Network({3: [Upload(upload)]}), {"w": torch.zeros(2)}, Round(0, 2), FOUR)  # type: ignore[arg-type]
    assert state["w"].tolist() == pytest.approx([(1 + 4 + 9) / 6] * 2)


def test_a_closing_visit_brings_nothing_back() -> None:
    (_, _, ups), told = play(Network({0: [Upload({"w": torch.ones(2)})]}), Round(2, 2), min_clients=1)
    assert list(ups) == [1, 2, 3]
    assert "'w' is private" in told[0].reason


def test_too_few_ends_with_one_line() -> None:
    network = Network({0: [gone()], 2: [gone("timeout", 2)]})
    with pytest.raises(TooFewClients) as error:
        play(network, min_clients=3)
    text = str(error.value)
    assert "\n" not in text
    assert text.startswith("round 0: 2 of 4 clients delivered, 3 are needed (client 0: lost, client 2: timeout)")
    assert network.asked == [[0, 1, 2, 3]]


def test_all_are_needed_unless_told_otherwise() -> None:
    with pytest.raises(TooFewClients, match="3 of 4 clients delivered, 4 are needed"):
        play(Network({0: [gone()]}))


def test_patience_asks_only_those_that_did_not_answer() -> None:
    network = Network({0: [gone(), gone("absent")], 1: [gone("error", 1)]})
    (_, _, ups), told = play(network, min_clients=3, patience=60)
    assert list(ups) == [0, 2, 3]
    assert network.asked == [[0, 1, 2, 3], [0], [0]]
    assert [(e.what, e.client) for e in told] == [("error", 1)]  # who came in the end is not reported


def test_patience_ends_when_nobody_is_left_to_ask() -> None:
    network = Network({i: [gone("refused", i)] for i in range(4)})
    with pytest.raises(TooFewClients, match="0 of 4"):
        play(network, min_clients=1, patience=3600)
    assert len(network.asked) == 1


def test_patience_ends() -> None:
    with pytest.raises(TooFewClients):
        play(Network({0: [gone()] * 10**6}), patience=0.2)


def test_without_tolerance_a_fault_raises() -> None:
    with pytest.raises(RuntimeError, match="client 0: lost: why"):
        play_round(One(), TASK, Network({0: [gone()]}), {"w": torch.zeros(2)}, Round(0, 2), FOUR)  # type: ignore[arg-type]


def test_rounds_go_on_without_who_is_gone() -> None:
    seen, told = [], []
    tolerance = Tolerance(lambda rnd, event: told.append((rnd.index, event.client)), min_clients=3)
    federate(
        One(), TASK, Network({1: [gone("lost", 1), gone("absent", 1)]}),  # type: ignore[arg-type]
        lambda rnd, clients, sent, ups, state: seen.append([c.id for c in clients]), tolerance=tolerance,
    )  # fmt: skip
    assert seen == [[0, 2, 3], [0, 2, 3], [0, 1, 2, 3]]
    assert told == [(0, 1), (1, 1)]
