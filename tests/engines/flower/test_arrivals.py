"""What a registered node may have written, before any of it is an object: no reply ends the server or fills it."""

import json
from typing import Any

import numpy as np
import pytest

from asfedbridge.core.payload import GuardError

pytest.importorskip("flwr")
from flwr.app import Array, ConfigRecord, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_id
from flwr.supercore.task_identity import TaskIdentity

from asfedbridge.engines.flower.arrivals import inflate
from asfedbridge.engines.flower.messages import fault
from asfedbridge.engines.flower.parcel import pack

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
