"""Which node is which client. Who is foreign, has other data or is there twice gets no seat."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from asfedbridge.core import ClientInfo, GuardError
from asfedbridge.deploy.codec import read_count
from asfedbridge.deploy.messages import fault, one_line, replies, send
from asfedbridge.deploy.replies import Answer
from asfedbridge.engines import Event

MOST_EXAMPLES = 10**8
MOST = (10**5, 64, 256, 1000)  # classes, channels, image size, frames: networks are built from what a node says
ASK_AFTER = 20.0  # seconds before a node that got no seat is asked again: it may have been restarted meanwhile
GRACE = 20.0  # seconds that everybody waits for the answer of one that was just asked
ANSWER_WITHIN = 3600.0  # and that it has: it may be at work for a server that was killed
PAUSE = 0.5  # between two looks at who is there
Tell = Callable[[Event], None]
Shape = tuple[int, int, int, int]  # of the data: classes, channels, image size, frames


class Roster:
    """``infos`` are the fleet's clients. Where the data are on the nodes alone, sizes of 0 are filled in by them, and
    what else the first node says of its data must be everybody's; a server that has seen the data gives their shape."""

    def __init__(
        self, grid: Grid, infos: Sequence[ClientInfo], identity: Mapping[str, str], shape: Shape | None = None
    ) -> None:
        self._grid, self._identity = grid, identity
        self.infos = {info.id: info for info in infos}
        self.seats: dict[int, int] = {}  # client: node, of those that are online
        self._common: dict[str, Any] = {"shape": list(shape)} if shape else {}
        self._turned_away: dict[int, tuple[float, str]] = {}  # node: until when, and why
        self._asked: dict[str, int] = {}  # message: node, of those that have not answered yet

    @property
    def shape(self) -> Shape | None:
        """Of everybody's data, once a node has said it."""
        if not self._common:
            return None
        classes, channels, image_size, frames = self._common["shape"]
        return classes, channels, image_size, frames

    def meet(self, tell: Tell) -> None:
        """Ask nodes that are new, seat those that have answered, forget those that are gone. Who was just asked is
        waited for a little; who is busy with another turn answers when it is over, and is met then."""
        online = set(self._grid.get_node_ids())
        self.seats = {client: node for client, node in self.seats.items() if node in online}
        self._turned_away = {node: why for node, why in self._turned_away.items() if node in online}
        self._asked = {message_id: node for message_id, node in self._asked.items() if node in online}
        recently = {node for node, (until, _) in self._turned_away.items() if time.monotonic() < until}
        strangers = sorted(online - set(self.seats.values()) - recently - set(self._asked.values()))
        for node in strangers:
            content = RecordDict({"about": ConfigRecord({"who": "are you"})})
            if message_id := send(self._grid, node, content, MessageType.QUERY, "introduction", ANSWER_WITHIN):
                self._asked[message_id] = node
        answers: dict[int, Answer] = {}
        for message_id, answer in replies(self._grid, list(self._asked), GRACE if strangers else 0.0, 0):
            if answer is not None:
                answers[self._asked.pop(message_id)] = answer
        for node, answer in sorted(answers.items()):  # in order of their numbers, not of their answers
            if event := self._seat(node, answer):
                if self._turned_away.get(node, (0.0, ""))[1] != event.reason:
                    tell(event)
                self._turned_away[node] = (time.monotonic() + ASK_AFTER, event.reason)

    def gather(self, seconds: float, tell: Tell, enough: int = 0) -> None:
        """Until every client has a node, or ``enough`` of them, or time is up."""
        deadline = time.monotonic() + seconds
        self.meet(tell)
        while len(self.seats) < (enough or len(self.infos)) and time.monotonic() < deadline:
            time.sleep(PAUSE)
            self.meet(tell)

    def _seat(self, node: int, answer: Answer) -> Event | None:
        """Give it the seat of the client it says it is, or say why not."""
        if event := fault(answer, None, ANSWER_WITHIN):
            return event
        assert isinstance(answer, Message)
        try:
            about = dict(answer.content["about"]) if "about" in answer.content else {}
            info = self._check(about)
        except (GuardError, TypeError, ValueError) as error:
            return Event("refused", None, f"node {node}: {error}")
        self.infos[info.id] = info
        self._common = self._common or _common(about)
        self.seats[info.id] = node
        self._turned_away.pop(node, None)
        return None

    def _check(self, about: Mapping[str, Any]) -> ClientInfo:
        client = about.get("client")
        if type(client) is not int or client not in self.infos:
            numbers = f"{min(self.infos)} to {max(self.infos)}"
            raise GuardError(
                f"it says it is client {one_line(str(client), 40)}, who is not of this run; set client-id to {numbers}"
            )
        info, what = self.infos[client], f"client {client}"
        if client in self.seats:
            raise GuardError(f"it says it is client {client}, who is there already")
        for name, ours in (("kind", info.full_kind), ("model", f"{info.model}@{info.width:g}")):
            if about.get(name) != ours:
                raise GuardError(f"{what}: its {name} is {one_line(str(about.get(name)), 40)}, not {ours} as in fleet")
        for name, ours in self._identity.items():
            if about.get(f"identity.{name}") != ours:
                raise GuardError(f"{what}: it has another {name} than the server; give it the same")
        sizes = {
            "train": read_count(about, "train", 1, MOST_EXAMPLES, what),
            "test": read_count(about, "test", 1, MOST_EXAMPLES, what),
        }
        known = {"train": info.train_size, "test": info.test_size}
        if info.train_size and sizes != known:
            raise GuardError(f"{what}: it says it has {sizes} examples, not {known}")
        for name, value in _common(about).items():
            if self._common.get(name, value) != value:
                raise GuardError(f"{what}: its {name} is {one_line(str(value), 80)}, others have {self._common[name]}")
        return replace(info, train_size=sizes["train"], test_size=sizes["test"])


def _common(about: Mapping[str, Any]) -> dict[str, Any]:
    shape: Any = about.get("shape")
    fits = isinstance(shape, list) and [type(n) for n in shape] == [int] * 4
    if not fits or not all(0 < n <= most for n, most in zip(shape, MOST, strict=True)):
        raise GuardError(
            f"shape={one_line(str(shape), 80)} is not classes, channels, image size and frames of at most {MOST}"
        )
    return {name: value for name, value in about.items() if name == "shape" or name.startswith("identity.")}
