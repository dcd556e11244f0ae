from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from asfedbridge.core.client import Client
from asfedbridge.core.errors import BadInput, GuardError
from asfedbridge.core.payload import clone
from asfedbridge.core.task import ClientInfo, Kind, Round, Upload
from asfedbridge.data.loader import Shard
from asfedbridge.engines.turn import build_client, take_turn
from asfedbridge.methods.fedavg import FedAvg, IsolatedFedAvg
from asfedbridge.methods.fedprox import FedProx, IsolatedFedProx

FIRST = Round(0, 2)
DIRECT, ISOLATED = [FedAvg(), FedProx()], [IsolatedFedAvg(), IsolatedFedProx()]
BOTH = ["ann", "snn"]

Bytes = Callable[[nn.Module], dict[str, bytes]]


def name(method: FedAvg) -> str:
    return method.name


def fleet(lab: Any, *widths: float) -> list[Any]:
    """Kinds alternate; sizes 1, 2, 3, 2."""
    return [
        lab.info(BOTH[i % 2], id=i, width=width, train_size=n)
        for i, (width, n) in enumerate(zip(widths or (1.0,) * 4, (1, 2, 3, 2), strict=True))
    ]


def uploads() -> dict[int, Upload]:
    return {i: Upload({"w": torch.tensor([v, 1.0])}) for i, v in enumerate((8.0, 16.0, 0.0, -4.0))}


@pytest.mark.parametrize("method", DIRECT, ids=name)
def test_direct_averages_all_clients_by_shard_size(lab: Any, method: FedAvg) -> None:
    state, ups = {"all/w": torch.tensor([99.0, 99.0])}, uploads()
    new = method.server_round(state, fleet(lab), ups, FIRST)
    assert {key: t.tolist() for key, t in new.items()} == {"all/w": [(8 + 32 + 0 - 8) / 8, 1.0]}
    assert state["all/w"].tolist() == [99.0, 99.0]
    assert all(torch.equal(up.payload["w"], uploads()[i].payload["w"]) for i, up in ups.items())


@pytest.mark.parametrize("method", ISOLATED, ids=name)
def test_isolated_averages_within_each_kind(lab: Any, method: FedAvg) -> None:
    state, clients = {"ann/w": torch.tensor([99.0, 99.0]), "snn/w": torch.tensor([99.0, 99.0])}, fleet(lab)
    new = method.server_round(state, clients, uploads(), FIRST)
    assert {key: t.tolist() for key, t in new.items()} == {"ann/w": [8 / 4, 1.0], "snn/w": [(32 - 8) / 4, 1.0]}
    sent = {c.id: method.server_send(new, c, FIRST) for c in clients}
    assert {i: {key: t.tolist() for key, t in down.items()} for i, down in sent.items()} == {
        0: {"w": [2.0, 1.0]},
        1: {"w": [6.0, 1.0]},
        2: {"w": [2.0, 1.0]},
        3: {"w": [6.0, 1.0]},
    }


@pytest.mark.parametrize("method", ISOLATED, ids=name)
def test_absent_kind_keeps_its_aggregate(lab: Any, method: FedAvg) -> None:
    state = {"ann/w": torch.tensor([99.0, 99.0]), "snn/w": torch.tensor([7.0, 7.0])}
    new = method.server_round(state, [c for c in fleet(lab) if c.kind == "ann"], uploads(), FIRST)
    assert {key: t.tolist() for key, t in new.items()} == {"ann/w": [2.0, 1.0], "snn/w": [7.0, 7.0]}


@pytest.mark.parametrize("method", DIRECT, ids=name)
def test_direct_refuses_different_widths_in_one_line(lab: Any, method: FedAvg) -> None:
    method.check(lab.task, fleet(lab))  # mixed kinds of one width are fine
    with pytest.raises(BadInput) as error:
        method.check(lab.task, fleet(lab, 0.25, 0.25, 0.5, 0.25))
    message = str(error.value)
    assert "client 0 (resnet18@0.25:ann)" in message
    assert "client 2 (resnet18@0.5:ann)" in message
    assert method.name in message
    assert "\n" not in message


@pytest.mark.parametrize("method", ISOLATED, ids=name)
def test_isolated_allows_one_width_per_kind(lab: Any, method: FedAvg) -> None:
    method.check(lab.task, fleet(lab, 0.25, 0.5, 0.25, 0.5))
    with pytest.raises(BadInput, match=r"client 3 .*@1:snn.* client 1 .*@0.5:snn"):
        method.check(lab.task, fleet(lab, 0.25, 0.5, 0.25, 1.0))


