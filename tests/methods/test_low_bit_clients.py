"""Every method supports low-bit clients or refuses them in one line."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

import asfedbridge.methods  # noqa: F401  registers every method
from asfedbridge.core.client import Client
from asfedbridge.core.errors import BadInput
from asfedbridge.core.method import METHODS
from asfedbridge.core.task import ClientInfo, Round, Upload
from asfedbridge.engines.turn import build_client, take_turn
from asfedbridge.methods.fedavg import FedAvg, IsolatedFedAvg
from asfedbridge.models.lowbit import is_step

FIRST = Round(0, 2)
BITS = {"bnn": 1, "qnn": 4}


def make_client(lab: Any, method: Any, kind: str, id: int, bits: int = 0) -> Client:
    plain = lab.client(method, "ann", id=id)
    info = replace(plain.info, kind=kind, bits=bits or BITS.get(kind, 32), T=2 if kind == "snn" else 1)
    return build_client(method, lab.gentle(batch_size=5), info, plain.shard)


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"sfedhifi"}))
def test_every_method_runs_a_round_with_all_kinds(lab: Any, name: str) -> None:
    method = lab.method(name)
    clients = [make_client(lab, method, kind, i) for i, kind in enumerate(("ann", "bnn", "qnn", "snn"))]
    infos = [c.info for c in clients]
    method.check(lab.task, infos)
    state = method.server_init(lab.task, infos)
    ups = {c.info.id: take_turn(method, c, method.server_send(state, c.info, FIRST), FIRST) for c in clients}
    state = method.server_round(state, infos, ups, FIRST)
    for client in clients:
        take_turn(method, client, method.server_send(state, client.info, Round(1, 2)), Round(1, 2))
    rates = [t.item() for n, t in clients[2].backbone.named_parameters() if is_step(n)]
    assert len(rates) == 38
    assert min(rates) > 0


def test_sfedhifi_refuses_in_one_line(lab: Any) -> None:
    method = METHODS["sfedhifi"]()
    with pytest.raises(BadInput, match=r"needs resnet18 clients .*, not client 1 \(.*:qnn:b=4\); change"):
        method.check(lab.task, [lab.info(), replace(lab.info(id=1), kind="qnn", bits=4)])


def qnn(lab: Any, *bits: int) -> list[ClientInfo]:
    return [replace(lab.info(id=i, train_size=i + 1), kind="qnn", bits=b) for i, b in enumerate(bits)]


def ups(clients: Sequence[ClientInfo]) -> dict[int, Upload]:
    tensors = {"w": torch.tensor([1.0]), "conv.of_weight.step_size": torch.tensor(0.5)}
    return {
        c.id: Upload({n: t * (c.id + 1) for n, t in tensors.items() if c.kind == "qnn" or n == "w"}) for c in clients
    }


def test_step_sizes_are_averaged_among_equal_bits_only(lab: Any) -> None:
    """Weights 1, 2, 3, 4 and values 1, 2, 3, 4 times the unit; the fourth client is an ANN."""
    clients = [*qnn(lab, 4, 2, 4), lab.info(id=3, train_size=4)]
    direct = FedAvg().server_round({}, clients, ups(clients), FIRST)
    step = "conv.of_weight.step_size"
    assert {n: t.item() for n, t in direct.items()} == pytest.approx(
        {"all/w": (1 + 4 + 9 + 16) / 10, f"qnn:b=4/{step}": 0.5 * (1 + 9) / 4, f"qnn:b=2/{step}": 0.5 * 4 / 2}
    )
    sent = [FedAvg().server_send(direct, c, FIRST) for c in clients]
    assert [set(down) for down in sent] == [{"w", step}] * 3 + [{"w"}]
    assert [down[step].item() for down in sent[:3]] == pytest.approx([1.25, 1.0, 1.25])
    isolated = IsolatedFedAvg().server_round({}, clients, ups(clients), FIRST)
    assert {n: t.item() for n, t in isolated.items()} == pytest.approx(
        {"qnn:b=4/w": 2.5, f"qnn:b=4/{step}": 1.25, "qnn:b=2/w": 2.0, f"qnn:b=2/{step}": 1.0, "ann/w": 4.0}
    )


def test_clients_initialise_step_sizes_that_the_server_does_not_have(lab: Any) -> None:
    method = FedAvg()
    state = method.server_init(lab.task, qnn(lab, 4))
    steps = [name for name in state if is_step(name)]
    assert len(steps) == 38
    assert all(state[name].item() == 0 for name in steps)
    client = make_client(lab, method, "qnn", 0)
    up = take_turn(method, client, method.server_send(state, client.info, FIRST), FIRST).payload
    assert all(up[name.partition("/")[2]].item() > 0 for name in steps)


def test_as_fedbridge_treats_low_bit_clients_as_ann(lab: Any) -> None:
    reported = {}
    for kind in ("ann", "bnn", "qnn", "snn"):
        method = lab.method("as-fedbridge")
        up = lab.turn(method, make_client(lab, method, kind, 0))
        reported[kind] = {key for key in up.metrics if key.startswith(("extract", "inject"))}
    assert reported["ann"] == reported["bnn"] == reported["qnn"] != reported["snn"]
    low = replace(lab.info(), kind="bnn", bits=1)
    assert lab.method("as-fedbridge", direction="snn-to-ann").extracts(low)
    assert lab.method("as-fedbridge", direction="ann-to-snn").injects(low)


def test_latent_binary_weights_stay_within_one(lab: Any) -> None:
    method = lab.method("standalone")
    client = make_client(lab, method, "bnn", 0)
    with torch.no_grad():
        client.backbone.get_parameter("stages.0.0.conv1.weight").mul_(50)
    lab.turn(method, client)
    weight = client.backbone.get_parameter("stages.0.0.conv1.weight")
    assert weight.abs().max() == 1
