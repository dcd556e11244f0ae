"""Messages over Flower's Grid: each with a time to live, replies matched by the message's id."""

import time
from collections.abc import Iterable, Iterator

from flwr.app import Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from asfedbridge.core import GuardError
from asfedbridge.deploy import polling
from asfedbridge.deploy.replies import SLACK, Answer, arrivals
from asfedbridge.engines import Event, What

WHAT: dict[int, What] = {
    ErrorCode.NODE_UNAVAILABLE: "lost",
    ErrorCode.CLIENT_APP_CRASHED: "lost",
    ErrorCode.MESSAGE_UNAVAILABLE: "timeout",
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE: "timeout",
}
LINGER = 30.0  # seconds that a message lives longer than a turn may take: its reply may still be fetched


def send(grid: Grid, node: int, content: RecordDict, kind: str, group: str, seconds: float) -> str | None:
    """Returns the message's id; None if the SuperLink did not take it. It has ``seconds`` for its turn; a little later
    nobody will execute it, nor take a reply to it."""
    message = Message(content, dst_node_id=node, message_type=kind, group_id=group, ttl=seconds + LINGER)
    return next(iter(grid.push_messages([message])), None) or None


def replies(grid: Grid, message_ids: Iterable[str], seconds: float, largest: int) -> Iterator[tuple[str, Answer]]:
    """The reply to each message as it comes, by the message's id; None for those that did not come."""
    waiting, deadline = set(message_ids), time.monotonic() + seconds
    while waiting:
        left = deadline - time.monotonic()
        for message_id, answer in arrivals(grid, sorted(waiting), largest + SLACK, max(left, LINGER / 3)):
            if message_id in waiting:
                waiting.discard(message_id)
                yield message_id, answer
        if left <= 0:  # asked once more after that: somebody slow may have kept us from those that were there
            break
        if waiting:
            time.sleep(min(polling.POLL, left))
    for message_id in sorted(waiting):
        yield message_id, None


def fault(answer: Answer, client: int | None, seconds: float) -> Event | None:
    """Why there is nothing to read in an answer; None if there is."""
    if answer is None:
        return Event("timeout", client, f"no reply in {seconds:g} seconds")
    if isinstance(answer, GuardError):
        return Event("refused", client, f"its reply: {answer}")
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
