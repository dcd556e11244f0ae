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
from asfedbridge.methods.mh_pflid import MHpFLID
from asfedbridge.models.zoo import bridge_of

KINDS: list[Kind] = ["ann", "snn"]
FIRST, HALFWAY = Round(0, 2), Round(1, 2)  # half-way of the cosine: half the rate
MAPS = ("adapt.weight", "query.weight", "key.weight", "value.weight")
PLAIN = Optimiser(weight_decay_ann=0.0, weight_decay_snn=0.0)

Bytes = Callable[[nn.Module], dict[str, bytes]]


def make(lab: Any, kind: Kind, task: Any = None, **fields: Any) -> tuple[Any, Client]:
    """Four tokens of width two; neurons of an SNN fire from the second step."""
    method = lab.method("mh-pflid", **{"tokens": 4} | fields)
    client = lab.client(method, kind, task=task or lab.one_batch())
    with torch.no_grad():
        client.backbone.projector.bias.fill_(0.7)
        bridge_of(client, "messenger").body.bottleneck.bias.fill_(0.3)
    return method, client


def copies(client: Client) -> dict[str, Any]:
    return {name: copy.deepcopy(module) for name, module in client.modules.items()}


def kl(teacher_BC: Tensor, student_BC: Tensor, temperature: float = 1.0) -> Tensor:
    """sum_c p log(p / q), mean over the batch, times the squared temperature."""
    p = (teacher_BC / temperature).exp() / (teacher_BC / temperature).exp().sum(dim=1, keepdim=True)
    q = (student_BC / temperature).exp() / (student_BC / temperature).exp().sum(dim=1, keepdim=True)
    return temperature**2 * (p * (p / q).log()).sum(dim=1).mean()


def mean_of(out: Output) -> tuple[Tensor, Tensor]:
    return out.logits_TBC.mean(dim=0), out.feature_TBD.mean(dim=0)


# frozen and trained modules


@pytest.mark.parametrize("kind", KINDS)
def test_injection_trains_only_backbone_and_receiver(lab: Any, to_bytes: Bytes, kind: Kind) -> None:
    """The messenger, including its statistics, does not change and has no gradients."""
    method, client = make(lab, kind, lab.task)
    before = {name: to_bytes(module) for name, module in client.modules.items()}
    method.inject(client, FIRST)
    after = {name: to_bytes(module) for name, module in client.modules.items()}
    for name in ("messenger", "transmitter"):
        assert after[name] == before[name]
        assert all(p.grad is None for p in client.modules[name].parameters())
    moved = ("stem.weight", "projector.weight", "classifier.bias", "norm.running_mean")
    assert all(after["backbone"][key] != before["backbone"][key] for key in moved)
    assert all(after["receiver"][key] != before["receiver"][key] for key in MAPS)


@pytest.mark.parametrize("kind", KINDS)
def test_distillation_trains_only_messenger_and_transmitter(lab: Any, to_bytes: Bytes, kind: Kind) -> None:
    method, client = make(lab, kind, lab.task)
    before = {name: to_bytes(module) for name, module in client.modules.items()}
    method.distil(client, FIRST)
    after = {name: to_bytes(module) for name, module in client.modules.items()}
    for name in ("backbone", "receiver"):
        assert after[name] == before[name]
        assert all(p.grad is None for p in client.modules[name].parameters())
    moved = ("body.stem.weight", "body.bottleneck.weight", "head.weight", "body.norm.running_mean")
    assert all(after["messenger"][key] != before["messenger"][key] for key in moved)
    assert all(after["transmitter"][key] != before["transmitter"][key] for key in MAPS)


@pytest.mark.parametrize("kind", KINDS)
def test_messenger_loss_reaches_backbone_and_receiver(lab: Any, to_bytes: Bytes, kind: Kind) -> None:
    """Without the backbone's label loss, its extractor and the receiver are trained, its classifier is not."""
    method, client = make(lab, kind, lab.one_batch(optimiser=PLAIN), lambda_inject_local=0.0)
    before = {name: to_bytes(module) for name, module in client.modules.items()}
    method.inject(client, FIRST)
    after = {name: to_bytes(module) for name, module in client.modules.items()}
    assert all(after["backbone"][key] != before["backbone"][key] for key in ("stem.weight", "projector.weight"))
    assert after["backbone"]["classifier.weight"] == before["backbone"]["classifier.weight"]
    assert all(after["receiver"][key] != before["receiver"][key] for key in MAPS)


def test_messenger_weight_zero_disables_the_messenger(lab: Any, to_bytes: Bytes) -> None:
    ends = []
    for spoiled in (False, True):
        method, client = make(lab, "ann", lab.one_batch(optimiser=PLAIN), lambda_inject_messenger=0.0)
        if spoiled:
            bridge_of(client, "messenger").head.weight.data.mul_(-3.0)
        receiver = to_bytes(client.modules["receiver"])
        method.inject(client, FIRST)
        assert to_bytes(client.modules["receiver"]) == receiver
        ends.append(to_bytes(client.backbone))
    assert ends[0] == ends[1]


