"""Messages between processes."""

import math
from typing import Any

import pytest
import torch

from asfedbridge.engines.wire import pack, unpack


@pytest.mark.parametrize(
    "header",
    [{}, {"do": "turn", "round": [3, 9]}, {"metrics": {"a": 0.1 + 0.2, "b": 5e-324, "c": 1}}, {"text": "ä\n\0"}],
)
def test_headers_come_back(header: dict[str, Any]) -> None:
    assert unpack(pack(header)) == (header, {})


def test_numbers_that_are_none_come_back() -> None:
    found, _ = unpack(pack({"a": math.nan, "b": math.inf}))
    assert math.isnan(found["a"])
    assert found["b"] == math.inf


def test_tensors_come_back_to_the_bit() -> None:
    tensors = {"a": torch.randn(3, 4), "b": torch.tensor([-0.0, math.nan, math.inf]), "empty": torch.zeros(0, 2)}
    _, found = unpack(pack({}, tensors))
    assert list(found) == list(tensors)
    for name, tensor in tensors.items():
        assert (found[name].shape, found[name].dtype) == (tensor.shape, tensor.dtype)
        assert found[name].numpy().tobytes() == tensor.numpy().tobytes()


def test_views_and_other_layouts_are_sent_by_value() -> None:
    whole = torch.arange(24.0).view(1, 2, 3, 4)
    tensors = {"a": whole, "part": whole[:, 1], "last": whole.to(memory_format=torch.channels_last), "same": whole}
    _, found = unpack(pack({}, tensors))
    assert all(torch.equal(found[name], t) for name, t in tensors.items())
    found["a"].zero_()
    assert whole.sum() > 0
    assert torch.equal(found["same"], whole)
