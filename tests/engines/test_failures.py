"""Clients behind a network: who fails is named and left out, who sends rubbish is refused, the others count."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import pytest
import torch

from asfedbridge.core.client import Client
from asfedbridge.core.compression import encode
from asfedbridge.core.errors import Diverged, GuardError, TooFewClients
from asfedbridge.core.method import Method
from asfedbridge.core.norms import measure, ratios
from asfedbridge.core.payload import Payload, Shapes, weighted_mean
from asfedbridge.core.privacy import Mechanism
from asfedbridge.core.task import ClientInfo, Round, Task, Upload
from asfedbridge.engines.failures import MAX_VOID_ROUNDS, Event, Quarantine, Reply, Tolerance
from asfedbridge.engines.loop import draw, draw_reserve, federate, play_round
from asfedbridge.engines.server import find_usable

TASK = Task(classes=2, channels=1, image_size=8, rounds=2)
FOUR = [ClientInfo(i, "ann", "resnet18", train_size=i + 1) for i in range(4)]
TEN = [ClientInfo(i, "ann", "resnet18", train_size=1) for i in range(10)]
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

    def __init__(self, odd: Mapping[int, list[Reply]], clients: Sequence[ClientInfo] = FOUR) -> None:
        self.odd = {i: list(replies) for i, replies in odd.items()}
        self.asked: list[list[int]] = []
        self.rounds: list[int] = []  # of the calls
        self._clients = clients

    def clients(self) -> list[ClientInfo]:
        return list(self._clients[::-1])

    def train(self, rnd: Round, downs: Mapping[int, Payload]) -> dict[int, Reply]:
        self.asked.append(sorted(downs))
        self.rounds.append(rnd.index)
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
    assert told[0] == Event(what, 2, "why")
    assert [e.what for e in told[1:]] == (["quarantined"] if what == "refused" else [])
    assert state["w"].tolist() == pytest.approx([(1 * 1 + 2 * 2 + 4 * 4) / 7] * 2)  # weighted over the uploads received
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
    assert [(e.what, e.client) for e in told] == [("refused", 3), ("quarantined", 3)]
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
    assert text.startswith(
        "round 0: 2 of 4 clients sent a usable upload, 3 are needed (client 0: lost, client 2: timeout)"
    )
    assert network.asked == [[0, 1, 2, 3]]


@pytest.mark.parametrize(
    ("min_clients", "needs"),
    [(0, [1, 2, 2, 2, 3, 3, 4, 4]), (-1, [1, 2, 3, 4, 5, 6, 7, 8]), (3, [1, 2, 3, 3, 3, 3, 3, 3])],
)
def test_half_are_needed_and_two_unless_told_otherwise(min_clients: int, needs: list[int]) -> None:
    tolerance = Tolerance(lambda rnd, event: None, min_clients)
    assert [tolerance.need(participants) for participants in range(1, 9)] == needs


def test_all_can_be_demanded() -> None:
    with pytest.raises(TooFewClients, match="3 of 4 clients sent a usable upload, 4 are needed"):
        play(Network({0: [gone()]}), min_clients=-1)


def test_one_refused_client_does_not_end_a_run_of_two_others() -> None:
    (_, _, ups), _ = play(Network({0: [gone("refused")], 1: [gone("lost", 1)]}))
    assert list(ups) == [2, 3]


def test_patience_asks_only_those_that_did_not_answer() -> None:
    network = Network({0: [gone(), gone("absent")], 1: [gone("error", 1)]})
    (_, _, ups), told = play(network, min_clients=3, patience=60)
    assert list(ups) == [0, 2, 3]
    assert network.asked == [[0, 1, 2, 3], [0], [0]]
    assert [(e.what, e.client) for e in told] == [("error", 1)]  # who came in the end is not reported


def test_patience_ends_when_nobody_is_left_to_ask() -> None:
    network = Network({i: [gone("error", i)] for i in range(4)})
    with pytest.raises(TooFewClients, match="0 of 4"):
        play(network, min_clients=1, patience=3600)
    assert len(network.asked) == 1


def test_patience_ends() -> None:
    with pytest.raises(TooFewClients):
        play(Network({0: [gone()] * 10**6}), patience=0.2, min_clients=-1)


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


# What only shows beside the others, or in the server's round


class Fragile(One):
    """Its server cannot bear values of 7, says nothing sensible with 8 and explodes with 9; no check of its own."""

    def server_round(self, state: Payload, clients: Any, ups: Mapping[int, Upload], rnd: Round) -> Payload:
        assert [c.id for c in clients] == list(ups) == sorted(ups)
        values = [up.payload["w"][0].item() for up in ups.values()]
        if 7.0 in values:
            raise KeyError("seven")
        mean = weighted_mean([up.payload for up in ups.values()], [1.0] * len(ups))
        return {"w": mean["w"] / 0 if 8.0 in values else mean["w"] * 1e30 if 9.0 in values else mean["w"]}


def send(value: float) -> list[Reply]:
    return [Upload({"w": torch.full((2,), value)})]


def settle(method: Method, sent: Mapping[int, float], **task: Any) -> tuple[Any, list[Event]]:
    told: list[Event] = []
    tolerance = Tolerance(lambda _, event: told.append(event), 1, pause=0.0)
    network: Any = Network({i: send(value) for i, value in sent.items()})
    state = {"w": torch.full((2,), 0.5)}
    return play_round(method, dataclasses.replace(TASK, **task), network, state, FIRST, FOUR, tolerance), told


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (7.0, "aggregation with it fails (KeyError: 'seven' (test_failures.py, line"),
        (8.0, "'w' of the server's next state holds NaN or infinity"),
        (9.0, "the server's next state is"),
    ],
)
@pytest.mark.parametrize("culprits", [{0}, {1}, {3}, {0, 3}, {1, 2}, {0, 1, 2}])
def test_who_breaks_the_servers_round_is_found(culprits: set[int], value: float, reason: str) -> None:
    (state, _, ups), told = settle(Fragile(), dict.fromkeys(culprits, value))
    honest = [i for i in range(4) if i not in culprits]
    assert list(ups) == honest
    assert state["w"].tolist() == pytest.approx([sum(i + 1.0 for i in honest) / len(honest)] * 2)
    refused = [e for e in told if e.what == "refused"]
    assert [e.client for e in refused] == sorted(culprits)
    assert all(reason in e.reason and e.reason.startswith(f"upload of client {e.client} ") for e in refused)
    network: Any = Network({i: send(value) for i in culprits})
    with pytest.raises((KeyError, Diverged)):
        play_round(Fragile(), TASK, network, {"w": torch.ones(2)}, FIRST, FOUR)  # in our own processes it is a bug


@pytest.mark.parametrize("clients", [1, 2, 5, 16, 33])
def test_the_search_leaves_out_nobody_else_and_is_short(clients: int) -> None:
    fleet = [ClientInfo(i, "ann", "resnet18") for i in range(clients)]
    for culprit in range(clients):
        tried: list[Sequence[ClientInfo]] = []

        def works(some: Sequence[ClientInfo], culprit: int = culprit, tried: Any = tried) -> bool:
            tried.append(some)
            return culprit not in [c.id for c in some]

        assert [c.id for c in find_usable(fleet, works)] == [i for i in range(clients) if i != culprit]
        assert len(tried) <= 2 + 3 * clients.bit_length()


def test_when_nothing_works_the_round_is_void() -> None:
    (state, _, ups), told = settle(Fragile(), dict.fromkeys(range(4), 7.0))
    assert ups == {}
    assert state["w"].tolist() == [0.5, 0.5]
    assert told[-1].reason.startswith("0 of 4 clients sent a usable upload, 1 are needed")


class Checked(One):
    def check_upload(self, task: Task, client: ClientInfo, up: Payload, rnd: Round) -> None:
        if up["w"][0] == 7:
            raise GuardError("seven")
        assert up["w"][0] != 8


def test_a_method_checks_what_came() -> None:
    (_, _, ups), told = settle(Checked(), {1: 7.0, 2: 8.0})
    assert list(ups) == [0, 3]
    refused = {e.client: e.reason for e in told if e.what == "refused"}
    assert refused[1] == "upload of client 1 (resnet18@1:ann), round 0: seven"
    assert refused[2].startswith("AssertionError")
    network: Any = Network({1: send(7.0)})
    with pytest.raises(GuardError, match=r"upload of client 1 \(resnet18@1:ann\), round 0: seven"):
        play_round(Checked(), TASK, network, {"w": torch.ones(2)}, FIRST, FOUR)


# How large an upload may be


class Running(One):
    continues: ClassVar[bool] = True


@pytest.mark.parametrize("method", [One(), Running()])
@pytest.mark.parametrize("value", [1e4, -1e4, 1e30, 3e38])
@pytest.mark.parametrize("culprits", [{0}, {3}, {0, 1}, {2, 3}])
def test_who_is_too_large_is_refused(method: Method, value: float, culprits: set[int]) -> None:
    (state, _, ups), told = settle(method, dict.fromkeys(culprits, value))
    assert list(ups) == [i for i in range(4) if i not in culprits]
    assert state["w"].abs().max() <= 4
    refused = [e for e in told if e.what == "refused"]
    assert {e.client for e in refused} == culprits
    assert all("times as large as the median of the round (norm_guard=100)" in e.reason for e in refused)


@pytest.mark.parametrize(("method", "what"), [(One(), "content"), (Running(), "update")])
def test_in_our_own_processes_it_is_said_in_one_line(method: Method, what: str) -> None:
    network: Any = Network({2: send(1e6)})
    with pytest.raises(Diverged) as error:
        play_round(method, TASK, network, {"w": torch.ones(2)}, Round(1, 2), FOUR)
    text = str(error.value)
    assert text.startswith(f"upload of client 2 (resnet18@1:ann), round 1: its {what} is ")
    assert "(norm_guard=100); lower the learning rate, or set norm_guard=0 to disable this check" in text
    assert "\n" not in text


def test_the_guard_can_be_off() -> None:
    (state, _, ups), told = settle(One(), {2: 1e30}, norm_guard=0.0)
    assert list(ups) == [0, 1, 2, 3]
    assert told == []
    assert state["w"][0] > 1e29


def test_a_private_mean_has_no_guard() -> None:
    """Clipping bounds every update, and whose updates are averaged must not depend on those of the others."""

    class Private(Running):
        @property
        def mechanism(self) -> Mechanism:
            return Mechanism(noise=1.0, clip_update=1.0, source="seed", delta=1e-5)

    (_, _, ups), told = settle(Private(), {2: 1e30})
    assert list(ups) == [0, 1, 2, 3]
    assert told == []


@pytest.mark.parametrize("method", [One(), Running()])
def test_an_honest_client_among_zeros_stays(method: Method) -> None:
    """Beside nothing, or nearly nothing, what was sent is the measure."""
    for others in (0.0, 1e-12):
        sent = dict.fromkeys(range(3), others + (0.5 if method.continues else 0.0))
        (_, _, ups), told = settle(method, sent | {3: 0.9})
        assert list(ups) == [0, 1, 2, 3]
        assert told == []


def test_alone_in_a_round_it_is_compared_with_what_was_sent() -> None:
    size = measure({"w": torch.full((2,), 50.0)}, {"w": torch.ones(2)}, continues=True)
    assert ratios({0: size})[0] == pytest.approx(49)
    assert ratios({0: measure({"w": torch.full((2,), 1e30)}, {}, continues=False)})[0] > 1e29


def test_sizes_do_not_depend_on_how_much_was_sent() -> None:
    """Prototypes of one class and of ten; counts beside them; layers of a thousand and of ten weights."""
    one, ten = ({f"class/{i}": torch.full((16,), 2.0) for i in range(n)} for n in (1, 10))
    counts = {"count/0": torch.tensor(9999.0)}
    assert measure(one, {}, False) == measure(ten, {}, False) == measure(one | counts, {}, False)
    assert measure({"a": torch.ones(1000)}, {}, False).own == measure({"b": torch.ones(10)}, {}, False).own


class Patient(Network):
    """Clients 0 and 1 send as much as the guard lets pass, in every round; the others send 1, or move by 0.1."""

    def __init__(self, continues: bool) -> None:
        super().__init__({}, TEN[:6])
        self.continues, self.largest = continues, 0.0

    def _reply(self, client: int, rnd: Round, down: Payload) -> Reply:
        if rnd.closing:
            return Upload()
        size = down["w"].abs().max().item()
        self.largest = max(self.largest, size)
        step = max(99 * 0.1, 0.99 * size) if self.continues else 99 * max(1.0, size)
        own = step if client < 2 else 0.1 if self.continues else 1.0
        return Upload({"w": down["w"] + own if self.continues else torch.full((2,), own)})


@pytest.mark.parametrize("method", [One(), Running()])
def test_a_state_cannot_grow_a_little_in_every_round(method: Method) -> None:
    """Before, it reached 3e38 after 25 rounds (content) or 300 (updates), and no honest client could train on it."""
    told: list[Event] = []
    network: Any = Patient(method.continues)
    rounds, seen = 400, []
    federate(
        method, dataclasses.replace(TASK, rounds=rounds), network,
        lambda rnd, clients, sent, ups, state: seen.append([c.id for c in clients]),
        tolerance=Tolerance(lambda _, event: told.append(event), pause=0.0),
    )  # fmt: skip
    assert network.largest <= (150 if method.continues else 101)
    assert len(seen) == rounds + 1
    assert all(set(range(2, 6)) <= set(clients) for clients in seen)  # no honest client is refused
    assert {e.client for e in told} <= {0, 1}


def test_a_state_that_fp16_cannot_send_is_not_kept() -> None:
    """Each upload is small enough for the codec, and so is the state until they are added."""
    method, task = Running(), dataclasses.replace(TASK, compress="fp16")
    state = {"w": torch.tensor([65000.0, 1.0])}
    told: list[Event] = []
    delta = {0: 10.0, 1: 20.0, 2: 4000.0, 3: 10.0}
    sent = {i: [Upload({"w": torch.full((2,), d, dtype=torch.float16)})] for i, d in delta.items()}
    network: Any = Network(sent, TEN[:4])
    tolerance = Tolerance(lambda _, event: told.append(event), pause=0.0)
    state, _, ups = play_round(method, task, network, state, FIRST, TEN[:4], tolerance)
    assert list(ups) == [0, 1, 3]
    assert state["w"][0] < 65504
    (refused,) = [e for e in told if e.what == "refused"]
    assert refused.client == 2
    assert "above the maximum of 65504 for compress=fp16" in refused.reason
    encode(state, "fp16", "download")  # the next round can begin


# Quarantine


def test_pauses_grow_and_end() -> None:
    quarantine = Quarantine()
    seen = []
    for index in range(60):
        asked = [c.id for c in quarantine.admit(FOUR, index, least=1)]
        assert asked in ([0, 1, 2, 3], [0, 1, 3])
        if 2 in asked:
            seen.append(index)
            quarantine.note(2, index)
    assert [b - a - 1 for a, b in pairwise(seen)] == [1, 2, 4, 8, 16][: len(seen) - 1] + [16] * (len(seen) - 6)


def test_a_pause_ends_early_when_too_few_are_left() -> None:
    quarantine = Quarantine()
    for client, rounds in {0: [0], 1: [0, 2], 2: [1]}.items():
        for index in rounds:
            quarantine.note(client, index)
    assert [quarantine.ends(i) for i in range(4)] == [2, 5, 3, 0]
    assert [c.id for c in quarantine.admit(FOUR, 2, least=1)] == [0, 3]
    assert [c.id for c in quarantine.admit(FOUR, 2, least=3)] == [0, 2, 3]
    assert [c.id for c in quarantine.admit(FOUR, 2, least=4)] == [0, 1, 2, 3]


def run_with_refusals(start: int = 0, known: Sequence[tuple[int, int]] = (), rounds: int = 9) -> tuple[Any, Any]:
    """Client 1 is always refused, client 2 once, in round 0. Who was asked in each round, and what was told."""
    odd: dict[int, list[Reply]] = {1: [*send(NAN)] * 20, 2: [*send(NAN)] if not start else []}
    told: list[tuple[int, str, int | None]] = []
    tolerance = Tolerance(lambda rnd, event: told.append((rnd.index, event.what, event.client)))
    for client, index in known:
        tolerance.quarantine.note(client, index)
    network: Any = Network(odd)
    task = dataclasses.replace(TASK, rounds=rounds)
    federate(One(), task, network, lambda *_: None, start=start, state={"w": torch.ones(2)}, tolerance=tolerance)
    return dict(enumerate(network.asked, start)), told


def test_repeat_offenders_are_not_asked_and_an_honest_client_comes_back() -> None:
    asked, told = run_with_refusals()
    assert [r for r, who in asked.items() if 1 in who] == [0, 2, 5, 9]  # 9: everybody is told how it ended
    assert [r for r, who in asked.items() if 2 not in who] == [1]
    assert [(r, w) for r, w, c in told if c == 2] == [(0, "refused"), (0, "quarantined")]
    assert [(r, w) for r, w, c in told if c == 1] == [
        (r, w) for r in (0, 2, 5) for w in ("refused", "quarantined")
    ] + [(9, "refused")]  # fmt: skip


def test_pauses_are_the_same_when_a_run_goes_on() -> None:
    whole, told = run_with_refusals()
    for start in range(1, 9):
        known = [(c, r) for r, what, c in told if what == "refused" and r < start and c is not None]
        assert run_with_refusals(start, known)[0] == {r: who for r, who in whole.items() if r >= start}


def test_quarantined_clients_are_not_drawn() -> None:
    tolerance = Tolerance(lambda rnd, event: None)
    plain = [draw(FOUR, 0.5, 3, Round(i, 99)) for i in range(20)]
    assert [draw(FOUR, 0.5, 3, Round(i, 99), tolerance) for i in range(20)] == plain
    tolerance.quarantine.note(1, 4)
    drawn = [[c.id for c in draw(FOUR, 0.5, 3, Round(5, 99), tolerance)] for _ in range(2)]
    assert 1 not in drawn[0]
    assert len(drawn[0]) == 2
    assert drawn[0] == drawn[1]


SILENCE: dict[int, list[Any]] = {  # by client: what it does each time it is asked; None: it delivers
    1: ["timeout"] * 20,
    2: ["timeout", "lost", None, "lost", None, "timeout", "error", "timeout"],
    3: ["absent"] * 20,  # nobody waits for it
}


def run_with_silence(start: int = 0, known: Any = ((), ())) -> tuple[Network, list[tuple[int, str, int]], list[Any]]:
    """Twelve rounds; a resumed run knows the events and deliveries of the rounds before."""
    told: list[tuple[int, str, int]] = []
    delivered: list[tuple[int, int]] = []
    tolerance = Tolerance(lambda rnd, event: told.append((rnd.index, event.what, event.client or 0)))
    for index, what, client in known[0]:
        tolerance.note(index, what, client)
    for client, index in known[1]:
        tolerance.quarantine.note_delivery(client, index)
    turns = {i: [e for e in known[0] if e[2] == i and e[1] != "quarantined"] for i in SILENCE}
    used = {i: len(turns[i]) + sum(c == i for c, _ in known[1]) for i in SILENCE}

    class Silent(Network):
        def _reply(self, client: int, rnd: Round, down: Payload) -> Reply:
            script = SILENCE.get(client, [])
            used[client] = used.get(client, 0) + 1
            what = script[used[client] - 1] if used[client] <= len(script) else None
            return gone(what, client) if what else super()._reply(client, rnd, down)

    def after(rnd: Round, clients: Any, sent: Any, ups: Mapping[int, Upload], state: Any) -> None:
        delivered.extend((client, rnd.index) for client in ups)

    network: Any = Silent({}, TEN)
    task = dataclasses.replace(TASK, rounds=12)
    federate(One(), task, network, after, start=start, state={"w": torch.ones(2)}, tolerance=tolerance)
    return network, told, delivered


def test_silence_twice_in_a_row_is_paused_and_an_upload_ends_the_row() -> None:
    network, told, delivered = run_with_silence()
    asked = {i: [r for r, who in zip(network.rounds, network.asked, strict=True) if i in who] for i in SILENCE}
    assert asked[1] == [0, 1, 3, 6, 11, 12]  # not in 2, 4 to 5, 7 to 10; the closing visit is for everybody
    assert asked[2] == [0, 1, 3, 4, 5, 6, 7, 8, 10, 11, 12]  # twice in a row in 0 and 1, and again in 6 and 8
    assert asked[3] == list(range(13))
    assert [(r, c) for r, what, c in told if what == "quarantined"] == [(1, 1), (1, 2), (3, 1), (6, 1), (8, 2), (11, 1)]
    for cut in range(1, 12):
        known = [e for e in told if e[0] < cut], [d for d in delivered if d[1] < cut]
        again, told_again, _ = run_with_silence(cut, known)
        assert told_again == [e for e in told if e[0] >= cut]
        assert again.asked == [a for r, a in zip(network.rounds, network.asked, strict=True) if r >= cut]


def test_a_pause_for_silence_is_explained_and_ends_when_too_few_are_left() -> None:
    quarantine = Quarantine()
    quarantine.note(0, 3, "timeout")
    assert quarantine.explain(0) == ""
    quarantine.note(0, 4, "lost")
    assert quarantine.explain(0) == "no reply 2 times in a row; not asked before round 6"
    assert [c.id for c in quarantine.admit(FOUR, 5, least=3)] == [1, 2, 3]
    assert [c.id for c in quarantine.admit(FOUR, 5, least=4)] == [0, 1, 2, 3]
    quarantine.note(0, 6, "refused")
    assert quarantine.explain(0) == "refused in 1 round; not asked before round 8"
    quarantine.note_delivery(0, 8)
    assert quarantine.ends(0) == 8


# Others in the place of those that fail, and rounds without enough of them

ONE = One()
Told = Sequence[tuple[int, str, int | None]]


def replace_round(
    odd: Mapping[int, list[Reply]], method: Method = ONE, **options: Any
) -> tuple[Network, dict[int, Upload], list[Event]]:
    """Clients 0 to 3 are drawn, 9, 8, 7 ... are the reserve."""
    told: list[Event] = []
    tolerance = Tolerance(lambda _, event: told.append(event), pause=0.0, **options)
    network: Any = Network(odd, TEN)
    state = {"w": torch.ones(2)}
    _, _, ups = play_round(method, TASK, network, state, FIRST, TEN[:4], tolerance, TEN[:3:-1])
    return network, ups, told


@pytest.mark.parametrize("what", ["refused", "error"])
def test_others_take_the_place_of_those_whose_answer_cannot_be_used(what: str) -> None:
    bad = (0, 1, 3, 9)
    network, ups, told = replace_round({i: [gone(what, i)] for i in bad}, patience=60)
    assert network.asked == [[0, 1, 2, 3], [9], [8]]  # two are needed
    assert list(ups) == [2, 8]
    assert [e.client for e in told if e.what == what] == [*bad]


def test_others_take_the_place_of_uploads_that_are_too_large() -> None:
    """Most of those that are drawn send the same: it is beside what the server had that it is too large."""
    odd = {i: send(1e30) for i in (0, 1)} | {2: send(NAN), 3: send(7.0)}
    network, ups, _ = replace_round(odd, Running())
    assert network.asked == [[0, 1, 2, 3], [9]]
    assert list(ups) == [3, 9]


def test_whoever_did_not_answer_is_replaced_when_patience_is_over() -> None:
    network, ups, _ = replace_round({i: [gone("absent", i)] * 3 for i in (0, 1, 2)}, patience=60)
    assert network.asked == [[0, 1, 2, 3]] + [[0, 1, 2]] * 3  # it came back
    assert list(ups) == [0, 1, 2, 3]
    network, ups, _ = replace_round({i: [gone("lost", i)] for i in (0, 1, 2, 9)}, patience=0)
    assert network.asked == [[0, 1, 2, 3], [9], [8]]
    assert list(ups) == [3, 8]


def test_nobody_is_replaced_in_a_round_that_has_enough() -> None:
    network, ups, _ = replace_round({i: [gone("refused", i)] for i in (0, 1)})
    assert network.asked == [[0, 1, 2, 3]]
    assert list(ups) == [2, 3]


def test_when_nobody_is_left_who_stays_away_ends_the_run() -> None:
    away: dict[int, list[Reply]] = {i: [gone("absent", i)] for i in range(10)}
    with pytest.raises(TooFewClients, match="0 of 10 clients sent a usable upload, 2 are needed"):
        replace_round(away | {9: [gone("refused", 9)]})
    _, ups, told = replace_round(away | {i: [gone("refused", i)] for i in (8, 9)})
    assert ups == {}
    assert told[-1].what == "void"


def test_the_reserve_is_a_function_of_seed_and_round_without_quarantine() -> None:
    tolerance = Tolerance(lambda rnd, event: None)
    orders = []
    for index in range(20):
        rnd = Round(index, 99)
        drawn = draw(TEN, 0.4, 3, rnd, tolerance)
        reserve = draw_reserve(TEN, drawn, 3, rnd, tolerance)
        assert sorted(c.id for c in [*drawn, *reserve]) == [*range(10)]
        assert reserve == draw_reserve(TEN, drawn, 3, rnd, tolerance)
        orders.append([c.id for c in reserve])
    assert len({tuple(order) for order in orders}) == 20
    assert any(order != sorted(order) for order in orders)
    tolerance.quarantine.note(reserve[0].id, 98)
    assert draw_reserve(TEN, drawn, 3, Round(99, 200), tolerance)[0] != reserve[0]
    assert len(draw_reserve(TEN, drawn, 3, Round(99, 200), tolerance)) == 5


def run_fleet(
    hostile: set[int], participation: float, start: int = 0, known: Told = (), bad_until: int = 99, state: Any = None
) -> tuple[Network, Told, list[Any]]:
    """Ten clients, twelve rounds; the hostile always send NaN."""
    told: list[tuple[int, str, int | None]] = []
    tolerance = Tolerance(lambda rnd, event: told.append((rnd.index, event.what, event.client)))
    for index, what, client in known:
        tolerance.note(index, what, client)

    class Hostile(Network):
        def _reply(self, client: int, rnd: Round, down: Payload) -> Reply:
            if client in hostile and rnd.index < bad_until:
                return Upload({"w": torch.full((2,), NAN)})
            return super()._reply(client, rnd, down)

    network: Any = Hostile({}, TEN)
    seen: list[Any] = []
    federate(
        One(), dataclasses.replace(TASK, rounds=12), network,
        lambda rnd, clients, sent, ups, state: seen.append(([c.id for c in clients], list(ups), state["w"].tolist())),
        participation, start, state or {"w": torch.full((2,), 0.5)}, tolerance,
    )  # fmt: skip
    return network, told, seen


@pytest.mark.parametrize("participation", [0.2, 0.3, 0.5, 1.0])
def test_a_run_survives_rounds_of_mostly_hostile_clients(participation: float) -> None:
    hostile = {0, 1, 2, 3, 4, 5}
    network, told, seen = run_fleet(hostile, participation)
    assert len(seen) == 13
    need = max(2, round(participation * 10) // 2)
    void = [index for index, what, _ in told if what == "void"]
    for index, (clients, ups, _) in enumerate(seen):
        assert clients == ups
        assert not hostile & set(ups)
        assert len(ups) >= min(need, 2) or index in void
    mostly = [r for r, asked in zip(network.rounds, network.asked, strict=True) if len(hostile & set(asked)) > 1]
    assert len(mostly) > 2  # or this would show nothing
    for cut in range(1, 12):  # what a resumed run does is the same
        known = [event for event in told if event[0] < cut]
        state = {"w": torch.tensor(seen[cut - 1][2])}
        again, told_again, seen_again = run_fleet(hostile, participation, cut, known, state=state)
        assert seen_again == seen[cut:]
        assert told_again == [event for event in told if event[0] >= cut]
        assert again.asked == [a for r, a in zip(network.rounds, network.asked, strict=True) if r >= cut]


def test_a_void_round_changes_nothing_and_the_next_goes_on() -> None:
    _, told, seen = run_fleet(set(range(10)), 1.0, bad_until=1)
    assert seen[0] == ([], [], [0.5, 0.5])
    assert [event for event in told if event[1] == "void"] == [(0, "void", None)]
    assert [len(ups) for _, ups, _ in seen[1:4]] == [5, 10, 10]  # half of them before their pause is over


def test_void_rounds_in_a_row_end_the_run_and_end_it_again_when_it_goes_on() -> None:
    with pytest.raises(TooFewClients, match="round 2: 0 of 5 clients sent a usable upload, 3 are needed") as error:
        run_fleet(set(range(10)), 1.0)
    assert MAX_VOID_ROUNDS == 3
    assert "\n" not in str(error.value)
    with pytest.raises(TooFewClients, match="round 7: 0 of 10"):
        run_fleet(set(range(10)), 1.0, 7, [(5, "void", None), (6, "void", None)])
    with pytest.raises(TooFewClients, match="round 8: "):
        run_fleet(set(range(10)), 1.0, 7, [(4, "void", None), (6, "void", None)])


def test_the_closing_visit_takes_what_comes() -> None:
    network: Any = Network({i: [gone("refused", i)] for i in range(3)})
    (state, _, ups), told = play(network, Round(2, 2))
    assert list(ups) == [3]
    assert state["w"].tolist() == [0.0, 0.0]
    assert [e.what for e in told] == ["refused"] * 3
    with pytest.raises(TooFewClients, match="1 of 4"):
        play(Network({i: [gone("absent", i)] for i in range(3)}), Round(2, 2))