@pytest.mark.parametrize("epochs", [1, 2])
def test_epochs_of_the_two_stages(lab: Any, epochs: int) -> None:
    """The task's for the backbone, the method's own for the messenger; three batches each."""
    method, client = make(lab, "ann", replace(lab.task, epochs=5), distillation_epochs=epochs)
    seen: list[str] = []
    client.watch = lambda stage, epoch, total, terms: seen.append(f"{stage} {epoch + 1}/{total}")
    method.client_round(client, FIRST)
    assert seen == [f"inject {i}/5" for i in range(1, 6)] + [f"distil {i}/{epochs}" for i in range(1, epochs + 1)]
    assert client.backbone.norm.num_batches_tracked == 15
    assert bridge_of(client, "messenger").body.norm.num_batches_tracked == 3 * epochs


def test_a_round_is_injection_then_distillation(lab: Any, to_bytes: Bytes) -> None:
    method, whole = make(lab, "ann", lab.task)
    up = method.client_round(whole, FIRST)
    _, parts = make(lab, "ann", lab.task)
    metrics = method.inject(parts, FIRST) | method.distil(parts, FIRST)
    assert up.metrics == metrics
    assert {n: to_bytes(m) for n, m in whole.modules.items()} == {n: to_bytes(m) for n, m in parts.modules.items()}


# the losses, by their formulas


@pytest.mark.parametrize("kind", KINDS)
def test_injection_loss(lab: Any, kind: Kind) -> None:
    """lambda CE(own head) + lambda CE(messenger's head on the receiver's output for the mean feature)."""
    method, client = make(lab, kind, lambda_inject_local=0.7, lambda_inject_messenger=0.4)
    ((x, y),) = client.batches(client.generator(FIRST, "inject"))
    was = copies(client)
    logits, feature = mean_of(was["backbone"].train()(x))
    if kind == "snn":
        assert 0.5 in feature
    messenger = was["messenger"].eval()
    answer = messenger.head(was["receiver"](feature, messenger.body(x)[-1]))
    assert method.inject(client, FIRST) == pytest.approx(
        {
            "inject.ce": 0.7 * F.cross_entropy(logits, y).item(),
            "inject.messenger_ce": 0.4 * F.cross_entropy(answer, y).item(),
        },
        rel=1e-4,
    )


@pytest.mark.parametrize("temperature", [1.0, 3.0])
@pytest.mark.parametrize("kind", KINDS)
def test_distillation_loss(lab: Any, kind: Kind, temperature: float) -> None:
    """lambda CE + lambda KL(backbone || messenger), both for the messenger's head after the transmitter."""
    method, client = make(lab, kind, lambda_distil_label=0.7, lambda_distil_kd=0.4, temperature=temperature)
    ((x, y),) = client.batches(client.generator(FIRST, "distil"))
    was = copies(client)
    logits, feature = mean_of(was["backbone"].eval()(x))
    messenger = was["messenger"].train()
    answer = messenger.head(was["transmitter"](feature, messenger.body(x)[-1]))
    assert method.distil(client, FIRST) == pytest.approx(
        {
            "distil.ce": 0.7 * F.cross_entropy(answer, y).item(),
            "distil.kd": 0.4 * kl(logits, answer, temperature).item(),
        },
        rel=1e-4,
    )


def test_snn_loss_follows_the_task(lab: Any) -> None:
    method, client = make(lab, "snn", replace(lab.one_batch(), snn_loss="tet"))
    ((x, y),) = client.batches(client.generator(FIRST, "inject"))
    out = copies(client)["backbone"].train()(x)
    steps = sum(F.cross_entropy(z, y).item() for z in out.logits_TBC) / 2
    tet = (1 - 1e-4) * steps + 1e-4 * (out.logits_TBC - 1).square().mean().item()
    assert method.inject(client, FIRST)["inject.ce"] == pytest.approx(0.9 * tet, rel=1e-5)


def stepped(model: nn.Module, loss: Tensor, lr: float, decay: float) -> dict[str, Tensor]:
    """w - lr (g + decay w); no decay for biases, normalisation and tensors without a gradient."""
    named = {key: p for key, p in model.named_parameters() if "log_scale" not in key}
    grads = torch.autograd.grad(loss, list(named.values()), retain_graph=True)
    assert all(g.abs().max() > 1e-6 for g in grads[-4:])
    return {
        key: (p - lr * (g + (decay * p if p.dim() > 1 else 0.0))).detach()
        for (key, p), g in zip(named.items(), grads, strict=True)
    }


