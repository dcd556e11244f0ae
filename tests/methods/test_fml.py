import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asfedbridge.core.client import Client
from asfedbridge.core.errors import BadInput
from asfedbridge.core.task import Kind, Optimiser, Output, Round
from asfedbridge.methods.fml import FML
from asfedbridge.models.zoo import bridge_of

KINDS: list[Kind] = ["ann", "snn"]
FIRST, HALFWAY = Round(0, 2), Round(1, 2)  # half-way of the cosine: half the rate

Bytes = Callable[[nn.Module], dict[str, bytes]]


def kl(teacher_BC: Tensor, student_BC: Tensor, temperature: float = 1.0) -> Tensor:
    """sum_c p log(p / q), mean over the batch, times the squared temperature."""
    p = (teacher_BC / temperature).exp() / (teacher_BC / temperature).exp().sum(dim=1, keepdim=True)
    q = (student_BC / temperature).exp() / (student_BC / temperature).exp().sum(dim=1, keepdim=True)
    return temperature**2 * (p * (p / q).log()).sum(dim=1).mean()


def see(client: Client, rnd: Round = FIRST) -> tuple[Any, Any, Output, Tensor, Tensor]:
    """Copies of backbone and meme, their outputs for the single batch in train mode, and the labels."""
    ((x, y),) = client.batches(client.generator(rnd, "mutual"))
    backbone, meme = (copy.deepcopy(client.modules[name]).train() for name in ("backbone", "meme"))
    return backbone, meme, backbone(x), meme(x), y


@pytest.mark.parametrize("temperature", [1.0, 3.0])
@pytest.mark.parametrize("kind", KINDS)
def test_both_losses_by_their_formulas(lab: Any, kind: Kind, temperature: float) -> None:
    """alpha CE + (1 - alpha) KL(other || own), of the mean over time for an SNN; beta likewise."""
    method = lab.method("fml", alpha=0.3, beta=0.9, temperature=temperature)
    client = lab.client(method, kind, task=lab.one_batch())
    _, _, out, meme, y = see(client)
    assert len(out.logits_TBC) == (2 if kind == "snn" else 1)
    own = out.logits_TBC.mean(dim=0)
    assert method.client_round(client, FIRST).metrics == pytest.approx(
        {
            "mutual.ce": 0.3 * F.cross_entropy(own, y).item(),
            "mutual.kd": 0.7 * kl(meme, own, temperature).item(),
            "mutual.meme_ce": 0.9 * F.cross_entropy(meme, y).item(),
            "mutual.meme_kd": 0.1 * kl(own, meme, temperature).item(),
        },
        rel=1e-4,
    )