def test_isolated_starts_every_kind_with_its_own_shapes(lab: Any) -> None:
    method, clients = IsolatedFedAvg(), fleet(lab, 0.25, 0.125, 0.25, 0.125)
    state = method.server_init(lab.task, clients)
    assert state["ann/stem.weight"].shape == (16, 1, 3, 3)
    assert state["snn/stem.weight"].shape == (8, 1, 3, 3)
    for c in clients:
        shapes = {key: tuple(t.shape) for key, t in method.server_send(state, c, FIRST).items()}
        assert shapes == method.downloads(lab.task, c)


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("policy", ["local", "averaged"])
def test_statistics_are_exchanged_only_if_averaged(lab: Any, kind: Kind, policy: str) -> None:
    method = lab.method("fedavg", bn_buffers=policy)
    client = lab.client(method, kind)
    up = lab.turn(method, client).payload
    expected = {key for key, _ in client.backbone.named_parameters()}
    if policy == "averaged":
        expected |= {key for key, _ in client.backbone.named_buffers() if key.endswith(("running_mean", "running_var"))}
        assert torch.equal(up["norm.running_mean"], client.backbone.norm.running_mean)
        assert len(expected) > len(list(client.backbone.parameters()))
    assert up.keys() == expected
    assert all(torch.equal(t, client.backbone.state_dict()[key]) for key, t in up.items())


@pytest.mark.parametrize("policy", ["local", "averaged"])
def test_download_replaces_the_backbone_and_averaged_statistics(lab: Any, policy: str) -> None:
    method = lab.method("fedavg", bn_buffers=policy)
    client = lab.client(method)
    down = {key: torch.full(shape, 0.5) for key, shape in method.downloads(client.task, client.info).items()}
    method.client_receive(client, down, FIRST)
    assert all((p == 0.5).all() for p in client.backbone.parameters())
    assert client.backbone.norm.running_mean.unique().tolist() == ([0.5] if policy == "averaged" else [0.0])


@pytest.mark.parametrize("method", DIRECT + ISOLATED, ids=name)
def test_download_resets_momentum(lab: Any, method: FedAvg) -> None:
    client = lab.client(method)
    up = lab.turn(method, client)
    assert client.momentum["backbone"].keys() == {key for key, _ in client.backbone.named_parameters()}
    method.client_receive(client, clone(up.payload), Round(1, 2))
    assert "backbone" not in client.momentum


def test_payload_of_another_width_is_refused(lab: Any, to_bytes: Bytes) -> None:
    client = lab.client(FedAvg())
    before = to_bytes(client.backbone)
    wide = FedAvg().server_send(FedAvg().server_init(lab.task, [lab.info(width=0.25)]), client.info, FIRST)
    with pytest.raises(GuardError, match=r"download to client 0 .*'stem.weight'"):
        take_turn(FedAvg(), client, wide, FIRST)
    assert to_bytes(client.backbone) == before


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("loss", ["ce", "tet"])
def test_loss_is_the_tasks(lab: Any, kind: Kind, loss: str) -> None:
    """Cross-entropy of the mean logits by default; TET for SNN clients alone, when the task says so."""
    method = FedAvg()
    client = lab.client(method, kind, task=replace(lab.one_batch(), snn_loss=loss))
    ((x, y),) = client.batches(client.generator(FIRST, "local"))
    with torch.no_grad():
        out = client.backbone.train()(x)
    if kind == "snn" and loss == "tet":
        steps = [nn.functional.cross_entropy(z, y).item() for z in out.logits_TBC]
        expected = (1 - 1e-4) * sum(steps) / 2 + 1e-4 * (out.logits_TBC - 1).square().mean().item()
    else:
        expected = nn.functional.cross_entropy(out.logits_TBC.mean(dim=0), y).item()
    metrics = method.client_round(client, FIRST).metrics
    assert metrics == {"local.ce": pytest.approx(expected, rel=1e-5)}


