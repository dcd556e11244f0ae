"""Clients behind a network: they stay away, fail, or send what they should not. What a round bears and says."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from asfedbridge.core.errors import Diverged, TooFewClients
from asfedbridge.core.payload import GuardError
from asfedbridge.core.task import ClientInfo, Round, Upload

What = Literal["absent", "timeout", "lost", "error", "refused", "joined", "returned"]
ASK_AGAIN = ("absent", "timeout", "lost")  # who gave no answer; an answer that was bad would come out the same


class Event(NamedTuple):
    """Something that happened to a client, or to a node that is no client of this run (None)."""

    what: What
    client: int | None
    reason: str


Reply = Upload | Event  # what came of a client that was asked: its upload, or why there is none
Ask = Callable[[Sequence[ClientInfo]], Mapping[int, Reply]]
Inspect = Callable[[ClientInfo, Upload], None]  # raises if an upload must not be used


@dataclass(frozen=True)
class Tolerance:
    """``min_clients`` usable uploads make a round (0: those of all its participants). When there are fewer, clients
    that did not answer are asked again for ``patience`` seconds; then the run ends."""

    tell: Callable[[Round, Event], None]
    min_clients: int = 0
    patience: float = 0.0
    pause: float = 1.0  # seconds between two attempts


def demand(participants: Sequence[ClientInfo], ask: Ask, inspect: Inspect) -> dict[int, Upload]:
    """The uploads of all participants, in id order; in our own processes a fault is a bug."""
    replies = ask(participants)
    ups: dict[int, Upload] = {}
    for client in participants:
        reply = replies[client.id]
        if isinstance(reply, Event):
            raise RuntimeError(f"client {client.id}: {reply.what}: {reply.reason}")
        inspect(client, reply)
        ups[client.id] = reply
    return ups


def collect(
    rnd: Round, participants: Sequence[ClientInfo], ask: Ask, inspect: Inspect, tolerance: Tolerance
) -> dict[int, Upload]:
    """The usable uploads of a round, in id order. A bad one is refused and named, the others count."""
    need = min(tolerance.min_clients or len(participants), len(participants))
    ups: dict[int, Upload] = {}
    missing: dict[int, Event] = {}
    to_ask = list(participants)
    deadline = time.monotonic() + tolerance.patience
    while True:
        replies = ask(to_ask)
        for client in to_ask:
            reply = _inspected(client, replies[client.id], inspect)
            if isinstance(reply, Event):
                missing[client.id] = reply
            else:
                ups[client.id] = reply
                missing.pop(client.id, None)
        to_ask = [c for c in participants if c.id in missing and missing[c.id].what in ASK_AGAIN]
        if len(ups) >= need or not to_ask or time.monotonic() >= deadline:
            break
        time.sleep(tolerance.pause)
    for event in missing.values():
        tolerance.tell(rnd, event)
    if len(ups) < need:
        raise TooFewClients(
            f"round {rnd.index}: {len(ups)} of {len(participants)} clients delivered, {need} are needed "
            f"({_list(missing.values())}); what the last checkpoint holds is kept, go on with resume=True "
            f"(resume=true of flwr run)"
        )
    return {c.id: ups[c.id] for c in participants if c.id in ups}


def _inspected(client: ClientInfo, reply: Reply, inspect: Inspect) -> Reply:
    if isinstance(reply, Event):
        return reply
    try:
        inspect(client, reply)
    except (GuardError, Diverged) as error:
        return Event("refused", client.id, str(error))
    return reply


def _list(events: Iterable[Event]) -> str:
    return ", ".join(f"client {e.client}: {e.what}" for e in events)
