"""Flower's Grid without a network: a message is serialised, the ClientApp answers at once in this process."""

from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity


def copied(content: RecordDict) -> RecordDict:
    return recorddict_from_proto(recorddict_to_proto(content))


class InProcessGrid(Grid):
    """``nodes`` by node id: a ClientApp and its node config. ``meddle`` may change a reply, or lose it (None)."""

    def __init__(self, nodes: dict[int, tuple[Any, dict[str, Any]]]) -> None:
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
        self.nodes = nodes
        self.meddle: Callable[[int, Message, Message], Message | None] = lambda node, message, reply: reply
        self.sent: list[tuple[int, Message]] = []
        self._replies: dict[str, Message] = {}

    def set_run(self, run: Run) -> None: ...

    @property
    def run(self) -> Run:
        return Run.create_empty(run_id=1)

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            number = f"message-{len(self.sent)}"
            ids.append(number)
            node = message.metadata.dst_node_id
            self.sent.append((node, message))
            reply = self._answer(node, message, number)
            if reply is not None:
                reply.metadata.__dict__["_reply_to_message_id"] = number
                self._replies[number] = reply
        return ids

    def _answer(self, node: int, message: Message, number: str) -> Message | None:
        app, config = self.nodes[node]
        kind, ttl = message.metadata.message_type, message.metadata.ttl
        theirs = Message(copied(message.content), dst_node_id=node, message_type=kind, ttl=ttl)
        theirs.metadata.__dict__["_message_id"] = number
        context = Context(run_id=1, node_id=node, node_config=config, state=RecordDict(), run_config={})
        try:
            reply = app(theirs, context)
        except Exception as error:
            reply = Message(Error(2, str(error)), reply_to=theirs)
        assert not context.state, "private state does not belong in Flower's context"
        return self.meddle(node, theirs, reply)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(i) for i in list(message_ids) if i in self._replies]

    def create_message(self, *args: Any, **options: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        raise NotImplementedError