def assert_at(model: nn.Module, expected: dict[str, Tensor]) -> None:
    for key, value in expected.items():
        torch.testing.assert_close(model.get_parameter(key).detach(), value, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_steps_and_rates_of_injection(lab: Any, kind: Kind) -> None:
    """The receiver's rate is a multiple of its client's, with its client's decay."""
    optimiser = Optimiser(lr_ann=0.4, lr_snn=0.6, weight_decay_ann=0.2, weight_decay_snn=0.3)
    method, client = make(lab, kind, lab.one_batch(optimiser=optimiser), receiver_lr_factor=5.0)
    ((x, y),) = client.batches(client.generator(HALFWAY, "inject"))
    was = copies(client)
    logits, feature = mean_of(was["backbone"].train()(x))
    messenger = was["messenger"].eval()
    answer = messenger.head(was["receiver"](feature, messenger.body(x)[-1].detach()))
    loss = 0.9 * F.cross_entropy(logits, y) + 0.1 * F.cross_entropy(answer, y)
    lr, decay = (0.2, 0.2) if kind == "ann" else (0.3, 0.3)
    expected = {
        "backbone": stepped(was["backbone"], loss, lr, decay),
        "receiver": stepped(was["receiver"], loss, 5 * lr, decay),
    }
    method.inject(client, HALFWAY)
    for name, values in expected.items():
        assert_at(client.modules[name], values)


@pytest.mark.parametrize("kind", KINDS)
def test_steps_and_rates_of_distillation(lab: Any, kind: Kind) -> None:
    """Bridge's rate and decay for the messenger, a multiple of that rate for the transmitter."""
    task = lab.one_batch(optimiser=Optimiser(lr_ann=9.0, lr_snn=9.0, weight_decay_ann=9.0, weight_decay_snn=9.0))
    method, client = make(lab, kind, task, bridge_lr=0.2, bridge_weight_decay=0.5, transmitter_lr_factor=3.0)
    ((x, y),) = client.batches(client.generator(HALFWAY, "distil"))
    was = copies(client)
    with torch.no_grad():
        logits, feature = mean_of(was["backbone"].eval()(x))
    messenger = was["messenger"].train()
    answer = messenger.head(was["transmitter"](feature, messenger.body(x)[-1]))
    loss = 0.9 * F.cross_entropy(answer, y) + 0.1 * kl(logits, answer)
    expected = {
        "messenger": stepped(messenger, loss, 0.1, 0.5),
        "transmitter": stepped(was["transmitter"], loss, 0.3, 0.5),
    }
    method.distil(client, HALFWAY)
    for name, values in expected.items():
        assert_at(client.modules[name], values)


# private parts and settings


def test_receiver_and_transmitter_differ_and_are_equal_on_all_clients(lab: Any, to_bytes: Bytes) -> None:
    _, one = make(lab, "ann")
    method = lab.method("mh-pflid", tokens=4)
    two, other = lab.client(method, "snn", id=5), lab.client(method, task=replace(lab.task, seed=43))
    for name in ("receiver", "transmitter"):
        assert to_bytes(one.modules[name]) == to_bytes(two.modules[name])
        start, elsewhere = to_bytes(one.modules[name]), to_bytes(other.modules[name])
        assert all(start[key] != elsewhere[key] for key in MAPS)
    receiver, transmitter = to_bytes(one.modules["receiver"]), to_bytes(one.modules["transmitter"])
    assert all(receiver[key] != transmitter[key] for key in MAPS)


@pytest.mark.parametrize(("tokens", "width"), [(2, 4), (4, 2), (8, 1)])
def test_width_of_tokens(lab: Any, tokens: int, width: int) -> None:
    method = lab.method("mh-pflid", tokens=tokens)
    client = lab.client(method)
    for name in ("receiver", "transmitter"):
        shapes = {key: tuple(p.shape) for key, p in client.modules[name].named_parameters()}
        assert shapes == {"adapt.weight": (8, 8)} | dict.fromkeys(MAPS[1:], (width, width))
    lab.turn(method, client)


@pytest.mark.parametrize("tokens", [0, 1, 3, 16])
def test_tokens_that_do_not_fit_are_refused(lab: Any, tokens: int) -> None:
    """With one token the softmax has one entry: no attention."""
    with pytest.raises(BadInput, match=rf"^method.tokens={tokens} .*feature_dim=8 .* use a divisor of 8, at least 2$"):
        lab.method("mh-pflid", tokens=tokens).check(lab.task, [lab.info()])


def test_the_messenger_is_evaluated_through_the_transmitter(lab: Any) -> None:
    """The messenger predicts only through the private modules."""
    method, client = make(lab, "ann")
    metrics = lab.turn(method, client).metrics
    x, y = next(client.shard.test_batches(64))
    with torch.inference_mode():
        feature = client.modules["messenger"].body(x)[-1]
        logits = client.modules["messenger"].head(client.modules["transmitter"](client.backbone(x).feature, feature))
    right = (logits.argmax(dim=1) == y).float().mean().item()
    assert metrics["trained.transmitted_accuracy"] == pytest.approx(100 * right)
    assert {"trained.accuracy", "trained.fused_accuracy"} <= metrics.keys()


def test_defaults_are_the_documented_ones() -> None:
    method = MHpFLID()
    assert method.tokens == 8
    assert (method.lambda_inject_local, method.lambda_inject_messenger) == (0.9, 0.1)
    assert (method.lambda_distil_label, method.lambda_distil_kd) == (0.9, 0.1)
    assert (method.distillation_epochs, method.receiver_lr_factor, method.transmitter_lr_factor) == (1, 1.0, 1.0)
