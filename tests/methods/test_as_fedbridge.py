import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asfedbridge.core import losses, payload, seeds
from asfedbridge.core.errors import BadInput
from asfedbridge.core.task import ClientInfo, Kind, Optimiser, Round, Task, Upload
from asfedbridge.engines.local import LocalEngine
from asfedbridge.engines.loop import federate
from asfedbridge.engines.turn import build_client
from asfedbridge.methods.as_fedbridge import ASFedBridge, choose
from asfedbridge.models.zoo import bridge_of
from asfedbridge.runs.recipes import quickstart
from asfedbridge.runs.setting import prepare
from asfedbridge.runs.spec import apply_overrides

KINDS: list[Kind] = ["ann", "snn"]
FIRST = Round(0, 2)
EXTRACT = {"ann": {"extract.ce", "extract.kd"}, "snn": {"extract.tet", "extract.kd"}}
INJECT = {"inject.kd", "inject.ce", "inject.prox"}
PORTS = {"inject.rate", "inject.pspr"}
TERMS = {"ann": EXTRACT["ann"] | INJECT, "snn": EXTRACT["snn"] | INJECT | PORTS}

Bytes = Callable[[nn.Module], dict[str, bytes]]


def terms_of(upload: Upload) -> set[str]:
    return {name for name in upload.metrics if name.startswith(("extract.", "inject."))}


# frozen modules and payloads


@pytest.mark.parametrize("kind", KINDS)
def test_extraction_does_not_change_the_bridge(lab: Any, to_bytes: Bytes, kind: Kind) -> None:
    method = lab.method("as-fedbridge")
    client = lab.client(method, kind)
    bridge, backbone = to_bytes(bridge_of(client)), to_bytes(client.backbone)
    method.extract(client, FIRST)
    assert to_bytes(bridge_of(client)) == bridge
    assert all(p.grad is None for p in bridge_of(client).parameters())
    after = to_bytes(client.backbone)
    assert all(after[name] != backbone[name] for name in ("stem.weight", "classifier.bias", "norm.running_mean"))


@pytest.mark.parametrize("kind", KINDS)
def test_injection_does_not_change_the_backbone(lab: Any, to_bytes: Bytes, kind: Kind) -> None:
    method = lab.method("as-fedbridge")
    client = lab.client(method, kind)
    bridge, backbone = to_bytes(bridge_of(client)), to_bytes(client.backbone)
    method.inject(client, FIRST)
    assert to_bytes(client.backbone) == backbone
    assert all(p.grad is None for p in client.backbone.parameters())
    after = to_bytes(bridge_of(client))
    moved = {"body.stem.weight", "body.norm.running_mean", "body.bottleneck.weight", "head.bias"}
    assert all(after[name] != bridge[name] for name in moved)


@pytest.mark.parametrize(
    ("kind", "ports", "learns"), [("snn", True, True), ("snn", False, False), ("ann", True, False)]
)
def test_port_scales_are_trained_only_by_the_rate_branch(
    lab: Any, to_bytes: Bytes, kind: Kind, ports: bool, learns: bool
) -> None:
    method = lab.method("as-fedbridge", pseudo_spike=ports)
    client = lab.client(method, kind)
    before = to_bytes(bridge_of(client).body.ports)
    method.inject(client, FIRST)
    after = to_bytes(bridge_of(client).body.ports)
    assert (after["4.log_scale"] != before["4.log_scale"]) == learns
    assert (after != before) == learns


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_body_is_uploaded(lab: Any, kind: Kind) -> None:
    method = lab.method("as-fedbridge")
    client = lab.client(method, kind)
    up = lab.turn(method, client).payload
    body = dict(bridge_of(client).body.named_parameters())
    assert up.keys() == body.keys()
    assert all(torch.equal(up[name], p) for name, p in body.items())
    assert payload.size_in_bytes(up) == 4 * sum(p.numel() for p in body.values())
    assert not any("head" in name or "running" in name for name in up)


