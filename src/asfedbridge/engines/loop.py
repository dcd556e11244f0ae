"""The rounds of a run: once, for every method and every engine."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch

from asfedbridge.core import payload, seeds
from asfedbridge.core.payload import Payload
from asfedbridge.core.protocol import ClientInfo, Method, Round, Task, Upload


class Engine(Protocol):
    """Moves payloads. The private states stay where the clients are; they are asked for only to be kept on disk."""

    def clients(self) -> Sequence[ClientInfo]: ...
    def train(self, rnd: Round, downs: Mapping[int, Payload]) -> dict[int, Upload]: ...
    def client_state(self, client: int) -> Payload: ...
    def load_client_state(self, client: int, state: Payload) -> None: ...


# What happened in a round (uploads by client) and the server's state after it.
AfterRound = Callable[[Round, Sequence[ClientInfo], Mapping[int, Payload], Mapping[int, Upload], Payload], None]


def draw(clients: Sequence[ClientInfo], participation: float, run_seed: int, rnd: Round) -> list[ClientInfo]:
    """This round's participants in id order; everybody takes part in the closing visit."""
    count = max(1, round(participation * len(clients)))
    if rnd.closing or count >= len(clients):
        return list(clients)
    generator = seeds.generator(run_seed, "participants", rnd.index)
    chosen = torch.randperm(len(clients), generator=generator)[:count].tolist()
    return [clients[i] for i in sorted(chosen)]


def play_round(
    method: Method, task: Task, engine: Engine, state: Payload, rnd: Round, participants: Sequence[ClientInfo]
) -> tuple[Payload, dict[int, Payload], dict[int, Upload]]:
    """One round: send, train, check, aggregate. Returns the next server state and what crossed either way."""
    downs = {c.id: payload.clone(method.server_send(state, c, rnd)) for c in participants}
    replies = engine.train(rnd, downs)
    ups = {c.id: replies[c.id] for c in participants}  # id order, whatever order they came in
    if not rnd.closing:
        for c in participants:
            payload.check(ups[c.id].payload, method.uploads(task, c), f"upload of {c.label}, round {rnd.index}")
        state = method.server_round(state, participants, ups, rnd)
    return state, downs, ups


def federate(
    method: Method,
    task: Task,
    engine: Engine,
    after_round: AfterRound,
    participation: float = 1.0,
    start: int = 0,
    state: Payload | None = None,
) -> Payload:
    """Rounds ``start`` .. ``task.rounds - 1``, then the closing visit in which clients receive the last aggregate."""
    clients = sorted(engine.clients(), key=lambda c: c.id)
    if state is None:
        state = method.server_init(task, clients)
    for index in range(start, task.rounds + 1):
        rnd = Round(index, task.rounds)
        participants = draw(clients, participation, task.seed, rnd)
        state, downs, ups = play_round(method, task, engine, state, rnd, participants)
        after_round(rnd, participants, downs, ups, state)
    return state
