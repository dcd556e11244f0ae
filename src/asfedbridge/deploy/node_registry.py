"""Assigns nodes to clients. Nodes that are unknown, duplicated or have other data are rejected."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from asfedbridge.core import ClientInfo, GuardError, one_line
from asfedbridge.deploy.bells import NODE, ring
from asfedbridge.deploy.codec import read_count
from asfedbridge.deploy.messages import fault, replies, send
from asfedbridge.deploy.replies import Answer
from asfedbridge.engines import Event

MAX_EXAMPLES = 10**8
# Classes, channels, image size, frames: the server builds networks from what a node reports.
MAX_SHAPE = (10**5, 64, 256, 1000)
ASK_AFTER = 20.0  # seconds before a rejected node is asked again: it may have been restarted
GRACE = 20.0  # seconds that a round waits for nodes that were just asked
ANSWER_WITHIN = 3600.0  # seconds such a node has to answer: it may still be busy for a server that was killed
PAUSE = 0.5  # seconds between checks for new nodes
REMIND_AFTER = 30.0  # seconds between messages about missing clients
Tell = Callable[[Event], None]
Shape = tuple[int, int, int, int]  # classes, channels, image size, frames


class Roster:
    """``infos`` are the fleet's clients. With data=nodes, the nodes report their sizes (0 until then), and the shape
    that most of them report must be that of all (``agree``); a server that has the data passes their ``shape``."""

    def __init__(
        self, grid: Grid, infos: Sequence[ClientInfo], identity: Mapping[str, str], shape: Shape | None = None
    ) -> None:
        self._grid, self._identity = grid, identity
        self.infos = {info.id: info for info in infos}
        self.seats: dict[int, int] = {}  # client -> node, if online
        self._owners: dict[int, int] = {}  # client -> its last node; while that is online, no other can take its place
        self._common: dict[str, Any] = {"shape": list(shape)} if shape else {}
        # Until the nodes agree: client -> its entry before it had a node, and what its node reports of the data.
        self._reported: dict[int, tuple[ClientInfo, dict[str, Any]]] = {}
        self._turned_away: dict[int, tuple[float, str]] = {}  # rejected node -> until when, and why
        self._asked: dict[str, int] = {}  # message -> node that has not answered yet

    @property
    def shape(self) -> Shape | None:
        """The shape of the data, once the nodes have agreed on it."""
        if not self._common:
            return None
        classes, channels, image_size, frames = self._common["shape"]
        return classes, channels, image_size, frames

    def meet(self, tell: Tell) -> None:
        """Ask new nodes to introduce themselves, assign those that answered, drop those that are offline. Waits briefly
        for nodes just asked; a node busy with another turn answers when it is done and is assigned then."""
        self._meet(tell)
        self.agree(tell)

    def agree(self, tell: Tell) -> None:
        """Fix the shape of the data as reported by most of the assigned nodes; in a tie the lowest client id decides.
        Nodes that report another one are rejected."""
        votes = [self._reported[client][1] for client in sorted(self.seats) if client in self._reported]
        if self._common or not votes:
            return
        self._common = max(votes, key=votes.count)
        for client, (info, reported) in self._reported.items():
            if client in self.seats and (why := _difference(client, reported, self._common)):
                node, self.infos[client] = self.seats.pop(client), info
                self._turn_away(node, Event("refused", None, f"node {node}: {why}"), tell)
        self._reported = {}

    def _meet(self, tell: Tell) -> None:
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
        if strangers:
            ring(NODE.format("*"))
        answers: dict[int, Answer] = {}
        for message_id, answer in replies(self._grid, list(self._asked), GRACE if strangers else 0.0, 0):
            if answer is not None:
                answers[self._asked.pop(message_id)] = answer
        for client, node in list(self._owners.items()):
            if node not in online or _claim(answers.get(node), client) != client:
                del self._owners[client]  # gone, or restarted as another client
        for node, answer in sorted(answers.items()):  # by node id, not in order of arrival
            if event := self._seat(node, answer):
                self._turn_away(node, event, tell)

    def _turn_away(self, node: int, event: Event, tell: Tell) -> None:
        if self._turned_away.get(node, (0.0, ""))[1] != event.reason:
            tell(event)
        self._turned_away[node] = (time.monotonic() + ASK_AFTER, event.reason)

    def gather(
        self, seconds: float, tell: Tell, enough: int = 0, remind: Callable[[list[int]], None] = lambda missing: None
    ) -> None:
        """Wait until all clients, or ``enough`` of them, have a node, or time is up; ``remind`` reports missing
        clients. Call ``agree`` afterwards: the first node does not decide for all."""
        begin = reminded = time.monotonic()
        self._meet(tell)
        while len(self.seats) < (enough or len(self.infos)) and time.monotonic() < begin + seconds:
            if time.monotonic() > reminded + REMIND_AFTER:
                reminded = time.monotonic()
                remind([client for client in self.infos if client not in self.seats])
            time.sleep(PAUSE)
            self._meet(tell)

    def _seat(self, node: int, answer: Answer) -> Event | None:
        """Assign the node to the client it names; returns why it was rejected, if it was."""
        if event := fault(answer, None, ANSWER_WITHIN):
            return event
        assert isinstance(answer, Message)
        try:
            about = dict(answer.content["about"]) if "about" in answer.content else {}
            info = self._check(about, node)
        except (GuardError, TypeError, ValueError) as error:
            return Event("refused", None, f"node {node}: {error}")
        if not self._common:
            before, _ = self._reported.get(info.id, (self.infos[info.id], {}))
            self._reported[info.id] = before, _common(about)
        self.infos[info.id] = info
        self.seats[info.id] = self._owners[info.id] = node
        self._turned_away.pop(node, None)
        return None

    def _check(self, about: Mapping[str, Any], node: int) -> ClientInfo:
        client = about.get("client")
        if type(client) is not int or client not in self.infos:
            numbers = f"{min(self.infos)} to {max(self.infos)}"
            raise GuardError(
                f"it reports client-id={one_line(str(client), 40)}, not one of this run; set client-id to {numbers}"
            )
        info, what = self.infos[client], f"client {client}"
        if client in self.seats or self._owners.get(client, node) != node:
            raise GuardError(f"it reports client-id={client}, which another node has already")
        for name, ours in (("kind", info.full_kind), ("model", f"{info.model}@{info.width:g}")):
            if about.get(name) != ours:
                raise GuardError(f"{what}: its {name} is {one_line(str(about.get(name)), 40)}, not {ours} as in fleet")
        for name, ours in self._identity.items():
            if about.get(f"identity.{name}") != ours:
                raise GuardError(f"{what}: its {name} differs from the server's; both must be the same")
        sizes = {
            "train": read_count(about, "train", 1, MAX_EXAMPLES, what),
            "test": read_count(about, "test", 1, MAX_EXAMPLES, what),
        }
        known = {"train": info.train_size, "test": info.test_size}
        if info.train_size and sizes != known:
            raise GuardError(f"{what}: it reports {sizes} examples, expected {known}")
        if why := _difference(client, _common(about), self._common):
            raise GuardError(why)
        return replace(info, train_size=sizes["train"], test_size=sizes["test"])


def _claim(answer: Answer, known: int) -> Any:
    """The client that a node reports; ``known`` if it has not answered or its answer is not usable."""
    if not isinstance(answer, Message) or not answer.has_content():
        return known
    about: Any = answer.content.get("about")
    return about.get("client", known) if isinstance(about, ConfigRecord) else known


def _common(about: Mapping[str, Any]) -> dict[str, Any]:
    shape: Any = about.get("shape")
    fits = isinstance(shape, list) and [type(n) for n in shape] == [int] * 4
    if not fits or not all(0 < n <= most for n, most in zip(shape, MAX_SHAPE, strict=True)):
        raise GuardError(
            f"shape={one_line(str(shape), 80)} is not classes, channels, image size and frames of at most {MAX_SHAPE}"
        )
    return {name: value for name, value in about.items() if name == "shape" or name.startswith("identity.")}


def _difference(client: int, reported: Mapping[str, Any], common: Mapping[str, Any]) -> str:
    """Where the data of a client differ from the others'; empty if they do not."""
    for name, value in reported.items():
        if (others := common.get(name, value)) != value:
            own, theirs = one_line(str(value), 80), one_line(str(others), 80)
            return f"client {client}: its {name} is {own}, the others have {theirs}"
    return ""