def test_shared_head_is_uploaded_with_the_body(lab: Any) -> None:
    method = lab.method("as-fedbridge", personal_head=False)
    client = lab.client(method)
    up = lab.turn(method, client).payload
    bridge = bridge_of(client)
    assert up.keys() == {name for name, _ in bridge.named_parameters()}
    assert torch.equal(up["head.weight"], bridge.head.weight)


def test_averaged_statistics_are_uploaded(lab: Any) -> None:
    method = lab.method("as-fedbridge", bn_buffers="averaged")
    client = lab.client(method)
    up = lab.turn(method, client).payload
    statistics = {n: b for n, b in bridge_of(client).body.named_buffers() if n.endswith(("mean", "var"))}
    assert statistics
    assert all(torch.equal(up[name], b) for name, b in statistics.items())


@pytest.mark.parametrize("personal", [True, False])
def test_download_replaces_only_the_shared_part(lab: Any, to_bytes: Bytes, personal: bool) -> None:
    method = lab.method("as-fedbridge", personal_head=personal)
    client = lab.client(method)
    down = {name: torch.full(shape, 0.5) for name, shape in method.downloads(client.task, client.info).items()}
    backbone, head = to_bytes(client.backbone), to_bytes(bridge_of(client).head)
    method.client_receive(client, down, FIRST)
    assert all((p == 0.5).all() for p in bridge_of(client).body.parameters())
    assert to_bytes(client.backbone) == backbone
    assert (to_bytes(bridge_of(client).head) == head) == personal


def test_body_size_is_about_4_mb(lab: Any) -> None:
    declared = ASFedBridge().uploads(Task(100, 3, 32), lab.info())
    scalars = sum(torch.Size(shape).numel() for shape in declared.values())
    assert round(4 * scalars / 2**20, 2) == 3.93
    assert not any("head" in name for name in declared)


# ablations


@pytest.mark.parametrize(
    ("switch", "ann_loses", "snn_loses"),
    [
        ({}, set(), set()),
        ({"pseudo_spike": False}, set(), PORTS),
        ({"pspr": False}, set(), {"inject.pspr"}),
        ({"rate_loss": False}, set(), {"inject.rate"}),
        ({"quantise": False}, set(), set()),
        ({"personal_head": False}, set(), set()),
        ({"direction": "ann-to-snn"}, {"extract.kd"}, INJECT | PORTS),
        ({"direction": "snn-to-ann"}, INJECT, {"extract.kd"}),
        ({"direction": "snn-to-ann", "receivers": "frozen"}, INJECT, {"extract.kd"}),
    ],
    ids=lambda value: str(sorted(value)),  # the order of a set differs between processes
)
def test_a_switch_removes_exactly_its_terms(
    lab: Any, switch: dict[str, Any], ann_loses: set[str], snn_loses: set[str]
) -> None:
    method = lab.method("as-fedbridge", **switch)
    for kind, loses in (("ann", ann_loses), ("snn", snn_loses)):
        up = lab.turn(method, lab.client(method, kind))
        assert terms_of(up) == TERMS[kind] - loses
        assert bool(up.payload) == (not loses >= INJECT)


RECEIVERS = [("ann-to-snn", "snn"), ("snn-to-ann", "ann")]  # and who receives


@pytest.mark.parametrize(("direction", "kind"), RECEIVERS)
def test_a_frozen_receiver_only_extracts(lab: Any, to_bytes: Bytes, direction: str, kind: Kind) -> None:
    method = lab.method("as-fedbridge", direction=direction, receivers="frozen")
    client, twin = lab.client(method, kind), lab.client(method, kind)
    before = to_bytes(bridge_of(client))
    assert lab.turn(method, client).payload == {} == method.uploads(client.task, client.info)
    assert method.downloads(client.task, client.info)
    assert to_bytes(bridge_of(client)) == before
    method.extract(twin, FIRST)
    assert to_bytes(client.backbone) == to_bytes(twin.backbone)
    assert client.momentum.keys() == {"backbone"}


