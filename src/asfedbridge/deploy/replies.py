"""Replies before they are objects: taken from the SuperLink within limits of size and time, parsed with care.

flwr's own Grid parses in the server's process whatever a registered node has written. A part that is no record would
end the run; an array that names one part a thousand times would fill the memory; a reply that trickles in would be
waited for by everybody, for up to two hours. This leans on flwr's inner parts: the version is pinned.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from flwr.app import Array, Message
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import (
    get_object_body,
    get_object_head_values_from_object_content,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    inflate_object_from_contents,
    pull_objects,
)
from flwr.superlink.grid.http_grid import HttpGrid

from asfedbridge.core import GuardError

SLACK = 1 << 20  # bytes for all that is not payload: records, metrics, heads
MOST_PARTS = 256  # of a reply; flwr cuts arrays into parts of megabytes
AT_ONCE = 8  # replies taken side by side: a slow one does not keep the others waiting

Answer = Message | GuardError | None  # a message; why it is refused; not all of it came


def arrivals(grid: Grid, message_ids: Sequence[str], largest: int, seconds: float) -> Iterator[tuple[str, Answer]]:
    """What has been announced by now, with the id of the message that it answers: as the SuperLink knows it, not as
    the node wrote it. At most ``largest`` bytes each; its parts must come within ``seconds``."""
    if not isinstance(grid, HttpGrid):  # a simulation: nodes are ours, and write no bytes themselves
        for message_id in message_ids:
            for answer in grid.pull_messages([message_id]):
                yield message_id, answer
        return
    found = grid._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=message_ids))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        taken = {}
        for proto, tree in zip(found.messages_list, found.message_object_trees, strict=True):
            parts = [part.object_id for part in iterate_object_tree(tree)]
            one = pool.submit(_take, grid, proto.metadata.message_id, parts, largest, seconds)
            taken[one] = proto.metadata.reply_to_message_id
        for one in as_completed(taken):
            yield taken[one], one.result()


def _take(grid: HttpGrid, reply_id: str, parts: list[str], largest: int, seconds: float) -> Answer:
    if len(parts) > MOST_PARTS:
        return GuardError(f"it has {len(parts)} parts, at most {MOST_PARTS} are taken")
    client, run_id, size = grid._runtime_client, grid.run.run_id, 0
    pull = make_pull_object_fn_protobuf(client.PullObject, grid.node, run_id)

    def counted(part: str) -> bytes:
        nonlocal size
        content = pull(part)
        size += len(content)
        if size > largest:
            raise GuardError(f"it has more than {largest} bytes")
        return content

    answer: Answer
    try:
        answer = inflate(reply_id, pull_objects(parts, counted, max_time=seconds), largest)
    except ObjectPullError:
        return None
    except GuardError as error:
        answer = error
    done = ConfirmMessageReceivedRequest(node=grid.node, run_id=run_id, message_object_id=reply_id)
    client.ConfirmMessageReceived(done)  # the SuperLink may forget it
    return answer


def inflate(reply_id: str, contents: dict[str, bytes], largest: int) -> Message | GuardError:
    """A message from the parts that a node wrote, or why there is none."""
    try:
        check_arrays(contents, largest)
        message = inflate_object_from_contents(reply_id, contents)
    except GuardError as error:
        return error
    except Exception as error:  # of whatever parser its parts reach
        return GuardError(f"it cannot be read ({type(error).__name__})")
    if not isinstance(message, Message) or not (message.has_content() or message.has_error()):
        return GuardError(f"it is a {type(message).__name__} without content")
    return message


def check_arrays(contents: Mapping[str, bytes], largest: int) -> None:
    """An array lists the parts it is made of, and may list one again and again: how large would it be?"""
    for content in contents.values():
        kind, children, _ = get_object_head_values_from_object_content(content)
        if kind != "Array":
            continue
        listed: Any = json.loads(get_object_body(content, Array))["arraychunk_ids"]
        if sum(len(contents[children[i]]) for i in listed) > largest:
            raise GuardError(f"it has an array of more than {largest} bytes")
