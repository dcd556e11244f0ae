"""What a registered node may have written, before any of it is an object: no reply ends the server or fills it."""

import json
from typing import Any

import numpy as np
import pytest

from asfedbridge.core.errors import GuardError

pytest.importorskip("flwr")
from flwr.app import Array, ConfigRecord, Message, RecordDict
from flwr.proto.message_pb2 import PullObjectResponse
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_id
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid.http_grid import HttpGrid

from asfedbridge.deploy.codec import pack
from asfedbridge.deploy.messages import fault
from asfedbridge.deploy.replies import arrivals, inflate

pytestmark = pytest.mark.timeout(120)
LARGEST = 10_000
BODIES = {
    "cut": b"\xff\xff\xff",
    "empty": b"",
    "object": b"{}",
    "null": b"null",
    "listed": b'{"arraychunk_ids": ["x"]}',
    "numbers": b"\x08\x01" * 40,
}


@pytest.fixture(autouse=True)
def run() -> None:
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1


def parts_of(thing: Any) -> tuple[str, dict[str, bytes]]:
    return thing.object_id, {i: part.deflate() for i, part in get_all_nested_objects(thing).items()}


def reply(size: int = 1000) -> Message:
    content: Any = pack({}, {}, {"client": 1})
    data = np.arange(size, dtype=np.uint8).tobytes()
    content["payload"]["flat"] = Array(dtype="uint8", shape=(size,), stype="s", data=data)
    return Message(content, dst_node_id=1, message_type="train")


def with_part(kind: str, body: bytes, children: str | None = None) -> tuple[str, dict[str, bytes]]:
    """A whole reply in which the part of a kind has another body, with all the hashes that this changes."""
    top, parts = parts_of(reply())
    (old,) = (i for i, content in parts.items() if content.startswith(kind.encode() + b" "))
    kept = parts.pop(old).split(b"\0", 1)[0].split(b" ")[1].decode() if children is None else children
    content = f"{kind} {kept} {len(body)}".encode() + b"\0" + body
    parts[get_object_id(content)] = content
    renamed = {old: get_object_id(content)} if old != get_object_id(content) else {}
    while any(o.encode() in c for o in renamed for c in parts.values()):
        for i, c in list(parts.items()):
            new = c
            for before, after in renamed.items():
                new = new.replace(before.encode(), after.encode())
            if new != c:
                del parts[i]
                renamed[i] = get_object_id(new)
                parts[renamed[i]] = new
    return renamed.get(top, top), parts


def test_a_reply_is_read() -> None:
    answer = inflate(*parts_of(reply()), LARGEST)
    assert isinstance(answer, Message)
    assert answer.content["payload"]["flat"].data == reply().content["payload"]["flat"].data


@pytest.mark.parametrize("kind", ["ConfigRecord", "MetricRecord", "ArrayRecord", "RecordDict", "Message", "Array"])
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_nonsense_is_refused_not_raised(kind: str, body: bytes) -> None:
    answer = inflate(*with_part(kind, body), LARGEST)
    if isinstance(answer, Message):  # protobuf takes much for an empty record: the guard beyond sees it
        assert answer.has_content() or answer.has_error()
        return
    event = fault(answer, 3, 1.0)
    assert event is not None
    assert event.what == "refused"
    assert event.client == 3
    assert "\n" not in event.reason


def test_some_nonsense_is_seen_here() -> None:
    for kind in ("ConfigRecord", "Array", "RecordDict"):
        assert isinstance(inflate(*with_part(kind, b"\xff\xff\xff"), LARGEST), GuardError), kind


def test_a_part_that_is_named_again_and_again_is_not_put_together() -> None:
    about: dict[str, Any] = {"dtype": "uint8", "shape": [1], "stype": "s"}
    for times, fits in ((5, True), (10_000, False)):
        listed = json.dumps(about | {"arraychunk_ids": [0] * times}).encode()
        answer = inflate(*with_part("Array", listed), LARGEST)
        assert isinstance(answer, Message) is fits
        if not fits:
            assert "more than 10000 bytes" in str(answer)


