"""Targets: what comes over a network: payloads, replies to the server, introductions, messages to a node."""

import dataclasses
import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fuzz.harness import Attempt, Target, Verdict, check_line, judge
from tests.fuzz.mutations import NUMBERS, OTHERS, Steps, mutate_bytes, mutate_plain, mutate_tensors

from asfedbridge.core import compression, flat
from asfedbridge.core.compression import Codec
from asfedbridge.core.errors import Diverged, GuardError
from asfedbridge.core.payload import Payload, Shapes
from asfedbridge.core.task import Round, Upload
from asfedbridge.engines.failures import Event, Tolerance
from asfedbridge.engines.loop import play_round
from asfedbridge.methods.fedproto import FedProto
from asfedbridge.runs.fleet import parse_fleet
from asfedbridge.runs.recipes import quickstart
from asfedbridge.runs.setting import Setting, make_task, prepare
from asfedbridge.runs.spec import apply_overrides

DECLARED: Shapes = {"a": (2, 3), "b": (), "c": (0, 4), "d": (5,)}
WHOSE = "upload of client 3"
REFUSALS = (GuardError, Diverged)
IDENTITY = {"specification": "5" * 64, "data": "d" * 64, "partition": "a" * 64}
RUN = "0123456789abcdef"
SENDABLE = tuple(v for v in NUMBERS + OTHERS if v != [])  # Flower's records hold these, and lists of one type


