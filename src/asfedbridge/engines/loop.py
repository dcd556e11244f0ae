"""The rounds of a run: once, for every method and every engine."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch

from asfedbridge.core import compression, payload, seeds
from asfedbridge.core.compression import Codec
from asfedbridge.core.method import Method
from asfedbridge.core.payload import Payload
from asfedbridge.core.task import ClientInfo, Round, Task, Upload
from asfedbridge.engines.failures import Reply, Tolerance, collect, demand


class Engine(Protocol):
    """Moves payloads. The private states stay where the clients are, and are kept there as files."""

    def describe(self) -> dict[str, Any]:
        """What a summary says of the engine: its name under ``engine``, and what else there is to know."""
        ...

    def clients(self) -> Sequence[ClientInfo]: ...

    def train(self, rnd: Round, downs: Mapping[int, Payload]) -> Mapping[int, Reply]:
        """A turn for every key of ``downs``. A value is made when it is asked for, and is the server's own memory:
        copy or send it, and let it go. Only an engine that faces a network may answer with an event."""
        ...

    def save(self) -> Mapping[str, str]:
        """Make the states of clients that trained since the last time lasting. Name and checksum of every state
        there is; files that the last ``save`` named are left alone."""
        ...

    def restore(self, states: Mapping[str, str]) -> None:
        """Bring every client to what ``save`` named; BadInput if a file is missing or damaged."""
        ...

    def close(self) -> None: ...


# What happened in a round (who delivered, bytes sent and uploads by client) and the server's state after it. True: this
# was the last round.
AfterRound = Callable[[Round, Sequence[ClientInfo], Mapping[int, int], Mapping[int, Upload], Payload], bool | None]


class Downloads(Mapping[int, Payload]):
    """What the server sends in a round, by client: each made when it is asked for, none kept, bytes counted."""

    def __init__(
        self, method: Method, state: Payload, rnd: Round, clients: Sequence[ClientInfo], codec: Codec = "none"
    ) -> None:
        self._method, self._state, self._round, self._codec = method, state, rnd, codec
        self._clients = {c.id: c for c in clients}
        self.sizes: dict[int, int] = {}

    def __getitem__(self, client: int) -> Payload:
        to = self._clients[client]
        down = self._method.server_send(self._state, to, self._round)
        down = compression.encode(down, self._codec, f"download to {to.label}, round {self._round.index}")
        self.sizes[client] = payload.size_in_bytes(down)
        return down

    def __contains__(self, client: object) -> bool:
        return client in self._clients  # a Mapping would make the download to find out

    def __iter__(self) -> Iterator[int]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)


def count_at_work(clients: int, participation: float) -> int:
    """How many clients take part in a round."""
    return min(clients, max(1, round(participation * clients)))


def draw(clients: Sequence[ClientInfo], participation: float, run_seed: int, rnd: Round) -> list[ClientInfo]:
    """This round's participants in id order; everybody takes part in the closing visit."""
    count = count_at_work(len(clients), participation)
    if rnd.closing or count >= len(clients):
        return list(clients)
    generator = seeds.generator(run_seed, "participants", rnd.index)
    chosen = torch.randperm(len(clients), generator=generator)[:count].tolist()
    return [clients[i] for i in sorted(chosen)]


def open_upload(method: Method, task: Task, state: Payload, client: ClientInfo, up: Upload, rnd: Round) -> Upload:
    """An upload as the method made it, past the guard."""
    whose, declared = f"upload of {client.label}, round {rnd.index}", method.uploads(task, client)
    start = method.server_send(state, client, rnd) if method.continues and task.compress != "none" else {}
    opened = compression.restore_upload(up.payload, start, declared, task.compress, whose, method.partial)
    return replace(up, payload=opened)


def play_round(
    method: Method,
    task: Task,
    engine: Engine,
    state: Payload,
    rnd: Round,
    participants: Sequence[ClientInfo],
    tolerance: Tolerance | None = None,
) -> tuple[Payload, dict[int, int], dict[int, Upload]]:
    """One round: send, train, check, aggregate. Returns the next server state, bytes sent and uploads as they came.

    Without ``tolerance`` whatever goes wrong is a bug of ours and raises; with it, a client that fails is left out.
    """
    sent: dict[int, int] = {}
    opened: dict[int, Upload] = {}

    def ask(clients: Sequence[ClientInfo]) -> Mapping[int, Reply]:
        downs = Downloads(method, state, rnd, clients, task.compress)
        replies = engine.train(rnd, downs)
        sent.update(downs.sizes)
        return replies

    def inspect(client: ClientInfo, up: Upload) -> None:
        if not rnd.closing:
            opened[client.id] = open_upload(method, task, state, client, up, rnd)
        elif tolerance:
            payload.check(up.payload, {}, f"upload of {client.label}, closing visit")

    ups = collect(rnd, participants, ask, inspect, tolerance) if tolerance else demand(participants, ask, inspect)
    if not rnd.closing:
        opened = {i: opened[i] for i in ups}  # in id order
        state = method.server_round(state, delivered(engine, ups), opened, rnd)
    return state, sent, ups


def delivered(engine: Engine, ups: Mapping[int, Upload]) -> list[ClientInfo]:
    """Whose uploads these are, in id order, as the engine knows them now: a client that joins brings its sizes."""
    return [c for c in sorted(engine.clients(), key=lambda c: c.id) if c.id in ups]


def federate(
    method: Method,
    task: Task,
    engine: Engine,
    after_round: AfterRound,
    participation: float = 1.0,
    start: int = 0,
    state: Payload | None = None,
    tolerance: Tolerance | None = None,
    rounds: int | None = None,
) -> Payload:
    """Rounds ``start`` .. ``task.rounds - 1``, then the closing visit in which clients receive the last aggregate.

    With ``rounds``, or when ``after_round`` returns True, there are fewer rounds; the closing visit comes after them.
    """
    clients = sorted(engine.clients(), key=lambda c: c.id)
    if state is None:
        state = method.server_init(task, clients)
    index, total = start, task.rounds if rounds is None else rounds
    while index <= total:
        rnd = Round(index, total)
        participants = draw(clients, participation, task.seed, rnd)
        state, sent, ups = play_round(method, task, engine, state, rnd, participants, tolerance)
        stop = after_round(rnd, delivered(engine, ups), sent, ups, state)
        index += 1
        total = min(index, total) if stop else total
    return state
