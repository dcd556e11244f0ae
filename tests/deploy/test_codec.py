"""Parcels: the same bits on the other side, and nothing that was not declared."""

from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from tests.deploy.grid import copied

from asfedbridge.core.compression import encode
from asfedbridge.core.errors import GuardError
from asfedbridge.core.payload import Payload, size_in_bytes
from asfedbridge.deploy.codec import KIND, pack, read_count, unpack

DECLARED = {"a": (2, 3), "b": (), "c": (0, 4), "d": (5,)}


def make() -> Payload:
    values = torch.tensor([0.0, -0.0, 1e-42, float("inf"), float("nan")])
    return {"d": values, "a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(7.0), "c": torch.zeros(0, 4)}


def test_every_bit_arrives() -> None:
    content = copied(pack(make(), DECLARED, {"round": 3}, {"loss": 0.1, "n": 4}))
    payload, about, metrics = unpack(content, DECLARED, "none", "upload")
    for name, tensor in make().items():
        assert payload[name].shape == tensor.shape
        assert payload[name].numpy().tobytes() == tensor.numpy().tobytes()
        payload[name].add_(1)  # our own memory
    assert about == {"round": 3}
    assert metrics == {"loss": 0.1, "n": 4}
    assert type(metrics["n"]) is int


@pytest.mark.parametrize("codec", ["none", "fp16", "int8"])
def test_one_array_as_small_as_the_codec_makes_it(codec: Any) -> None:
    finite = make() | {"d": torch.arange(5.0)}
    encoded = encode(finite, codec, "upload")
    content = pack(encoded, DECLARED, {})
    assert list(content["payload"]) == ["flat"]
    assert len(content["payload"]["flat"].data) == size_in_bytes(encoded) + 1  # and a bit for each tensor
    payload, *_ = unpack(copied(content), DECLARED, codec, "upload")
    assert all(payload[name].equal(tensor) for name, tensor in encoded.items())


def test_what_is_not_declared_does_not_leave() -> None:
    with pytest.raises(GuardError, match="'backbone' is private"):
        pack(make() | {"backbone": torch.ones(1)}, DECLARED, {})


def test_nothing_declared_is_nothing_sent() -> None:
    assert unpack(copied(pack({}, {}, {})), {}, "none", "visit")[0] == {}


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("trained.accuracy", [0, 0.0, 100.0], [-1e-9, 100.1, 1.7e38, -1.7e38, float("nan")]),
        ("received.bridge_accuracy", [50.0], [-5.0, 101]),
        ("trained.fused_weight", [0.0, 0.5, 1], [-0.1, 1.1]),
        ("seconds", [0.0, 3600.0], [-1.0, 1e10]),
        ("trained.loss", [0.0, -7.5, 3e38], [1e39, -1e300, float("inf"), float("-inf"), float("nan")]),
        ("n", [2**62], []),
    ],
)
def test_reported_numbers_are_in_range(name: str, good: list[float], bad: list[float]) -> None:
    for value in good:
        assert unpack(copied(pack({}, {}, {}, {name: value})), {}, "none", "upload")[2] == {name: value}
    for value in bad:
        with pytest.raises(GuardError, match=f"upload: metric '{name}' is .*, expected a number from "):
            unpack(copied(pack({}, {}, {}, {name: value})), {}, "none", "upload")


def change(**changes: Any) -> RecordDict:
    content = pack(make(), DECLARED, {"round": 3}, {"loss": 0.5})
    array = content["payload"]["flat"]
    fields = {"dtype": array.dtype, "shape": array.shape, "stype": array.stype, "data": array.data}
    fields |= {k: changes.pop(k) for k in list(changes) if k in fields}
    content["payload"] = ArrayRecord({changes.pop("name", "flat"): Array(**fields)})
    if "more" in changes:
        content.array_records["payload"]["more"] = Array(np.zeros(3))
    if "metrics" in changes:
        content["metrics"] = MetricRecord(changes["metrics"])
    return content


@pytest.mark.parametrize(
    "content",
    [
        change(data=b"\xf0" + b"\0" * 44),
        change(data=b"\xf0" + b"\0" * 52),
        change(data=b"\xf8" + b"\0" * 48),
        change(data=b""),
        change(dtype="float64"),
        change(stype="numpy.ndarray"),
        change(stype="pickle"),
        change(name="backbone"),
        change(more=True),
        change(metrics={"round": 10**9}),
        change(metrics={"client": 1}),
        change(metrics={"x" * 65: 1.0}),
        change(metrics={"a\nb": 1.0}),
        change(metrics={"loss": float("nan")}),
        change(metrics={"loss": float("inf")}),
        change(metrics={"loss": [1.0, 2.0]}),
        change(metrics={f"m{i}": 1.0 for i in range(65)}),
        RecordDict({}),
        RecordDict({"payload": ConfigRecord({}), "about": ConfigRecord({}), "metrics": MetricRecord({})}),
        RecordDict({**pack(make(), DECLARED, {}), "private": ConfigRecord({})}),
    ],
)
def test_what_pack_would_not_make_is_refused(content: RecordDict) -> None:
    with pytest.raises(GuardError, match=r"^upload: "):
        unpack(copied(content), DECLARED, "none", "upload")


def test_a_declared_shape_on_the_wire_means_nothing() -> None:
    payload, *_ = unpack(copied(change(shape=(999, 999))), DECLARED, "none", "upload")
    assert payload["a"].shape == (2, 3)
    assert KIND not in payload


@pytest.mark.parametrize("value", [-1, 10**12, 1.0, True, "7", None, "a\nb\x1b[2J"])
def test_absurd_counts_are_refused(value: Any) -> None:
    with pytest.raises(GuardError, match="train=") as caught:
        read_count({"train": value}, "train", 0, 10**8, "client 3")
    assert str(caught.value).isprintable()  # it goes to a log, and from there to a terminal
