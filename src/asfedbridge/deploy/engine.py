"""The server side: an engine whose clients are Flower's SuperNodes. One message per client and round, and one reply."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from asfedbridge.core import ClientInfo, GuardError, Method, Payload, Round, Task, Upload, one_line
from asfedbridge.deploy.bells import NODE, ring
from asfedbridge.deploy.codec import pack, unpack
from asfedbridge.deploy.messages import LONGEST_REASON, fault, replies, send
from asfedbridge.deploy.node_registry import Roster
from asfedbridge.deploy.node_states import before_round
from asfedbridge.deploy.replies import Answer
from asfedbridge.engines import ASK_AGAIN, Event, Reply, Tolerance, owner, state_name

ON_THE_NODE = "node"  # instead of a checksum: the state is on the node


class FlowerEngine:
    """``run`` is the run's name on the nodes; a turn may take ``timeout`` seconds."""

    def __init__(
        self, grid: Grid, roster: Roster, method: Method, task: Task, tolerance: Tolerance, run: str, timeout: float
    ) -> None:
        self._grid, self._roster, self._method, self._task = grid, roster, method, task
        self._tolerance, self._run, self._timeout = tolerance, run, timeout
        self._since: dict[int, int] = {}  # client -> the round after its last turn
        self._next = self._safe = 0  # the round after the last one; the round that continues from the checkpoint
        sizes = [method.uploads(task, info).values() for info in roster.infos.values()]
        self._largest = 4 * max((sum(map(math.prod, shapes)) for shapes in sizes), default=0)  # bytes of an upload
        self._away = set(roster.infos) - set(roster.seats)  # clients whose next upload is reported as an event

    def describe(self) -> dict[str, Any]:
        return {"engine": "flower", "workers": len(self._roster.infos)}

    def clients(self) -> Sequence[ClientInfo]:
        return list(self._roster.infos.values())

    def train(self, rnd: Round, downs: Mapping[int, Payload]) -> dict[int, Reply]:
        self._roster.meet(lambda event: self._tolerance.tell(rnd, event))
        found: dict[int, Reply] = {}
        sent: dict[str, int] = {}
        for client in downs:
            if client in self._roster.seats:
                parcel = self._parcel(rnd, client, downs[client])
                node = self._roster.seats[client]
                message_id = send(self._grid, node, parcel, MessageType.TRAIN, str(rnd.index), self._timeout)
                if message_id:
                    sent[message_id] = client
                    ring(NODE.format(client))
                else:
                    found[client] = Event("lost", client, "the SuperLink accepts no messages for its node")
            else:
                found[client] = Event("absent", client, "none of its nodes is online")
        for message_id, answer in replies(self._grid, sent, self._timeout, self._largest):
            found[sent[message_id]] = self._read(rnd, sent[message_id], answer)
        for client, reply in sorted(found.items()):
            self._notice(rnd, client, reply)
        self._next = rnd.index + 1
        return found

    def save(self) -> Mapping[str, str]:
        """States are on the nodes; a checkpoint records only their rounds."""
        self._safe = self._next
        return {state_name(client, since): ON_THE_NODE for client, since in sorted(self._since.items())}

    def restore(self, states: Mapping[str, str]) -> None:
        self._since = {client: before_round(name) for name in states if (client := owner(name)) is not None}
        self._safe = max(self._since.values(), default=0)

    def close(self) -> None:
        pass

    def _parcel(self, rnd: Round, client: int, down: Payload) -> RecordDict:
        since = self._since.get(client, 0)
        about = {"run": self._run, "client": client, "round": rnd.index, "since": since, "safe": self._safe}
        if rnd.total < self._task.rounds:  # stopped early: this is the closing visit
            about["total"] = rnd.total
        return pack(down, self._method.downloads(self._task, self._roster.infos[client]), about)

    def _read(self, rnd: Round, client: int, answer: Answer) -> Reply:
        if event := fault(answer, client, self._timeout):
            return event
        assert isinstance(answer, Message)
        info = self._roster.infos[client]
        what = f"upload of {info.label}, round {rnd.index}"
        declared = {} if rnd.closing else self._method.uploads(self._task, info)
        expected = {"client": client, "round": rnd.index, "train": info.train_size}
        try:
            payload, about, metrics = unpack(answer.content, declared, self._task.compress, what)
            if about != expected:
                raise GuardError(
                    f"{what}: it describes itself as {one_line(str(about), LONGEST_REASON)}, expected {expected}"
                )
        except GuardError as error:
            return Event("refused", client, str(error))
        return Upload(payload, metrics)

    def _notice(self, rnd: Round, client: int, reply: Reply) -> None:
        if isinstance(reply, Event):
            if reply.what in ASK_AGAIN:
                self._away.add(client)
            else:  # the node may have changed: it must introduce itself again
                self._roster.seats.pop(client, None)
            return
        if client in self._away:
            self._away.discard(client)
            if client in self._since:
                told = Event("returned", client, f"it trained last in round {self._since[client] - 1}")
                self._tolerance.tell(rnd, told)
            elif rnd.index:
                self._tolerance.tell(rnd, Event("joined", client, "its first turn"))
        if not rnd.closing:
            self._since[client] = rnd.index + 1