def test_snn_loss_follows_the_task(lab: Any) -> None:
    method = lab.method("fml")
    client = lab.client(method, "snn", task=replace(lab.one_batch(), snn_loss="tet"))
    _, _, out, _, y = see(client)
    steps = sum(F.cross_entropy(z, y).item() for z in out.logits_TBC) / 2
    tet = (1 - 1e-4) * steps + 1e-4 * (out.logits_TBC - 1).square().mean().item()
    assert method.client_round(client, FIRST).metrics["mutual.ce"] == pytest.approx(0.5 * tet, rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_each_network_has_its_own_loss_and_rate(lab: Any, kind: Kind) -> None:
    """w - lr (g + decay w), where g is the gradient of its own two terms with the other's output held fixed."""
    optimiser = Optimiser(lr_ann=0.4, lr_snn=0.4, weight_decay_ann=0.3, weight_decay_snn=0.3)
    method = lab.method("fml", alpha=0.4, beta=0.3, bridge_lr=0.2, bridge_weight_decay=0.5)
    client = lab.client(method, kind, task=lab.one_batch(optimiser=optimiser))
    backbone, meme, out, answer, y = see(client, HALFWAY)
    own = out.logits
    for_backbone = 0.4 * F.cross_entropy(own, y) + 0.6 * kl(answer.detach(), own)
    for_meme = 0.3 * F.cross_entropy(answer, y) + 0.7 * kl(own.detach(), answer)
    method.client_round(client, HALFWAY)
    for name, start, loss, lr, decay in (
        ("backbone", backbone, for_backbone, 0.2, 0.3),
        ("meme", meme, for_meme, 0.1, 0.5),
    ):
        named = {key: p for key, p in start.named_parameters() if "log_scale" not in key}
        grads = torch.autograd.grad(loss, list(named.values()))
        assert sum(g.abs().max() > 1e-4 for g in grads) > len(grads) / 2
        for (key, p), g in zip(named.items(), grads, strict=True):
            expected = p - lr * (g + (decay * p if p.dim() > 1 else 0.0))
            now = client.modules[name].get_parameter(key)
            torch.testing.assert_close(now, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("share", "deaf", "other"), [("alpha", "backbone", "meme"), ("beta", "meme", "backbone")])
def test_without_distillation_the_networks_are_independent(
    lab: Any, to_bytes: Bytes, kind: Kind, share: str, deaf: str, other: str
) -> None:
    ends = {}
    for value in (1.0, 0.5):
        for spoiled in (False, True):
            method = lab.method("fml", **{share: value})
            client = lab.client(method, kind, task=lab.gentle())
            if spoiled:
                head = client.modules[other].head if other == "meme" else client.modules[other].classifier
                with torch.no_grad():
                    head.bias.copy_(torch.tensor([5.0, -5.0, 0.0, 0.0]))
            method.client_round(client, FIRST)
            ends[value, spoiled] = to_bytes(client.modules[deaf])
    assert ends[1.0, False] == ends[1.0, True]
    assert ends[0.5, False] != ends[0.5, True]


@pytest.mark.parametrize("kind", KINDS)
def test_both_networks_are_trained_in_every_step(lab: Any, to_bytes: Bytes, kind: Kind) -> None:
    """Ten examples in batches of four, three epochs: nine steps, statistics included."""
    method = lab.method("fml")
    client = lab.client(method, kind, task=lab.gentle(epochs=3))
    before = {name: to_bytes(module) for name, module in client.modules.items()}
    seen: list[str] = []
    client.watch = lambda stage, epoch, epochs, terms: seen.append(f"{stage} {epoch + 1}/{epochs}")
    up = method.client_round(client, FIRST)
    assert seen == ["mutual 1/3", "mutual 2/3", "mutual 3/3"]
    meme = bridge_of(client, "meme")
    assert client.backbone.norm.num_batches_tracked == meme.body.norm.num_batches_tracked == 9
    assert client.momentum.keys() == {"backbone", "meme"}
    for name, keys in {
        "backbone": {"stem.weight", "classifier.bias", "norm.running_mean"},
        "meme": {"body.stem.weight", "body.bottleneck.weight", "head.weight", "body.norm.running_mean"},
    }.items():
        after = to_bytes(client.modules[name])
        assert all(after[key] != before[name][key] for key in keys)
    assert up.payload["stem.weight"].numpy().tobytes() == to_bytes(meme)["body.stem.weight"]


def test_the_meme_is_evaluated_beside_the_backbone(lab: Any) -> None:
    method = lab.method("fml")
    client = lab.client(method)
    metrics = lab.turn(method, client).metrics
    x, y = next(iter(client.shard.test_batches(4)))
    with torch.no_grad():
        right = (client.modules["meme"].eval()(x).argmax(dim=1) == y).float().mean().item()
    assert metrics["trained.meme_accuracy"] == 100 * right
    assert {"received.accuracy", "received.meme_accuracy", "trained.accuracy"} <= metrics.keys()


@pytest.mark.parametrize(("field", "value"), [("alpha", 1.5), ("beta", 2.0), ("alpha", -0.1)])
def test_weights_outside_0_to_1_are_refused(lab: Any, field: str, value: float) -> None:
    with pytest.raises(BadInput, match=f"^method.{field}={value} is out of range; use 0 to 1$"):
        lab.method("fml", **{field: value}).check(lab.task, [lab.info()])
    lab.method("fml", alpha=0.0, beta=1.0).check(lab.task, [lab.info()])


def test_the_defaults_are_the_documented_ones() -> None:
    assert (FML().alpha, FML().beta) == (0.5, 0.5)
