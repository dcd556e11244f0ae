"""Payloads of every registered method."""

from dataclasses import replace
from typing import Any

import pytest
import torch

import asfedbridge.methods  # noqa: F401  registers every method
from asfedbridge.core.method import METHODS
from asfedbridge.core.payload import Payload, Shapes, clone
from asfedbridge.core.task import Round
from asfedbridge.engines.turn import take_turn
from asfedbridge.models.zoo import build_backbone


def shapes_of(payload: Payload) -> Shapes:
    return {name: tuple(t.shape) for name, t in payload.items()}


def crosses(payload: Payload, declared: Shapes, partial: bool) -> bool:
    return shapes_of(payload).items() <= declared.items() if partial else shapes_of(payload) == declared


def private_storage(client: Any) -> set[int]:
    tensors = [t for module in client.modules.values() for t in module.state_dict().values()]
    tensors += [t for buffers in client.momentum.values() for t in buffers.values()]
    return {t.untyped_storage().data_ptr() for t in tensors}


def test_direct_and_isolated_baselines_are_registered() -> None:
    names = {"as-fedbridge", "fedavg", "fedprox", "isolated-fedavg", "isolated-fedprox", "standalone"}
    names |= {"fedproto", "fedtgp"}
    assert names <= METHODS.keys()
    assert all(cls.name == name for name, cls in METHODS.items())


@pytest.mark.parametrize("start", ["equal", "by-kind"])
@pytest.mark.parametrize("name", sorted(METHODS))
def test_initial_weights_by_kind(lab: Any, name: str, start: str) -> None:
    """After the first download with start=by-kind, ANN and SNN differ, except under direct averaging."""
    method, task = lab.method(name), replace(lab.task, start=start)
    clients = [lab.client(method, kind, task=task, id=i) for i, kind in enumerate(("ann", "ann", "snn"))]
    infos = [c.info for c in clients]
    state = method.server_init(task, infos)
    for client in clients:
        method.client_receive(client, method.server_send(state, client.info, Round(0, 2)), Round(0, 2))
    first, second, spiking = (dict(c.backbone.named_parameters()) for c in clients)
    drawn = [n for n, p in first.items() if p.dim() > 1]
    assert all(torch.equal(first[n], second[n]) for n in drawn)
    direct = name in ("fedavg", "fedprox")
    assert {torch.equal(first[n], spiking[n]) for n in drawn} == {start == "equal" or direct}
    if name != "sfedhifi":  # builds its own backbone
        same = dict(build_backbone(task, infos[0 if direct else 2]).named_parameters())
        assert all(torch.equal(spiking[n], same[n]) for n in drawn)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_payloads_match_declarations(lab: Any, name: str) -> None:
    """In both directions, over all rounds and the closing visit; server_round modifies neither state nor uploads."""
    method = lab.method(name)
    clients = {i: lab.client(method, kind, id=i, train_size=8 - 2 * i) for i, kind in enumerate(("ann", "snn"))}
    infos = [c.info for c in clients.values()]
    method.check(lab.task, infos)
    state = method.server_init(lab.task, infos)
    for index in range(lab.task.rounds + 1):
        rnd, ups = Round(index, lab.task.rounds), {}
        for i, client in clients.items():
            down = clone(method.server_send(state, client.info, rnd))
            assert crosses(down, method.downloads(lab.task, client.info), method.partial)
            ups[i] = take_turn(method, client, down, rnd)
            expected = {} if rnd.closing else method.uploads(lab.task, client.info)
            assert crosses(ups[i].payload, expected, method.partial)
            assert not private_storage(client) & {t.untyped_storage().data_ptr() for t in ups[i].payload.values()}
        if not rnd.closing:
            before = clone(state), {i: clone(up.payload) for i, up in ups.items()}
            new = method.server_round(state, infos, ups, rnd)
            for kept, now in ((before[0], state), *((before[1][i], ups[i].payload) for i in ups)):
                assert kept.keys() == now.keys()
                assert all(torch.equal(kept[key], now[key]) for key in kept)
            state = new


def test_standalone_exchanges_nothing(lab: Any) -> None:
    method = lab.method("standalone")
    assert method.server_init(lab.task, [lab.info("ann"), lab.info("snn", id=1)]) == {}
    for kind in ("ann", "snn"):
        client = lab.client(method, kind)
        assert method.uploads(lab.task, client.info) == method.downloads(lab.task, client.info) == {}
        up = lab.turn(method, client)
        assert up.payload == {}
        assert "local.ce" in up.metrics


def test_standalone_keeps_its_momentum(lab: Any) -> None:
    method = lab.method("standalone")
    client = lab.client(method)
    lab.turn(method, client)
    before = clone(client.momentum["backbone"])
    method.client_receive(client, {}, Round(1, 2))
    assert all(torch.equal(t, before[name]) for name, t in client.momentum["backbone"].items())


def test_closing_visit_does_not_train(lab: Any) -> None:
    method = lab.method("as-fedbridge")
    client = lab.client(method)
    before = {name: p.detach().clone() for name, p in client.backbone.named_parameters()}
    up = lab.turn(method, client, Round(2, 2))
    assert up.payload == {}
    assert "received.accuracy" in up.metrics
    assert not any(key.startswith(("trained.", "extract.", "inject.")) for key in up.metrics)
    assert all(torch.equal(p, before[name]) for name, p in client.backbone.named_parameters())
