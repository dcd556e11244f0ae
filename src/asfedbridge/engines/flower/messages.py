"""Messages over Flower's Grid: each with a time to live, replies matched by the message's id."""

import time
from collections.abc import Iterable, Iterator

from flwr.app import Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from asfedbridge.engines.flower import pace
from asfedbridge.engines.tolerance import Event, What

WHAT: dict[int, What] = {
    ErrorCode.NODE_UNAVAILABLE: "lost",
    ErrorCode.CLIENT_APP_CRASHED: "lost",
    ErrorCode.MESSAGE_UNAVAILABLE: "timeout",
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE: "timeout",
}


def send(grid: Grid, node: int, content: RecordDict, kind: str, group: str, ttl: float) -> str:
    """Returns the message's id. After ``ttl`` seconds nobody will execute it, nor take a reply to it."""
    message = Message(content, dst_node_id=node, message_type=kind, group_id=group, ttl=ttl)
    (message_id,) = grid.push_messages([message])
    return message_id


def replies(grid: Grid, message_ids: Iterable[str], timeout: float) -> Iterator[tuple[str, Message | None]]:
    """The reply to each message as it comes, by the message's id (the SuperLink's own errors name no node); None for
    those that did not come."""
    waiting, deadline = set(message_ids), time.monotonic() + timeout
    while waiting and time.monotonic() < deadline:
        for answer in grid.pull_messages(sorted(waiting)):
            message_id = answer.metadata.reply_to_message_id
            if message_id in waiting:
                waiting.discard(message_id)
                yield message_id, answer
        if waiting:
            time.sleep(pace.POLL)
    for message_id in sorted(waiting):
        yield message_id, None


def fault(answer: Message | None, client: int | None, timeout: float) -> Event | None:
    """Why there is nothing to read in an answer; None if there is."""
    if answer is None:
        return Event("timeout", client, f"no reply in {timeout:g} seconds")
    if answer.has_error():
        code, reason = answer.error.code, answer.error.reason or ""
        return Event(WHAT.get(code, "error"), client, f"Flower's error {code}: {one_line(reason)}")
    record = answer.content.get("error")
    if record is not None:
        return Event("error", client, one_line(": ".join(str(record.get(name)) for name in ("kind", "reason"))))
    return None


def one_line(text: str, longest: int = 300) -> str:
    """What comes from outside, fit for a log: printable characters, not many."""
    return "".join(c if c.isprintable() else " " for c in text[:longest])
