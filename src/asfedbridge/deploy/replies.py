"""Fetches and parses replies within limits of size and time.

flwr's own Grid parses whatever a registered node has written in the server's process. A malformed record would end the
run, an array that lists one part a thousand times would exhaust memory, and a reply that trickles in would delay
everybody for up to two hours. Depends on flwr's internals: the version is pinned.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from flwr.app import Array, Message
from flwr.serverapp import Grid

from asfedbridge.core import GuardError
from asfedbridge.deploy.flwr_internals import (
    ConfirmMessageReceivedRequest,
    HttpGrid,
    ObjectPullError,
    PullAppMessagesRequest,
    get_object_body,
    get_object_head_values_from_object_content,
    inflate_object_from_contents,
    iterate_object_tree,
    make_pull_object_fn_protobuf,
    pull_objects,
)

SLACK = 1 << 20  # bytes allowed besides the payload: records, metrics, headers
MAX_PARTS = 256  # parts of a reply; flwr splits arrays into parts of megabytes
AT_ONCE = 8  # replies fetched concurrently, so that a slow one does not delay the others

Answer = Message | GuardError | None  # the message; why it is refused; None: incomplete


def arrivals(grid: Grid, message_ids: Sequence[str], largest: int, seconds: float) -> Iterator[tuple[str, Answer]]:
    """The replies announced so far, each with the id of the message it answers, according to the SuperLink and not to
    the node. Each may have ``largest`` bytes, and its parts must arrive within ``seconds``."""
    if not isinstance(grid, HttpGrid):  # a simulation: nodes are our own processes and send objects
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
    if len(parts) > MAX_PARTS:
        return GuardError(f"it has {len(parts)} parts, at most {MAX_PARTS} are accepted")
    client, run_id, size = grid._runtime_client, grid.run.run_id, 0
    pull = make_pull_object_fn_protobuf(client.PullObject, grid.node, run_id)

    def counted(part: str) -> bytes:
        nonlocal size
        content: bytes = pull(part)
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
    client.ConfirmMessageReceived(done)  # the SuperLink may delete it
    return answer


def inflate(reply_id: str, contents: dict[str, bytes], largest: int) -> Message | GuardError:
    """The message in the parts that a node wrote, or why it is refused."""
    try:
        check_arrays(contents, largest)
        message = inflate_object_from_contents(reply_id, contents)
    except GuardError as error:
        return error
    except Exception as error:  # whatever the parser of a part raises
        return GuardError(f"it cannot be read ({type(error).__name__})")
    if not isinstance(message, Message) or not (message.has_content() or message.has_error()):
        return GuardError(f"it is a {type(message).__name__} without content")
    return message


def check_arrays(contents: Mapping[str, bytes], largest: int) -> None:
    """Checks the size of arrays before they are joined: an array may list the same part many times."""
    for content in contents.values():
        kind, children, _ = get_object_head_values_from_object_content(content)
        if kind != "Array":
            continue
        listed: Any = json.loads(get_object_body(content, Array))["arraychunk_ids"]
        if sum(len(contents[children[i]]) for i in listed) > largest:
            raise GuardError(f"it has an array of more than {largest} bytes")
