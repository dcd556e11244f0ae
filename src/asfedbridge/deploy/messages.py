"""Messages over Flower's Grid: each has a time to live; replies are matched by the message's id."""

import time
from collections.abc import Iterable, Iterator

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from asfedbridge.core import GuardError, one_line
from asfedbridge.deploy import polling
from asfedbridge.deploy.flwr_internals import ErrorCode
from asfedbridge.deploy.replies import SLACK, Answer, arrivals
from asfedbridge.engines import Event, What

WHAT: dict[int, What] = {
    ErrorCode.NODE_UNAVAILABLE: "lost",
    ErrorCode.CLIENT_APP_CRASHED: "lost",
    ErrorCode.MESSAGE_UNAVAILABLE: "timeout",
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE: "timeout",
}
LONGEST_REASON = 300  # characters of a node's text
LINGER = 30.0  # seconds that a message outlives its turn, so that its reply can still be fetched


def send(grid: Grid, node: int, content: RecordDict, kind: str, group: str, seconds: float) -> str | None:
    """Returns the message's id; None if the SuperLink did not accept it. The turn may take ``seconds``; shortly after
    that the message expires."""
    message = Message(content, dst_node_id=node, message_type=kind, group_id=group, ttl=seconds + LINGER)
    return next(iter(grid.push_messages([message])), None) or None


def replies(grid: Grid, message_ids: Iterable[str], seconds: float, largest: int) -> Iterator[tuple[str, Answer]]:
    """Yields message id and reply as replies arrive; None for those that did not arrive in time."""
    waiting, deadline = set(message_ids), time.monotonic() + seconds
    while waiting:
        left = deadline - time.monotonic()
        for message_id, answer in arrivals(grid, sorted(waiting), largest + SLACK, max(left, LINGER / 3)):
            if message_id in waiting:
                waiting.discard(message_id)
                yield message_id, answer
        if left <= 0:  # one more request after the deadline: a slow reply may have delayed the others
            break
        if waiting:
            bell = polling.server_bell()
            bell.wait(min(polling.UNRUNG if bell else polling.POLL, left))
    for message_id in sorted(waiting):
        yield message_id, None


def fault(answer: Answer, client: int | None, seconds: float) -> Event | None:
    """Why a reply is not usable; None if it is."""
    if answer is None:
        return Event("timeout", client, f"no reply in {seconds:g} seconds")
    if isinstance(answer, GuardError):
        return Event("refused", client, f"its reply: {answer}")
    if answer.has_error():
        code, reason = answer.error.code, answer.error.reason or ""
        return Event(WHAT.get(code, "error"), client, f"Flower's error {code}: {one_line(reason, LONGEST_REASON)}")
    record = answer.content.get("error")
    if record is not None:
        text = ": ".join(str(record.get(name)) for name in ("kind", "reason"))
        return Event("error", client, one_line(text, LONGEST_REASON))
    return None
