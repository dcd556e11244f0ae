"""Failures of clients behind a network: retries, replacements, quarantine and void rounds."""

import itertools
import math
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from asfedbridge.core.errors import Diverged, GuardError, TooFewClients
from asfedbridge.core.task import ClientInfo, Round, Upload

What = Literal["absent", "timeout", "lost", "error", "refused", "quarantined", "joined", "returned", "void"]
LONGEST_PAUSE = 16  # rounds
MAX_VOID_ROUNDS = 3  # in a row, before the run fails
LONGEST_REASON = 200  # characters of an exception's text
SILENT = ("timeout", "lost")  # the client was asked but did not reply
ASK_AGAIN = ("absent", "timeout", "lost")  # asked again in the same round; a bad reply would only be repeated


class Event(NamedTuple):
    """An event of a client. ``client`` is None for a node that is not a client of this run, and for the whole round."""

    what: What
    client: int | None
    reason: str


Reply = Upload | Event  # a client's upload, or the reason why there is none
Ask = Callable[[Sequence[ClientInfo]], Mapping[int, Reply]]
Inspect = Callable[[ClientInfo, Upload], None]  # raises if an upload must not be used
Settle = Callable[
    [Mapping[int, Upload]], Mapping[int, str]
]  # accepted uploads -> reasons to refuse some of them after all


class Quarantine:
    """Clients that are not asked for a while, for pauses that grow up to ``LONGEST_PAUSE`` rounds.

    After its first refused upload a client pauses for one round, after the next for two, then four ... The same holds
    for missing replies (a timeout, a node or process that died in its turn) from the second in a row on, because each
    delays the round by the whole time limit of a turn. A usable upload resets that count. The pauses are a function
    of the recorded events and rounds, so a resumed run has the same ones.
    """

    def __init__(self) -> None:
        self._refused: dict[int, set[int]] = {}  # client -> rounds
        self._silent: dict[int, set[int]] = {}
        self._delivered: dict[int, int] = {}  # client -> its last round

    def note(self, client: int, index: int, what: str = "refused") -> None:
        """Record an event of a client in round ``index``; events without consequences are ignored."""
        if what == "refused":
            self._refused.setdefault(client, set()).add(index)
        elif what in SILENT:
            self._silent.setdefault(client, set()).add(index)

    def note_delivery(self, client: int, index: int) -> None:
        """The client's upload of round ``index`` was used."""
        self._delivered[client] = max(index, self._delivered.get(client, 0))

    def ends(self, client: int) -> int:
        """The first round in which the client may be asked again."""
        refused, silent = self._refused.get(client, set()), self._in_a_row(client)
        return max(_resume(refused, len(refused)), _resume(silent, len(silent) - 1))

    def explain(self, client: int) -> str:
        """Why the client is not asked, and until when; empty if it is asked in the next round."""
        refused, silent = self._refused.get(client, set()), self._in_a_row(client)
        last = max(refused | silent)
        if (first := self.ends(client)) <= last + 1:
            return ""
        count = len(refused)
        why = f"refused in {count} round{'s' if count > 1 else ''}"
        if last not in refused:
            why = f"no reply {len(silent)} times in a row"
        return f"{why}; not asked before round {first}"

    def _in_a_row(self, client: int) -> set[int]:
        """The rounds without a reply since the last upload that was used."""
        return {n for n in self._silent.get(client, ()) if n > self._delivered.get(client, -1)}

    def admit(self, clients: Sequence[ClientInfo], index: int, least: int) -> list[ClientInfo]:
        """The clients that may be asked in round ``index``. If they are fewer than ``least``, the shortest remaining
        pauses end early."""
        order = sorted(clients, key=lambda c: (max(self.ends(c.id) - index, 0), c.id))
        free = sum(self.ends(c.id) <= index for c in clients)
        chosen = {c.id for c in order[: max(free, least)]}
        return [c for c in clients if c.id in chosen]


@dataclass(frozen=True)
class Tolerance:
    """A round needs ``min_clients`` usable uploads. 0: half of its participants, at least two; -1: all of them.

    With fewer, clients that did not reply are asked again for up to ``patience`` seconds. Clients from the reserve
    replace those whose uploads were refused, and finally those that did not reply. When the reserve is exhausted the
    run fails, unless all missing uploads were refused: then the round is void.
    """

    tell: Callable[[Round, Event], None]
    min_clients: int = 0
    patience: float = 0.0
    pause: float = 1.0  # seconds between attempts
    quarantine: Quarantine = field(default_factory=Quarantine)
    void: set[int] = field(default_factory=set)  # rounds

    def note(self, index: int, what: str, client: int | None) -> None:
        """Record an event of round ``index``. A resumed run replays its events, which restores all state kept here."""
        if what == "void":
            self.void.add(index)
        elif client is not None:
            self.quarantine.note(client, index, what)

    def void_before(self, index: int) -> int:
        """The number of consecutive void rounds before this one."""
        return next(n for n in itertools.count() if index - n - 1 not in self.void)

    def need(self, participants: int) -> int:
        """The number of usable uploads that a round of so many participants needs."""
        if self.min_clients < 0:
            return participants
        return min(self.min_clients or max(2, math.ceil(participants / 2)), participants)


