"""Which node is which client. Who is foreign, has other data or is there twice gets no seat."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from asfedbridge.core.payload import GuardError
from asfedbridge.core.protocol import ClientInfo
from asfedbridge.engines.flower.messages import fault, one_line, replies, send
from asfedbridge.engines.flower.parcel import read_count
from asfedbridge.engines.tolerance import Event

MOST_EXAMPLES = 10**8
ASK_AFTER = 20.0  # seconds before a node that got no seat is asked again: it may have been restarted meanwhile
ASK_SILENT_AFTER = 600.0  # and one that did not answer, for which everybody has to wait
PATIENCE = 120.0  # seconds for an answer
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

    @property
    def shape(self) -> Shape | None:
        """Of everybody's data, once a node has said it."""
        if not self._common:
            return None
        classes, channels, image_size, frames = self._common["shape"]
        return classes, channels, image_size, frames

    def meet(self, tell: Tell) -> None:
        """Ask nodes that are new; forget those that are gone."""
        online = set(self._grid.get_node_ids())
        self.seats = {client: node for client, node in self.seats.items() if node in online}
        self._turned_away = {node: why for node, why in self._turned_away.items() if node in online}
        recently = {node for node, (until, _) in self._turned_away.items() if time.monotonic() < until}
        strangers = sorted(online - set(self.seats.values()) - recently)
        asked = {self._ask(node): node for node in strangers}
        answers = {asked[i]: answer for i, answer in replies(self._grid, asked, PATIENCE)}
        for node in strangers:  # in order of their numbers, not of their answers
            if event := self._seat(node, answers[node]):
                if self._turned_away.get(node, (0.0, ""))[1] != event.reason:
                    tell(event)
                pause = ASK_SILENT_AFTER if event.what == "timeout" else ASK_AFTER
                self._turned_away[node] = (time.monotonic() + pause, event.reason)

    def gather(self, seconds: float, tell: Tell) -> None:
        """Until every client has a node, or time is up."""
        deadline = time.monotonic() + seconds
        self.meet(tell)
        while len(self.seats) < len(self.infos) and time.monotonic() < deadline:
            time.sleep(0.5)
            self.meet(tell)

    def _ask(self, node: int) -> str:
        content = RecordDict({"about": ConfigRecord({"who": "are you"})})
        return send(self._grid, node, content, MessageType.QUERY, "introduction", PATIENCE)

    def _seat(self, node: int, answer: Message | None) -> Event | None:
        """Give it the seat of the client it says it is, or say why not."""
        if event := fault(answer, None, PATIENCE):
            return event
        assert answer
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
            raise GuardError(f"it says it is client {one_line(str(client), 40)}, who is not of this run")
        info, what = self.infos[client], f"client {client}"
        if client in self.seats:
            raise GuardError(f"it says it is client {client}, who is there already")
        for name, ours in (("kind", info.full_kind), ("model", f"{info.model}@{info.width:g}")):
            if about.get(name) != ours:
                raise GuardError(f"{what}: its {name} is {one_line(str(about.get(name)), 40)}, not {ours} as in fleet")
        for name, ours in self._identity.items():
            if about.get(f"identity.{name}") != ours:
                raise GuardError(f"{what}: it has another {name} than the server")
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
    shape = about.get("shape")
    if not isinstance(shape, list) or len(shape) != 4 or not all(type(n) is int and 0 < n < 10**6 for n in shape):
        raise GuardError(f"shape={one_line(str(shape), 80)} is not classes, channels, image size and frames")
    return {name: value for name, value in about.items() if name == "shape" or name.startswith("identity.")}