def test_a_message_that_is_none() -> None:
    record = RecordDict({"about": ConfigRecord({"client": 1})})
    answer = inflate(
        record.object_id, {i: part.deflate() for i, part in get_all_nested_objects(record).items()}, LARGEST
    )
    assert isinstance(answer, GuardError)
    assert "RecordDict" in str(answer)


def test_a_part_that_is_missing() -> None:
    top, parts = parts_of(reply())
    for gone in parts:
        answer = inflate(top, {i: c for i, c in parts.items() if i != gone}, LARGEST)
        assert isinstance(answer, GuardError)


class SuperLink:
    """What flwr's HttpGrid talks with, as far as replies go: which there are, and their parts."""

    def __init__(self, answers: dict[str, tuple[str, dict[str, bytes]]]) -> None:
        self.answers, self.confirmed = answers, set[str]()
        self.parts = {i: content for _, parts in answers.values() for i, content in parts.items()}

    def PullMessages(self, request: Any) -> PullAppMessagesResponse:
        found = PullAppMessagesResponse()
        for asked in request.message_ids:
            reply_id, parts = self.answers[asked]
            message, tree = found.messages_list.add(), found.message_object_trees.add()
            message.metadata.message_id, message.metadata.reply_to_message_id = reply_id, asked
            tree.object_id = reply_id
            for part in parts:
                if part != reply_id:
                    tree.children.add().object_id = part
        return found

    def PullObject(self, request: Any) -> PullObjectResponse:
        content = self.parts[request.object_id]
        return PullObjectResponse(object_found=True, object_available=bool(content), object_content=content)

    def ConfirmMessageReceived(self, request: Any) -> None:
        self.confirmed.add(request.message_object_id)


class ShortCircuit(HttpGrid):
    """Without HTTP between."""

    def __init__(self, superlink: SuperLink) -> None:
        self.superlink, self.node, self._run = superlink, Node(node_id=1), Run.create_empty(run_id=1)

    @property
    def _runtime_client(self) -> Any:
        return self.superlink


def take(superlink: SuperLink, seconds: float = 10.0) -> dict[str, Any]:
    grid = ShortCircuit(superlink)
    return dict(arrivals(grid, list(superlink.answers), LARGEST, seconds))


def test_a_bad_reply_does_not_touch_the_others() -> None:
    top, parts = parts_of(reply(900))
    (chunk,) = (i for i, content in parts.items() if content.startswith(b"ArrayChunk "))
    superlink = SuperLink(
        {
            "good": parts_of(reply()),
            "malformed": with_part("ConfigRecord", b"\xff\xff\xff"),
            "large": parts_of(reply(2 * LARGEST)),
            "unfinished": (top, parts | {chunk: b""}),
        }
    )
    found = take(superlink, seconds=0.1)
    assert isinstance(found["good"], Message)
    assert "cannot be read" in str(found["malformed"])
    assert f"more than {LARGEST} bytes" in str(found["large"])
    assert found["unfinished"] is None
    assert superlink.confirmed == {superlink.answers[name][0] for name in ("good", "malformed", "large")}


def test_whose_reply_it_is_says_the_superlink() -> None:
    """Its metadata are written by the node: it might name another's message."""
    asked = Message(RecordDict(), dst_node_id=7, message_type="train")
    asked.metadata.__dict__["_message_id"] = "another's"
    claimed = Message(RecordDict({"about": ConfigRecord({"client": 1})}), reply_to=asked)
    (found,) = take(SuperLink({"its own": parts_of(claimed)}))
    assert found == "its own"


def test_too_many_parts_are_not_asked_for() -> None:
    top, parts = parts_of(reply())
    superlink = SuperLink({"many": (top, parts | {f"{n:064x}": b"x" for n in range(1000)})})
    assert "parts" in str(take(superlink)["many"])
