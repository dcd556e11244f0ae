"""Diagnostics on constructed readings and on real clients."""

import pytest
import torch

from asfedbridge.analysis.diagnostics import Reading, compare
from asfedbridge.core.client import Client
from asfedbridge.core.payload import Payload
from asfedbridge.core.task import ClientInfo
from asfedbridge.runs.setting import Setting

CLIENTS = [ClientInfo(0, "ann", "m"), ClientInfo(1, "ann", "m"), ClientInfo(2, "snn", "m"), ClientInfo(3, "snn", "m")]


def reading(features: torch.Tensor, gradient: list[float]) -> Payload:
    return {"features": features, "gradient/conv.weight": torch.tensor(gradient)}


def test_pairs_of_one_kind_and_of_different_kinds() -> None:
    """ANN clients have equal gradients; SNN gradients are opposite or orthogonal to them."""
    x = torch.eye(4)
    same, other = x[:, :2], x[:, 2:]
    found = compare(
        CLIENTS,
        {
            3: reading(other, [0.0, 1.0]),
            2: reading(other, [-2.0, 0.0]),
            1: reading(same * 3 + 1, [1.0, 0.0]),
            0: reading(same, [1.0, 0.0]),
        },
    )
    cka, mmd, gradients = (found[name]["blocks"] for name in ("cka", "mmd", "gradients"))
    assert cka["ann"] == {"mean": pytest.approx(1), "pairs": 1}
    assert cka["cross"]["pairs"] == 4
    assert cka["cross"]["mean"] == pytest.approx(0.2)  # four inner products of -1/4: 1/4 / (5/4)
    assert mmd["snn"]["mean"] == 0
    assert mmd["ann"]["mean"] > 0
    assert (gradients["ann"]["mean"], gradients["snn"]["mean"]) == (pytest.approx(1), pytest.approx(0))
    assert gradients["cross"] == {"mean": pytest.approx(-0.5), "pairs": 4}


def test_given_bandwidth_is_used() -> None:
    readings = {c.id: reading(torch.randn(5, 3) + c.id, [1.0]) for c in CLIENTS}
    free, fixed = compare(CLIENTS, readings), compare(CLIENTS, readings, 7.0)
    assert fixed["mmd"]["bandwidth"] == 7.0 != free["mmd"]["bandwidth"]
    assert fixed["mmd"]["blocks"] != free["mmd"]["blocks"]
    assert fixed["cka"] == free["cka"]


def test_reading_does_not_change_the_client(clients: list[Client], setting: Setting) -> None:
    for client in clients:
        before = client.state_dict()
        found = Reading(setting.probe)(client)
        assert found["features"].shape == (setting.probe.test_size, setting.task.feature_dim)
        assert all(torch.equal(t, before[name]) for name, t in client.state_dict().items())
        assert all(p.grad is None for p in client.backbone.parameters())
