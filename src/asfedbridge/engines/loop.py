"""The round loop, the same for every method and every engine."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch

from asfedbridge.core import compression, norms, payload, seeds
from asfedbridge.core.compression import Codec
from asfedbridge.core.errors import GuardError
from asfedbridge.core.method import Method
from asfedbridge.core.payload import Payload
from asfedbridge.core.task import ClientInfo, Round, Task, Upload
from asfedbridge.engines.failures import Reply, Tolerance, collect, demand
from asfedbridge.engines.server import Server


class Engine(Protocol):
    """Moves payloads between server and clients. Private client states are stored where the clients run."""

    def describe(self) -> dict[str, Any]:
        """The engine's entries in the summary: its name under ``engine``, and its settings."""
        ...

    def clients(self) -> Sequence[ClientInfo]: ...

    def train(self, rnd: Round, downs: Mapping[int, Payload]) -> Mapping[int, Reply]:
        """A turn for every key of ``downs``. Values are computed on access and share the server's memory: copy or send
        them, and keep no reference. Only an engine that uses a network may return events."""
        ...

    def save(self) -> Mapping[str, str]:
        """Write the states of clients that trained since the last call. Returns name and checksum of every state; files
        returned by the previous call are not removed. The checkpoint that refers to the files flushes them."""
        ...

    def restore(self, states: Mapping[str, str]) -> None:
        """Restore every client to what ``save`` returned; BadInput if a file is missing or damaged."""
        ...

    def close(self) -> None: ...


# Called after each round with its outcome (participants, bytes sent and uploads by client) and the next server state.
# Returning True makes this round the last.
AfterRound = Callable[[Round, Sequence[ClientInfo], Mapping[int, int], Mapping[int, Upload], Payload], bool | None]


class Downloads(Mapping[int, Payload]):
    """The server's payloads of a round, by client: computed on access, not stored, bytes counted."""

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
        return client in self._clients  # Mapping's own would compute the download

    def __iter__(self) -> Iterator[int]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)


def count_at_work(clients: int, participation: float) -> int:
    """How many clients take part in a round."""
    return min(clients, max(1, round(participation * clients)))


def draw(
    clients: Sequence[ClientInfo],
    participation: float,
    run_seed: int,
    rnd: Round,
    tolerance: Tolerance | None = None,
) -> list[ClientInfo]:
    """The round's participants in id order, drawn from the clients not in quarantine; all clients take part in the
    closing visit."""
    if rnd.closing:
        return list(clients)
    count = count_at_work(len(clients), participation)
    if tolerance:
        clients = tolerance.quarantine.admit(clients, rnd.index, tolerance.need(count))
    if count >= len(clients):
        return list(clients)
    generator = seeds.generator(run_seed, "participants", rnd.index)
    chosen = torch.randperm(len(clients), generator=generator)[:count].tolist()
    return [clients[i] for i in sorted(chosen)]


def draw_reserve(
    clients: Sequence[ClientInfo],
    participants: Sequence[ClientInfo],
    run_seed: int,
    rnd: Round,
    tolerance: Tolerance,
) -> list[ClientInfo]:
    """Replacements for participants that fail, in this order: clients not drawn for the round and not in quarantine."""
    drawn = {c.id for c in participants}
    left = [c for c in clients if c.id not in drawn and tolerance.quarantine.ends(c.id) <= rnd.index]
    generator = seeds.generator(run_seed, "reserve", rnd.index)
    return [left[i] for i in torch.randperm(len(left), generator=generator).tolist()]


def open_upload(method: Method, task: Task, state: Payload, client: ClientInfo, up: Upload, rnd: Round) -> Upload:
    """Decode an upload and check it; GuardError if it must not be used."""
    whose, declared = f"upload of {client.label}, round {rnd.index}", method.uploads(task, client)
    start = method.server_send(state, client, rnd) if method.continues and task.compress != "none" else {}
    opened = compression.restore_upload(up.payload, start, declared, task.compress, whose, method.partial)
    try:
        method.check_upload(task, client, opened, rnd)
    except GuardError as error:
        raise GuardError(f"{whose}: {error}") from None
    return replace(up, payload=opened)


def play_round(
    method: Method,
    task: Task,
    engine: Engine,
    state: Payload,
    rnd: Round,
    participants: Sequence[ClientInfo],
    tolerance: Tolerance | None = None,
    reserve: Sequence[ClientInfo] = (),
    origin: float = 0.0,
) -> tuple[Payload, dict[int, int], dict[int, Upload]]:
    """One round: send, train, check, aggregate. Returns the next server state, bytes sent and the uploads as received.

    Without ``tolerance`` any failure is a bug and raises. With it, a client that fails is left out, one of the
    ``reserve`` may replace it, and a round with too few usable uploads leaves the state unchanged. ``origin`` is the
    size of the run's initial state, for the norm guard.
    """
    sent: dict[int, int] = {}
    opened: dict[int, Upload] = {}
    known: dict[int, ClientInfo] = {}  # read after the turn: a client that joins reports its sizes
    server, after = Server(method, task, state, rnd, origin), state

    def ask(clients: Sequence[ClientInfo]) -> Mapping[int, Reply]:
        downs = Downloads(method, state, rnd, clients, task.compress)
        replies = engine.train(rnd, downs)
        sent.update(downs.sizes)
        known.update((c.id, c) for c in engine.clients())
        return replies

    def inspect(client: ClientInfo, up: Upload) -> None:
        if not rnd.closing:
            opened[client.id] = open_upload(method, task, state, known[client.id], up, rnd)
        elif tolerance:
            payload.check(up.payload, {}, f"upload of {client.label}, closing visit")

    def settle(ups: Mapping[int, Upload]) -> Mapping[int, str]:
        nonlocal after
        if rnd.closing:
            return {}
        after, refused = server.conclude_with_usable(delivered(engine, ups), opened)
        return refused

    if tolerance:
        ups = collect(rnd, participants, reserve, ask, inspect, settle, tolerance)
        return after if ups else state, sent, ups
    ups = demand(participants, ask, inspect)
    return state if rnd.closing else server.conclude(delivered(engine, ups), opened), sent, ups


def delivered(engine: Engine, ups: Mapping[int, Upload]) -> list[ClientInfo]:
    """The clients of these uploads in id order, as the engine knows them now: a client that joins reports its sizes."""
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
    """Rounds ``start`` to ``task.rounds - 1``, then the closing visit, in which clients receive the last aggregate.

    ``rounds``, or ``after_round`` returning True, ends the rounds earlier; the closing visit still follows.
    """
    clients = sorted(engine.clients(), key=lambda c: c.id)
    initial = method.server_init(task, clients) if state is None or (method.continues and task.norm_guard) else {}
    origin = max(norms.rms(initial), norms.DEFAULT_SIZE) if initial else 0.0
    state = initial if state is None else state
    index, total = start, task.rounds if rounds is None else rounds
    while index <= total:
        rnd = Round(index, total)
        participants = draw(clients, participation, task.seed, rnd, tolerance)
        reserve = draw_reserve(clients, participants, task.seed, rnd, tolerance) if tolerance else []
        state, sent, ups = play_round(method, task, engine, state, rnd, participants, tolerance, reserve, origin)
        stop = after_round(rnd, delivered(engine, ups), sent, ups, state)
        index += 1
        total = min(index, total) if stop else total
    return state