@pytest.mark.parametrize("personal", [True, False])
@pytest.mark.parametrize(("direction", "kind"), RECEIVERS)
def test_receiver_adapts_its_private_part(
    lab: Any, to_bytes: Bytes, direction: str, kind: Kind, personal: bool
) -> None:
    """A private head and BatchNorm statistics change; trainable tensors of the body and a shared head do not."""
    method = lab.method("as-fedbridge", direction=direction, personal_head=personal)
    frozen = lab.method("as-fedbridge", direction=direction, personal_head=personal, receivers="frozen")
    client, twin = lab.client(method, kind), lab.client(frozen, kind)
    before = to_bytes(bridge_of(client))
    up = lab.turn(method, client)
    assert up.payload == {} == method.uploads(client.task, client.info)
    after = to_bytes(bridge_of(client))
    learnt = {"head.weight", "head.bias"} if personal else set()
    assert {name for name, _ in bridge_of(client).named_parameters() if after[name] != before[name]} == learnt
    assert all(after[n] != before[n] for n, _ in bridge_of(client).named_buffers())
    assert client.momentum.get("bridge", {}).keys() == learnt
    assert ({"adapt.kd", "adapt.ce"} <= up.metrics.keys()) == personal
    lab.turn(frozen, twin)
    assert to_bytes(client.backbone) == to_bytes(twin.backbone)  # until the next extraction


def test_receiver_without_a_private_part_does_not_adapt(lab: Any, to_bytes: Bytes) -> None:
    for change in ({"bn_buffers": "averaged"}, {"bridge_norm": "group"}):
        method = lab.method("as-fedbridge", direction="snn-to-ann", personal_head=False, **change)
        client = lab.client(method)
        before = to_bytes(bridge_of(client))
        lab.turn(method, client)
        assert to_bytes(bridge_of(client)) == before


DIGITS = {
    "fleet": "1*resnet18@0.0625:ann,1*resnet18@0.0625:snn",
    "T": 1,
    "train_per_class": 12,
    "test_per_class": 2,
    "feature_dim": 64,
    "partition": "iid",
    "rounds": 3,
    "evaluate_every": 3,
    "method.direction": "ann-to-snn",
    "method.injection_epochs": 6,
}


def test_bridge_of_an_adapting_receiver_learns_digits(tmp_path: Path) -> None:
    """Accuracy on the receiver's training images after the closing visit; at chance level if frozen."""
    spec = apply_overrides(quickstart(), DIGITS)
    setting = prepare(spec, tmp_path)
    engine = LocalEngine(spec.method, setting.task, setting.clients, setting.shards)
    state = federate(spec.method, setting.task, engine, lambda *_: None)
    info = setting.clients[1]
    client = build_client(spec.method, setting.task, info, setting.shards[info.id])
    client.load_state_dict(engine.client_state(info.id))
    body = dict(bridge_of(client).body.named_parameters())
    assert all(torch.equal(body[name], t) for name, t in state.items())
    right = 0
    with torch.no_grad():
        for x, y in client.shard.train_batches_plain(64):
            right += int((bridge_of(client).eval()(client.place(x)).argmax(dim=1) == y).sum())
    assert right > 0.5 * info.train_size


# the losses, by the paper's formulas


def soften(z_BC: Tensor) -> Tensor:
    powers = (z_BC.double() / 2).exp()
    return powers / powers.sum(dim=1, keepdim=True)


def distil(student_BC: Tensor, teacher_BC: Tensor) -> float:
    """At the paper's temperature 2."""
    p, q = soften(teacher_BC), soften(student_BC)
    return 4 * (p * (p / q).log()).sum(dim=1).mean().item()


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_extraction_loss_is_the_papers(lab: Any, kind: Kind, index: int) -> None:
    """CE + alpha KD for an ANN; TET + alpha KD of the noisy mean logits for an SNN; alpha from first to last round."""
    rnd, method = Round(index, 2), lab.method("as-fedbridge", lambda_tet=0.3, lambda_nld=0.8)
    client = lab.client(method, kind, task=lab.one_batch())
    ((x, y),) = client.batches(client.generator(rnd, "extract"))
    with torch.no_grad():
        out = client.backbone.train()(x)
        teacher = bridge_of(client).eval()(x)
        client.backbone.load_state_dict(lab.client(method, kind).backbone.state_dict())
    metrics = method.extract(client, rnd)
    student = out.logits_TBC.mean(dim=0)
    if kind == "snn":
        noise = torch.randn(10, 4, generator=seeds.generator(42, "client", 0, "round", index, "noise"))
        student = student + 0.8 * student.std(dim=1, keepdim=True) * noise
        steps = [0.7 * F.cross_entropy(z, y).item() + 0.3 * (z - 1).square().mean().item() for z in out.logits_TBC]
        expected = {"extract.tet": sum(steps) / 2, "extract.kd": (0.07, 0.025)[index] * distil(student, teacher)}
    else:
        expected = {
            "extract.ce": F.cross_entropy(student, y).item(),
            "extract.kd": (0.10, 0.025)[index] * distil(student, teacher),
        }
    assert metrics == pytest.approx(expected, rel=1e-4)