def demand(participants: Sequence[ClientInfo], ask: Ask, inspect: Inspect) -> dict[int, Upload]:
    """The uploads of all participants, in id order. For engines in our own processes, where any failure is a bug."""
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
    rnd: Round,
    participants: Sequence[ClientInfo],
    reserve: Sequence[ClientInfo],
    ask: Ask,
    inspect: Inspect,
    settle: Settle,
    tolerance: Tolerance,
) -> dict[int, Upload]:
    """The usable uploads of a round, in id order; none if it is void. Bad uploads are refused and reported.

    Clients of the ``reserve`` replace participants that fail, in this order. The last call of ``settle`` had the
    returned uploads and those that it refused in that call.
    """
    need = tolerance.need(len(participants))
    ups: dict[int, Upload] = {}
    missing: dict[int, Event] = {}
    asked = to_ask = list(participants)
    spare = list(reserve)
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
        if len(ups) >= need:
            ups = dict(sorted(ups.items()))
            for number, reason in settle(ups).items():
                missing[number] = Event("refused", number, reason)
                del ups[number]
        if len(ups) >= need:
            break
        late = time.monotonic() >= deadline
        failed = sum(late or event.what not in ASK_AGAIN for event in missing.values())
        replaced = len(asked) - len(participants)
        if (places := min(need - len(ups), failed - replaced, len(spare))) > 0:
            to_ask, spare = spare[:places], spare[places:]
            asked = [*asked, *to_ask]
            continue
        to_ask = [c for c in asked if c.id in missing and missing[c.id].what in ASK_AGAIN]
        if late or not to_ask:
            break
        time.sleep(tolerance.pause)
    for _, event in sorted(missing.items()):
        _tell(rnd, event, tolerance)
    if len(ups) >= need:
        for number in ups:
            tolerance.quarantine.note_delivery(number, rnd.index)
        return ups
    delivered = f"{len(ups)} of {len(asked)} clients sent a usable upload, {need} are needed"
    if len(ups) + sum(event.what == "refused" for event in missing.values()) >= need:
        if rnd.closing:
            return ups  # nothing is aggregated in the closing visit
        if tolerance.void_before(rnd.index) + 1 < MAX_VOID_ROUNDS:
            _tell(rnd, Event("void", None, f"{delivered}; the server's state is unchanged"), tolerance)
            return {}
    raise TooFewClients(
        f"round {rnd.index}: {delivered} ({_list(missing.values())}); the last checkpoint is intact, continue "
        f"with resume=True (flwr run: resume=true)"
    )


def _tell(rnd: Round, event: Event, tolerance: Tolerance) -> None:
    tolerance.tell(rnd, event)
    if rnd.closing:
        return
    tolerance.note(rnd.index, event.what, event.client)
    if event.client is None or event.what not in ("refused", *SILENT):
        return
    if why := tolerance.quarantine.explain(event.client):
        tolerance.tell(rnd, Event("quarantined", event.client, why))


def _inspected(client: ClientInfo, reply: Reply, inspect: Inspect) -> Reply:
    if isinstance(reply, Event):
        return reply
    try:
        inspect(client, reply)
    except Exception as error:
        return Event("refused", client.id, explain(error))
    return reply


def explain(error: Exception) -> str:
    """One line about an exception; for a bug in the code, with its place."""
    if isinstance(error, GuardError | Diverged):
        return str(error)
    frame = traceback.extract_tb(error.__traceback__)[-1]
    text = " ".join(str(error).split())[:LONGEST_REASON]
    return f"{type(error).__name__}: {text} ({Path(frame.filename).name}, line {frame.lineno})"


def _resume(rounds: set[int], times: int) -> int:
    """The first round after a pause that begins with the last of ``rounds`` and doubles each time."""
    return max(rounds) + 1 + min(2 ** (times - 1), LONGEST_PAUSE) if times > 0 else 0


def _list(events: Iterable[Event]) -> str:
    return ", ".join(f"client {e.client}: {e.what}" for e in events)