def make_payload() -> Payload:
    values = torch.tensor([0.25, -0.0, 3.0, -4.5, 1e-3])
    return {"d": values, "a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(7.0), "c": torch.zeros(0, 4)}


def check_payload(found: Payload, declared: Shapes, partial: bool) -> None:
    """Plain values may be any finite ones; all else is as declared."""
    assert found.keys() <= declared.keys()
    assert partial or found.keys() == declared.keys()
    for name, tensor in found.items():
        assert tuple(tensor.shape) == declared[name]
        assert tensor.dtype == torch.float32
        assert not tensor.requires_grad
        assert torch.isfinite(tensor).all()


def open_buffer(codec: Codec) -> Any:
    def prepare_buffer(folder: Path) -> Attempt:
        valid = flat.to_buffer(compression.encode(make_payload(), codec, WHOSE), DECLARED)

        def attempt(steps: Steps) -> Verdict:
            content, partial = mutate_bytes(valid, steps), bool(steps[0].value & 1)

            def read() -> Payload:
                encoded = flat.from_buffer(content, DECLARED, codec, WHOSE)
                decoded = compression.decode(encoded, DECLARED, codec, WHOSE, partial)
                # Every byte has a meaning: nothing can hide in what is accepted.
                assert flat.to_buffer(encoded, DECLARED) == content
                assert (encoded.get(compression.SCALES, torch.zeros(1)) >= 0).all()
                return decoded

            return judge(read, lambda found: check_payload(found, DECLARED, partial), REFUSALS, WHOSE)

        return attempt

    return prepare_buffer


def open_guard(codec: Codec) -> Any:
    def prepare_guard(folder: Path) -> Attempt:
        valid = compression.encode(make_payload(), codec, WHOSE)
        down = make_payload()

        def attempt(steps: Steps) -> Verdict:
            encoded, partial = mutate_tensors(valid, steps), bool(steps[0].value & 1)
            return judge(
                lambda: compression.restore_upload(encoded, down, DECLARED, codec, WHOSE, partial),
                lambda found: check_payload(found, DECLARED, partial),
                REFUSALS,
                WHOSE,
            )

        return attempt

    return prepare_guard


def to_plain(content: Any) -> dict[str, Any]:
    from flwr.app import ArrayRecord

    def array(a: Any) -> dict[str, Any]:
        return {"dtype": a.dtype, "shape": list(a.shape), "stype": a.stype, "data": a.data}

    return {
        name: {key: array(value) if isinstance(record, ArrayRecord) else value for key, value in record.items()}
        for name, record in content.items()
    }


def to_content(plain: Any) -> Any:
    """A message of what is left of one; what Flower's records do not hold, nobody can send, and it is left out."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
    from tests.deploy.grid import copied

    kinds: dict[str, Any] = {"payload": ArrayRecord, "metrics": MetricRecord}
    content = RecordDict({})
    for name, entries in plain.items():
        record = content[name] = kinds.get(name, ConfigRecord)({})
        for key, value in entries.items() if isinstance(entries, dict) else ():
            with suppress(TypeError, ValueError, KeyError, AttributeError):
                if isinstance(record, ArrayRecord):
                    shape = tuple(n for n in value["shape"] if type(n) is int and abs(n) < 2**31)
                    fields = {field: value[field] for field in ("dtype", "stype", "data")}
                    if [type(f) for f in fields.values()] == [str, str, bytes]:
                        record[key] = Array(shape=shape, **fields)
                else:
                    record[key] = value
    return copied(content)


class Canned:
    """A node that answers every message with what it was given."""

    def __init__(self, introduction: Any, reply: Any) -> None:
        self.introduction, self.reply = introduction, reply

    def __call__(self, message: Any, context: Any) -> Any:
        from flwr.app import Message

        query = message.metadata.message_type == "query"
        return Message(self.introduction if query else self.reply, reply_to=message)


def make_federation(codec: Codec) -> tuple[Any, Any, list[Any]]:
    spec = apply_overrides(quickstart("fedproto"), {"feature_dim": 3, "compress": codec, "rounds": 9})
    infos = [
        dataclasses.replace(info, train_size=10 + info.id, test_size=5)
        for info in parse_fleet("1*resnet18@0.125:ann,1*resnet18@0.125:snn", 2)
    ]
    return spec.method, make_task(spec, 3, 1, 8, 1, infos), infos


def introduce(task: Any, info: Any) -> dict[str, Any]:
    from asfedbridge.deploy.node import Site, _introduction

    site = Site(FedProto(), task, info, None, Path(), IDENTITY)  # type: ignore[arg-type]
    return to_plain(_introduction(site))


def open_reply(codec: Codec) -> Any:
    """A whole round of two clients, one honest: it goes on, whatever the other one sends."""

    def prepare_reply(folder: Path) -> Attempt:
        pytest.importorskip("flwr")
        from tests.deploy.grid import InProcessGrid

        from asfedbridge.deploy.codec import METRIC_NAME, OURS, pack
        from asfedbridge.deploy.engine import FlowerEngine
        from asfedbridge.deploy.node_registry import Roster

        method, task, infos = make_federation(codec)
        rnd = Round(4, 9)
        vectors = {f"class/{k}": torch.linspace(-1, k, 3) for k in range(3)}
        encoded = compression.encode(vectors, codec, WHOSE)
        declared = method.uploads(task, infos[0])

        def reply(info: Any) -> Any:
            about = {"client": info.id, "round": rnd.index, "train": info.train_size}
            return pack(encoded, declared, about, {"trained.accuracy": 50.0, "received.loss": 1.5, "seconds": 2})

        nodes = {100 + i.id: Canned(to_content(introduce(task, i)), reply(i)) for i in infos}
        grid = InProcessGrid({number: (node, {}) for number, node in nodes.items()})
        told: list[Event] = []
        tolerance = Tolerance(lambda _, event: told.append(event), 1)
        roster = Roster(grid, infos, IDENTITY)
        roster.gather(0.0, told.append)
        assert roster.seats.keys() == {0, 1}
        assert not told
        valid = to_plain(reply(infos[1]))

        def attempt(steps: Steps) -> Verdict:
            content = to_content(mutate_plain(valid, steps, SENDABLE))
            nodes[101].reply = content
            grid.sent.clear()
            told.clear()
            roster.seats = {0: 100, 1: 101}  # whoever was refused had to get up
            engine = FlowerEngine(grid, roster, method, task, tolerance, RUN, 5.0)
            state, _, ups = play_round(method, task, engine, {}, rnd, infos, tolerance)
            assert ups[0].payload.keys() == encoded.keys()
            check_payload(state, {name: tuple(t.shape) for name, t in state.items()}, False)
            if 1 not in ups:
                event, *then = told
                assert [e.what for e in then] == (["quarantined"] if event.what == "refused" else [])
                assert (event.client, event.what in ("refused", "error")) == (1, True)
                check_line(event.reason)
                assert event.what == "error" or infos[1].label in event.reason
                return "refused"
            assert not told
            check_upload(ups[1])
            return "harmless"

        def check_upload(up: Upload) -> None:
            check_payload(compression.decode(up.payload, declared, codec, WHOSE, True), declared, True)
            for name, value in up.metrics.items():
                assert METRIC_NAME.fullmatch(name)
                assert name not in OURS
                assert type(value) in (int, float)
                assert value - value == 0  # finite

        return attempt

    return prepare_reply


def prepare_introduction(folder: Path) -> Attempt:
    """A seat only for who is as the fleet and the server's data say."""
    pytest.importorskip("flwr")
    from tests.deploy.grid import InProcessGrid

    from asfedbridge.deploy.node_registry import Roster

    _, task, infos = make_federation("none")
    shape = (task.classes, task.channels, task.image_size, task.frames)
    valid = introduce(task, infos[1])
    node = Canned(None, None)
    grid = InProcessGrid({101: (node, {})})

    def attempt(steps: Steps) -> Verdict:
        content = to_content(mutate_plain(valid, steps, SENDABLE))
        node.introduction = content
        grid.sent.clear()
        told: list[Event] = []
        roster = Roster(grid, infos, IDENTITY, shape)
        roster.meet(told.append)
        assert list(roster.infos.values()) == infos
        assert roster.shape == shape
        if roster.seats:
            assert not told
            assert roster.seats == {1: 101} or (roster.seats == {0: 101} and infos[0] == infos[1])
            return "harmless"
        (event,) = told
        assert event.what in ("refused", "error")
        check_line(event.reason)
        return "refused"

    return attempt


def prepare_download(folder: Path) -> Attempt:
    """A message to a node. Its closing visit: all checks, and no training."""
    pytest.importorskip("flwr")
    from flwr.app import Context, Message, RecordDict
    from flwr.supercore.task_identity import TaskIdentity

    from asfedbridge.deploy.codec import pack
    from asfedbridge.deploy.node import Site, make_client_app

    logging.getLogger("flwr").setLevel(logging.CRITICAL)  # a node's own log has a traceback for each refusal
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
    setting = small_setting(folder)
    method, task, info = FedProto(), setting.task, setting.clients[0]
    site = Site(method, task, info, setting.shards[0], folder / "states", IDENTITY)
    app = make_client_app(lambda context: site)
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
    declared = method.downloads(task, info)
    down = {name: torch.linspace(-1, 1, shape[0]) for name, shape in declared.items()}
    about = {"run": RUN, "client": 0, "round": task.rounds, "since": 0, "safe": 0}
    valid = to_plain(pack(down, declared, about))
    expected = {"client": 0, "round": task.rounds, "train": info.train_size}

    def attempt(steps: Steps) -> Verdict:
        content = to_content(mutate_plain(valid, steps, SENDABLE))
        message = Message(content, dst_node_id=1, message_type="train", ttl=5.0)
        message.metadata.__dict__["_message_id"] = "m"
        reply = app(message, context).content
        if "error" in reply:
            assert reply["error"]["kind"] in ("GuardError", "Diverged", "BadInput")
            check_line(str(reply["error"]["reason"]))
            return "refused"
        # Rounds other than the last are trained in; both are as asked for.
        assert dict(reply["about"]) == expected | {"round": content["about"]["round"]}
        return "harmless"

    return attempt


def small_setting(folder: Path) -> Setting:
    """One small client on a handful of digits."""
    small = {
        "fleet": "1*resnet18@0.0625:ann", "train_per_class": 1, "test_per_class": 1, "batch_size": 8,
        "feature_dim": 4, "partition": "iid", "rounds": 2, "threads": 1,
    }  # fmt: skip
    return prepare(apply_overrides(quickstart("fedproto"), small), folder)


CODECS: tuple[Codec, ...] = ("none", "fp16", "int8")
TARGETS = [
    *(Target(f"flat buffer, {codec}", 15_000, open_buffer(codec)) for codec in CODECS),
    *(Target(f"guard, {codec}", 10_000, open_guard(codec)) for codec in CODECS),
    *(Target(f"reply to the server, {codec}", 3_000, open_reply(codec)) for codec in ("none", "int8")),
    Target("introduction of a node", 3_000, prepare_introduction),
    Target("message to a node", 500, prepare_download),
]