def pspr(rates: tuple[Tensor, ...]) -> float:
    ports = []
    for r in rates:
        values_CN = r.double().transpose(0, 1).flatten(1)
        mu, sigma = values_CN.mean(1), values_CN.std(1, unbiased=False)
        centring, widening = ((mu - 0.5).abs() - sigma).clamp(min=0), (0.05 - sigma).clamp(min=0)
        ports.append((centring**2 + widening**2).mean().item())
    return sum(ports) / 5


@pytest.mark.parametrize("quantise", [True, False])
@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_injection_loss_is_the_papers(lab: Any, kind: Kind, index: int, quantise: bool) -> None:
    rnd, method = Round(index, 2), lab.method("as-fedbridge", quantise=quantise)
    client = lab.client(method, kind, task=lab.one_batch())
    ((x, y),) = client.batches(client.generator(rnd, "inject"))
    with torch.no_grad():
        client.backbone.projector.bias.fill_(0.7)  # so that an SNN's neurons fire from the second step
        bridge_of(client).body.bottleneck.bias.fill_(0.3)
        logits, rates = bridge_of(client).train().read(x)
        teacher = client.backbone.eval()(x)
    metrics = method.inject(client, rnd)
    expected = {
        "inject.kd": (0.16, 0.05)[index] * distil(logits, teacher.logits_TBC.mean(dim=0)),
        "inject.ce": (1.10, 0.55)[index] * F.cross_entropy(logits, y).item(),
        "inject.prox": 0.0,
    }
    if kind == "snn":
        read = (rates[-1] * 2).round() / 2 if quantise else rates[-1]
        assert torch.equal(read, rates[-1]) != quantise
        assert 0.5 in teacher.feature
        expected["inject.rate"] = 0.005 * (read - teacher.feature_TBD.mean(dim=0)).square().mean().item()
        expected["inject.pspr"] = 0.10 * pspr(rates)
    assert metrics == pytest.approx(expected, rel=1e-4)


def test_proximal_term_anchors_the_received_body(lab: Any) -> None:
    """alpha ||w - w_r||^2 over the body only; nonzero from the second epoch."""
    one, two = (lab.method("as-fedbridge", injection_epochs=epochs, alpha_prox=0.7) for epochs in (1, 2))
    client = lab.client(one, task=lab.one_batch())
    start = [p.detach().clone() for p in bridge_of(client).body.parameters()]
    one.inject(client, FIRST)
    moved = sum((p - s).square().sum().item() for p, s in zip(bridge_of(client).body.parameters(), start, strict=True))
    assert moved > 1e-8
    metrics = two.inject(lab.client(two, task=lab.one_batch()), FIRST)
    assert metrics["inject.prox"] == pytest.approx(0.7 * moved, rel=1e-3)