@pytest.mark.parametrize("method", DIRECT + ISOLATED, ids=name)
def test_large_fleet_is_checked_once_per_shape(lab: Any, monkeypatch: pytest.MonkeyPatch, method: FedAvg) -> None:
    asked: list[int] = []
    original = type(method).uploads

    def watched(self: Any, task: Any, client: Any) -> Any:
        asked.append(client.id)
        return original(self, task, client)

    monkeypatch.setattr(type(method), "uploads", watched)
    many = [lab.info(BOTH[i % 2], id=i) for i in range(5000)]
    method.check(lab.task, many)
    assert len(asked) == 2
    assert set(asked) == {0, 1}
    with pytest.raises(BadInput, match=r"client 5001 .* and client [01] .*do not have the same shapes"):
        method.check(lab.task, [*many, lab.info("snn", id=5001, width=0.25)])


def framed(lab: Any, method: FedAvg, kind: Kind, id: int, train_size: int) -> Client:
    """A client for event data of three frames, in a fleet whose stems differ in shape."""
    task = replace(lab.task, channels=6, frames=3, stems_differ=True)
    info = ClientInfo(id, kind, "resnet18", 0.125, 3 if kind == "snn" else 1, train_size, 4)
    x = torch.randint(0, 9, (8, 6, 8, 8), generator=torch.Generator().manual_seed(id), dtype=torch.uint8)
    y = torch.arange(8) % 4
    return build_client(method, task, info, Shard(x, y, x, y, [0.0] * 6, [0.01] * 6, "none"))


@pytest.mark.parametrize("method", DIRECT, ids=name)
def test_stems_of_different_shape_stay_local(lab: Any, method: FedAvg, to_bytes: Bytes) -> None:
    clients = [framed(lab, method, "ann", 0, 1), framed(lab, method, "snn", 1, 3)]
    infos, task = [c.info for c in clients], clients[0].task
    method.check(task, infos)
    state = method.server_init(task, infos)
    ups: dict[int, Upload] = {}
    for client in clients:
        stem = client.backbone.stem.weight.detach().clone()
        method.client_receive(client, method.server_send(state, client.info, FIRST), FIRST)
        assert torch.equal(client.backbone.stem.weight, stem)
        ups[client.info.id] = take_turn(method, client, method.server_send(state, client.info, FIRST), FIRST)
        assert not torch.equal(client.backbone.stem.weight, stem)  # the local stem is trained
        assert ups[client.info.id].payload.keys() == {
            key for key, _ in client.backbone.named_parameters() if key != "stem.weight"
        }
    new = method.server_round(state, infos, ups, FIRST)
    assert new.keys() == state.keys() == {f"all/{key}" for key in ups[0].payload}
    for key in ("norm.weight", "stages.0.0.conv1.weight", "classifier.bias"):
        mean = ups[0].payload[key] * 0.25 + ups[1].payload[key] * 0.75  # weights 1 and 3
        torch.testing.assert_close(new[f"all/{key}"], mean)
    before = [to_bytes(c.backbone)["stem.weight"] for c in clients]
    for client in clients:
        method.client_receive(client, method.server_send(new, client.info, FIRST), FIRST)
    assert [to_bytes(c.backbone)["stem.weight"] for c in clients] == before
    ann, snn = (dict(c.backbone.named_parameters()) for c in clients)
    assert all(torch.equal(ann[key], snn[key]) for key in ann if key != "stem.weight")
    (note,) = method.notes(task)
    assert method.name in note
    assert "6 and 2 channels" in note


@pytest.mark.parametrize("method", DIRECT + ISOLATED, ids=name)
def test_stems_of_one_shape_are_averaged(lab: Any, method: FedAvg) -> None:
    """In a fleet of one kind, or within a kind."""
    task = replace(lab.task, channels=6, frames=3, stems_differ=method in ISOLATED)
    assert method.uploads(task, lab.info("ann"))["stem.weight"] == (8, 6, 3, 3)
    assert method.notes(task) == []


def test_local_stem_has_no_proximal_term(lab: Any) -> None:
    method = FedProx(mu=1.0)
    client = framed(lab, method, "snn", 0, 8)
    down = method.server_send(method.server_init(client.task, [client.info]), client.info, FIRST)
    method.client_receive(client, down, FIRST)
    anchor = [p.detach() - 1.0 for p in method.trained(client)]
    ((x, y),) = list(client.shard.train_batches_plain(8))
    method.terms(client, anchor, client.backbone(x), y)["prox"].backward()
    assert client.backbone.stem.weight.grad is None
    torch.testing.assert_close(client.backbone.classifier.bias.grad, torch.ones(4))
