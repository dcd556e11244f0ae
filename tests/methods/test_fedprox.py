from typing import Any

import pytest
import torch
from torch import Tensor

from asfedbridge.core.client import Client
from asfedbridge.core.task import Kind, Optimiser, Output, Round
from asfedbridge.core.training import fit_backbone
from asfedbridge.methods import fedprox

FIRST = Round(0, 2)
LR, MU = 0.5, 0.4


def nothing(client: Client, out: Output, y: Tensor) -> Tensor:
    """A loss of zero that depends on the model."""
    return out.logits.sum() * 0


@pytest.mark.parametrize("kind", ["ann", "snn"])
@pytest.mark.parametrize("name", ["fedprox", "isolated-fedprox"])
def test_without_a_loss_weights_return_to_the_anchor(
    lab: Any, monkeypatch: pytest.MonkeyPatch, name: str, kind: Kind
) -> None:
    """The gradient of mu/2 ||w - a||^2 is mu (w - a), so k plain steps leave (1 - lr mu)^k of the distance."""
    monkeypatch.setattr(fedprox, "supervise", nothing)
    plain = Optimiser(lr_ann=LR, lr_snn=LR, weight_decay_ann=0.0, weight_decay_snn=0.0, momentum=0.0)
    method = lab.method(name, mu=MU)
    client = lab.client(method, kind, task=lab.one_batch(optimiser=plain, epochs=3))
    start = [p.detach().clone() for p in client.backbone.parameters()]
    anchor = [p - 1.0 for p in start]
    metrics = fit_backbone(client, FIRST, "local", lambda out, x, y: method.terms(client, anchor, out, y))
    left = (1 - LR * MU) ** 3
    for p, a in zip(client.backbone.parameters(), anchor, strict=True):
        torch.testing.assert_close(p.detach() - a, torch.full_like(p, left), rtol=1e-4, atol=1e-5)
    scalars = sum(p.numel() for p in start)
    assert metrics["local.prox"] == pytest.approx(MU / 2 * scalars * (1 - LR * MU) ** 4, rel=1e-4)  # of the third step
    assert metrics["local.ce"] == 0.0


def test_the_anchor_is_the_downloaded_backbone(lab: Any) -> None:
    """In the second epoch, after one step: mu/2 times the squared length of that step."""
    method = lab.method("fedprox", mu=MU)
    one, two = (lab.client(method, task=lab.one_batch(epochs=epochs)) for epochs in (1, 2))
    down = method.server_send(method.server_init(one.task, [one.info]), one.info, FIRST)
    down = {name: 1.1 * t for name, t in down.items()}
    for client in (one, two):
        method.client_receive(client, down, FIRST)
    assert method.client_round(one, FIRST).metrics["local.prox"] == 0.0
    moved = sum((p - down[name]).square().sum().item() for name, p in one.backbone.named_parameters())
    assert moved > 1e-6
    metrics = method.client_round(two, FIRST).metrics
    assert metrics["local.prox"] == pytest.approx(MU / 2 * moved, rel=1e-3)


def test_the_default_is_the_documented_one(lab: Any) -> None:
    assert lab.method("fedprox").mu == lab.method("isolated-fedprox").mu == 0.01