def test_bridge_has_its_own_rate_and_decay(lab: Any) -> None:
    """One step, independent of the backbone's settings: w - lr (g + decay w) for matrices."""
    method = lab.method("as-fedbridge", bridge_lr=0.2, bridge_weight_decay=0.5, alpha_teach=(0.0, 0.0), alpha_prox=0.0)
    task = lab.one_batch(optimiser=Optimiser(lr_ann=9.0, weight_decay_ann=9.0))
    client = lab.client(method, task=task)
    rnd = Round(1, 2)  # half-way of the cosine
    bridge = bridge_of(client).train()
    ((x, y),) = client.batches(client.generator(rnd, "inject"))
    before = {name: p.detach().clone() for name, p in bridge.named_parameters()}
    names = ("head.weight", "head.bias", "body.stem.weight", "body.norm.weight")
    wanted = [bridge.get_parameter(name) for name in names]
    grads = torch.autograd.grad(0.55 * F.cross_entropy(bridge(x), y), wanted)
    method.inject(client, rnd)
    for name, now, grad in zip(names, wanted, grads, strict=True):
        decay = 0.5 if now.dim() > 1 else 0.0
        torch.testing.assert_close(
            now.detach(), before[name] - 0.1 * (grad + decay * before[name]), rtol=1e-3, atol=1e-5
        )


# momentum and server


@pytest.mark.parametrize("momentum", ["keep", "reset"])
def test_momentum_of_the_bridge_over_a_download(lab: Any, momentum: str) -> None:
    """The backbone's momentum is kept in both cases."""
    method = lab.method("as-fedbridge", bridge_momentum=momentum)
    client = lab.client(method, "snn")
    up = lab.turn(method, client)
    before = {module: payload.clone(buffers) for module, buffers in client.momentum.items()}
    assert before.keys() == {"backbone", "bridge"}
    method.client_receive(client, up.payload, Round(1, 2))
    assert client.momentum.keys() == ({"backbone", "bridge"} if momentum == "keep" else {"backbone"})
    for module, buffers in client.momentum.items():
        assert all(torch.equal(t, before[module][name]) for name, t in buffers.items())


def fleet() -> list[ClientInfo]:
    kinds: list[Kind] = ["ann", "snn", "ann", "snn"]
    sizes = (1, 2, 3, 2)
    return [ClientInfo(i, kind, "resnet18", train_size=sizes[i]) for i, kind in enumerate(kinds)]


@pytest.mark.parametrize(
    ("direction", "expected"),
    [
        ("both", (1 * 8 + 2 * 16 + 3 * 0 + 2 * -4) / 8),
        ("ann-to-snn", (1 * 8 + 3 * 0) / 4),  # ANN clients upload
        ("snn-to-ann", (2 * 16 + 2 * -4) / 4),
    ],
)
def test_uploads_are_averaged_by_shard_size(direction: str, expected: float) -> None:
    method, clients = ASFedBridge(direction=direction), fleet()
    values = dict(enumerate((8.0, 16.0, 0.0, -4.0)))
    ups = {c.id: Upload({"w": torch.tensor([values[c.id]])} if method.injects(c) else {}) for c in clients}
    state = {"w": torch.tensor([99.0])}
    assert method.server_round(state, clients, ups, FIRST)["w"].tolist() == [expected]
    assert state["w"].tolist() == [99.0]
    assert all(up.payload["w"].item() == values[i] for i, up in ups.items() if up.payload)


def test_round_without_uploads_keeps_the_body() -> None:
    method, state = ASFedBridge(direction="ann-to-snn"), {"w": torch.tensor([3.0])}
    snn = [c for c in fleet() if c.kind == "snn"]
    assert method.server_round(state, snn, {c.id: Upload() for c in snn}, FIRST)["w"].tolist() == [3.0]


def test_server_and_clients_start_from_one_bridge(lab: Any) -> None:
    method = lab.method("as-fedbridge", personal_head=False)
    start = method.server_init(lab.task, [])
    for kind in KINDS:
        bridge = bridge_of(lab.client(method, kind, id=3))
        assert all(torch.equal(start[name], p) for name, p in bridge.named_parameters())


def test_defaults_are_the_papers_table() -> None:
    method = ASFedBridge()
    assert (method.temperature, method.alpha_rate, method.alpha_pspr, method.alpha_prox) == (2.0, 0.005, 0.10, 1e-4)
    assert (method.lambda_nld, method.lambda_tet) == (0.08, 1e-4)
    assert (method.pspr_threshold, method.pspr_spread) == (0.5, 1.0)
    assert (method.pspr_deviation, method.pspr_variance_weight) == (0.05, 1.0)
    assert (method.bridge_lr, method.injection_epochs, method.bridge_width) == (0.004, 1, 1.0)


def test_a_twin_start_with_one_direction_is_refused(lab: Any) -> None:
    method = lab.method("as-fedbridge", direction="ann-to-snn")
    with pytest.raises(BadInput, match=r"^twin_rounds=1 with method\.direction=ann-to-snn: .*=both$"):
        method.check(dataclasses.replace(lab.task, twin_rounds=1), [lab.info()])


# gated distillation


def test_gates_by_hand() -> None:
    """Label 0: the teacher is right and more confident; right and less confident; wrong but more confident."""
    student = torch.tensor([[1.0, 0.0, 0.0], [5.0, 0.0, 0.0], [0.0, 9.0, 0.0]])
    teacher = torch.tensor([[3.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.5, 0.0]])
    y = torch.zeros(3, dtype=torch.long)
    assert choose("none", student, teacher, y) is None
    assert choose("right", student, teacher, y).tolist() == [True, True, False]  # type: ignore[union-attr]
    assert choose("confident", student, teacher, y).tolist() == [True, False, True]  # type: ignore[union-attr]


def test_gate_removes_examples_from_the_loss() -> None:
    student = torch.randn(4, 3, requires_grad=True)
    teacher = torch.randn(4, 3)
    chosen = torch.tensor([True, False, True, False])
    gated = losses.distillation(student, teacher, 2.0, chosen)
    torch.testing.assert_close(2 * gated, losses.distillation(student[chosen], teacher[chosen], 2.0))
    gated.backward()
    assert student.grad is not None
    assert student.grad[~chosen].abs().max() == 0
    torch.testing.assert_close(
        losses.distillation(student, teacher, 2.0, torch.ones(4)), losses.distillation(student, teacher, 2.0)
    )


def test_closed_gate_disables_distillation(lab: Any) -> None:
    """With a teacher that is never right, the result equals distillation weight zero."""
    states = []
    for changes in ({"gate": "right", "alpha_kd_ann": (2.0, 2.0)}, {"alpha_kd_ann": (0.0, 0.0)}):
        method = lab.method("as-fedbridge", **changes)
        client = lab.client(method)
        with torch.no_grad():
            client.modules["bridge"].head.weight.zero_()
            client.modules["bridge"].head.bias.copy_(torch.tensor([0.0, 0.0, 0.0, 9.0]))
        client.shard.y_train.clamp_(max=2)  # never class 3
        lab.turn(method, client)
        states.append({k: t for k, t in client.state_dict().items() if k.startswith("module/backbone")})
    assert all(torch.equal(states[0][k], states[1][k]) for k in states[0])


# fused prediction


def test_fused_prediction_averages_backbone_and_bridge(lab: Any) -> None:
    method = lab.method("as-fedbridge")
    client = lab.client(method)
    metrics = lab.turn(method, client).metrics
    x, y = next(client.shard.test_batches(64))
    with torch.inference_mode():
        mean = client.backbone(x).logits.softmax(1) + client.modules["bridge"](x).softmax(1)
    right = 100 * (mean.argmax(dim=1) == y).float().mean().item()
    assert metrics["trained.fused_accuracy"] == pytest.approx(right)
    assert metrics["trained.fused_weight"] == 0.5


def test_held_out_images_are_not_trained_on(lab: Any) -> None:
    method = lab.method("as-fedbridge", fused_holdout=0.3)
    client, again = lab.client(method), lab.client(method)
    assert (client.shard.train_size, client.held_out.test_size) == (7, 3)
    assert torch.equal(client.held_out.x_test, again.held_out.x_test)
    rows = {bytes(image.numpy()) for image in [*client.shard.x_train, *client.held_out.x_test]}
    assert len(rows) == 10
    metrics = lab.turn(method, client).metrics
    assert 0 <= metrics["trained.fused_weight"] <= 1


def test_holdout_of_all_images_is_refused(lab: Any) -> None:
    with pytest.raises(BadInput, match=r"^method.fused_holdout=1.0 leaves nothing to train on; use less than 1$"):
        lab.method("as-fedbridge", fused_holdout=1.0).check(lab.task, [lab.info()])
