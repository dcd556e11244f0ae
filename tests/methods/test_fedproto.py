"""FedProto: class means are uploaded, averaged over clients, sent back and used as targets for features."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asfedbridge.core import payload
from asfedbridge.core.client import Client
from asfedbridge.core.task import Kind, Optimiser, Output, Round, Task, Upload
from asfedbridge.data.loader import Shard
from asfedbridge.engines.turn import evaluate_at, take_turn
from asfedbridge.methods.fedproto import UNKNOWN_LOGIT, FedProto, Prototypes, mean_features, prototypes_of

KINDS: list[Kind] = ["ann", "snn"]
FIRST, SECOND = Round(0, 2), Round(1, 2)

Bytes = Callable[[nn.Module], dict[str, bytes]]


def shard_of(labels: list[int], augment: str = "none") -> Shard:
    """Random training and test images with these labels."""
    x = torch.randint(0, 256, (len(labels), 1, 8, 8), generator=torch.Generator().manual_seed(5), dtype=torch.uint8)
    y = torch.tensor(labels)
    return Shard(x, y, x, y, [0.5], [0.25], augment)


def client_with(lab: Any, method: FedProto, labels: list[int], kind: Kind = "ann", **changes: Any) -> Client:
    client = lab.client(method, kind, **changes)
    client.shard = shard_of(labels)
    with torch.no_grad():
        client.backbone.projector.bias.fill_(0.7)  # so that an SNN's neurons fire from the second step
    return client


def proto(value: float, task: Task | None = None) -> Tensor:
    return torch.full((task.feature_dim if task else 8,), value)


def lists(state: dict[str, Tensor]) -> dict[str, Any]:
    return {name: t.tolist() for name, t in state.items()}


# the server's rule


def uploads() -> dict[int, Upload]:
    """Class 0 from clients 0 and 2, class 1 from client 1, class 10 from all, class 3 from none."""
    return {
        0: Upload({"class/0": torch.tensor([8.0, 0.0]), "class/10": torch.tensor([1.0, 1.0])}),
        1: Upload({"class/1": torch.tensor([-5.0, 5.0]), "class/10": torch.tensor([2.0, 4.0])}),
        2: Upload({"class/0": torch.tensor([0.0, 4.0]), "class/10": torch.tensor([6.0, 1.0])}),
    }


def with_counts() -> dict[int, Upload]:
    counts = {0: {0: 1, 10: 2}, 1: {1: 9, 10: 4}, 2: {0: 3, 10: 2}}
    return {
        i: Upload(up.payload | {f"count/{label}": torch.tensor(float(n)) for label, n in counts[i].items()})
        for i, up in uploads().items()
    }


def fleet(lab: Any, *ids: int) -> list[Any]:
    return [lab.info(KINDS[i % 2], id=i, train_size=(100, 1, 1)[i]) for i in ids or (0, 1, 2)]


def test_prototype_is_the_mean_over_clients_with_the_class(lab: Any) -> None:
    new = FedProto().server_round({}, fleet(lab), uploads(), FIRST)
    assert lists(new) == {
        "class/0": [(8 + 0) / 2, (0 + 4) / 2],
        "class/1": [-5.0, 5.0],
        "class/10": [pytest.approx((1 + 2 + 6) / 3), pytest.approx((1 + 4 + 1) / 3)],
    }


def test_size_weights_are_class_counts_normalised_to_one(lab: Any) -> None:
    new = FedProto(proto_weight="size").server_round({}, fleet(lab), with_counts(), FIRST)
    assert lists(new) == {
        "class/0": [(1 * 8 + 3 * 0) / 4, (1 * 0 + 3 * 4) / 4],
        "class/1": [-5.0, 5.0],
        "class/10": [(2 * 1 + 4 * 2 + 2 * 6) / 8, (2 * 1 + 4 * 4 + 2 * 1) / 8],
    }


def test_a_claimed_count_is_capped(lab: Any) -> None:
    """Counts 2, 4 and 10^30 of class 10: the last has weight 3 x 4."""
    ups = with_counts()
    ups[2].payload["count/10"] = torch.tensor(1e30)
    new = FedProto(proto_weight="capped", weight_cap=3.0).server_round({}, fleet(lab), ups, FIRST)
    expected = [(2 * 1 + 4 * 2 + 12 * 6) / 18, (2 * 1 + 4 * 4 + 12 * 1) / 18]
    assert lists(new)["class/10"] == pytest.approx(expected)


@pytest.mark.parametrize(("rule", "expected"), [("median", [2.0, 1.0]), ("trimmed", [2.0, 1.0]), ("krum", [1.5, 2.5])])
def test_robust_rules_are_applied_per_class(lab: Any, rule: Any, expected: list[float]) -> None:
    """Class 10 has three uploads; the other classes have too few for trimming."""
    new = FedProto(aggregation=rule).server_round({}, fleet(lab), uploads(), FIRST)
    assert lists(new) == {"class/0": [4.0, 2.0], "class/1": [-5.0, 5.0], "class/10": expected}


@pytest.mark.parametrize("rule", ["median", "trimmed", "krum", "geometric"])
def test_one_byzantine_client_moves_only_the_mean(lab: Any, rule: Any) -> None:
    ups = {i: Upload({"class/0": torch.tensor([1.0 + 0.1 * i, 2.0])}) for i in range(4)}
    ups[1] = Upload({"class/0": torch.tensor([1e30, -1e30])})
    infos = [lab.info(id=i) for i in range(4)]
    assert FedProto().server_round({}, infos, ups, FIRST)["class/0"][0] > 1e29
    new = FedProto(aggregation=rule).server_round({}, infos, ups, FIRST)["class/0"]
    assert (new - torch.tensor([1.2, 2.0])).norm() < 0.5


@pytest.mark.parametrize(("weight", "ups"), [("uniform", uploads()), ("size", with_counts())])
def test_class_without_uploads_keeps_its_prototype(lab: Any, weight: Any, ups: dict[int, Upload]) -> None:
    """Only this round's uploads count; a class without any keeps its last prototype."""
    state = {"class/0": torch.tensor([70.0, 70.0]), "class/3": torch.tensor([3.0, 3.0])}
    new = FedProto(proto_weight=weight).server_round(state, fleet(lab, 1), ups, SECOND)
    assert lists(new) == {
        "class/0": [70.0, 70.0], "class/1": [-5.0, 5.0], "class/3": [3.0, 3.0], "class/10": [2.0, 4.0],
    }  # fmt: skip
    assert lists(state) == {"class/0": [70.0, 70.0], "class/3": [3.0, 3.0]}
    storage = {t.untyped_storage().data_ptr() for t in [*state.values(), *ups[1].payload.values()]}
    assert not storage & {t.untyped_storage().data_ptr() for t in new.values()}


def test_all_clients_receive_all_known_prototypes(lab: Any) -> None:
    method = FedProto()
    assert method.server_init(lab.task, fleet(lab)) == {}
    assert method.server_send({}, lab.info(), FIRST) == {}
    new = method.server_round({}, fleet(lab), uploads(), FIRST)
    assert lists(method.server_send(new, lab.info("snn"), SECOND)) == lists(new)


# payloads


@pytest.mark.parametrize("kind", KINDS)
def test_full_width_with_100_classes_is_a_tenth_of_a_megabyte(lab: Any, kind: Kind) -> None:
    task, info = Task(100, 3, 32), lab.info(kind, width=1.0)
    for shapes in (FedProto().uploads(task, info), FedProto().downloads(task, info)):
        assert shapes == {f"class/{label}": (256,) for label in range(100)}
        assert round(4 * sum(torch.Size(shape).numel() for shape in shapes.values()) / 2**20, 4) == 0.0977
    sized = FedProto(proto_weight="size")
    assert sized.uploads(task, info).keys() - sized.downloads(task, info).keys() == {f"count/{c}" for c in range(100)}
    assert sized.downloads(task, info) == FedProto().downloads(task, info)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("weight", ["uniform", "size"])
def test_only_own_classes_are_uploaded_and_counts_only_if_weighted(lab: Any, kind: Kind, weight: Any) -> None:
    method = FedProto(proto_weight=weight)
    client = client_with(lab, method, [0, 2, 2, 2, 0], kind)
    up = take_turn(method, client, {}, FIRST).payload
    counts = {"count/0": 2.0, "count/2": 3.0} if weight == "size" else {}
    assert up.keys() == {"class/0", "class/2", *counts}
    assert {name: up[name].item() for name in counts} == counts
    assert payload.size_in_bytes(up) == 4 * (2 * 8 + len(counts))
    bytes_and_back = safetensors.torch.load(safetensors.torch.save(up))
    assert lists(bytes_and_back) == lists(up)


@pytest.mark.parametrize("kind", KINDS)
def test_a_prototype_is_the_mean_feature_after_training(lab: Any, kind: Kind) -> None:
    """In eval mode without augmentation, averaged over time for an SNN."""
    method, labels = FedProto(), [0, 2, 2, 2, 0, 3]
    client = client_with(lab, method, labels, kind)
    client.shard.augment, client.shard.pad = "crop+flip", 3  # type: ignore[attr-defined]
    up = method.client_round(client, FIRST).payload
    with torch.no_grad():
        ((x, y),) = client.shard.train_batches_plain(64)
        feature_TBD = client.backbone.eval()(client.place(x)).feature_TBD
    assert len(feature_TBD) == client.info.T
    for label in (0, 2, 3):
        rows = [step[y == label].double().mean(dim=0) for step in feature_TBD]
        torch.testing.assert_close(up[f"class/{label}"].double(), sum(rows) / len(rows), rtol=1e-5, atol=1e-6)
        assert up[f"class/{label}"].any()
    if kind == "snn":
        assert set(feature_TBD.unique().tolist()) <= {0.0, 1.0}


@pytest.mark.parametrize("kind", KINDS)
def test_the_prototype_pass_changes_nothing(lab: Any, to_bytes: Bytes, kind: Kind) -> None:
    client = client_with(lab, FedProto(), [0, 1, 1, 3, 3, 3], kind)
    client.backbone.train()
    before = to_bytes(client.backbone)
    found = mean_features(client)
    assert {label: count for label, (_, count) in found.items()} == {0: 1, 1: 2, 3: 3}
    assert all(mean_D.dtype == torch.float32 and not mean_D.requires_grad for mean_D, _ in found.values())
    assert to_bytes(client.backbone) == before
    assert all(p.grad is None for p in client.backbone.parameters())


def test_mean_of_many_equal_features_is_exact(lab: Any) -> None:
    """In float32, the sum of 40,000 times 0.1 is wrong in the fifth digit."""
    client = lab.client(FedProto(), task=replace(lab.task, feature_dim=1, batch_size=1000))
    images, labels = torch.zeros(40_000, 1, 1, 1, dtype=torch.uint8), torch.ones(40_000, dtype=torch.int64)
    client.shard = Shard(images, labels, images[:1], labels[:1], [0.5], [0.25], "none")
    client.modules["backbone"] = Constant(0.1)
    ((mean_D, count),) = mean_features(client).values()
    assert count == 40_000
    assert mean_D.item() == torch.tensor(0.1).item()


class Constant(nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def forward(self, x: Tensor) -> Output:
        return Output(torch.zeros(1, len(x), 4), torch.full((1, len(x), 1), self.value))


# the client's loss


def test_prototype_loss_by_hand() -> None:
    """Classes 0 and 2 have prototypes; the example of class 1 contributes zero to the mean."""
    prototypes = Prototypes(3, 2)
    prototypes.learn(0, torch.tensor([1.0, 1.0]))
    prototypes.learn(2, torch.tensor([0.0, -2.0]))
    feature = torch.tensor([[1.0, 3.0], [50.0, -70.0], [3.0, -2.0]], requires_grad=True)
    loss = prototypes.pull(feature, torch.tensor([0, 1, 2]))
    assert loss.item() == pytest.approx((4 + 0 + 9) / (3 * 2))
    loss.backward()
    assert feature.grad is not None
    torch.testing.assert_close(feature.grad, torch.tensor([[0.0, 4.0], [0.0, 0.0], [6.0, 0.0]]) / 6)
    assert not prototypes.centre_CD.requires_grad


def test_features_equal_to_prototypes_have_no_gradient() -> None:
    prototypes = Prototypes(2, 2)
    for label in range(2):
        prototypes.learn(label, torch.tensor([1.0 + label, 0.1]))
    assert prototypes.pull(torch.tensor([[2.0, 0.1], [1.0, 0.1]]), torch.tensor([1, 0])).item() == 0.0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("supervision", ["ce", "tet"])
def test_the_local_objective(lab: Any, kind: Kind, supervision: Any) -> None:
    """The task's supervision + lambda / (B d) sum (feature - prototype of the label)^2 over labels with a prototype."""
    method, labels = FedProto(lambda_proto=0.6), [0, 2, 2, 1, 0]
    task = lab.one_batch(snn_loss=supervision)
    client, twin = (client_with(lab, method, labels, kind, task=task) for _ in range(2))
    down = {"class/0": proto(0.3), "class/2": torch.arange(8.0), "class/3": proto(9.0)}
    method.client_receive(client, down, FIRST)
    ((x, y),) = client.batches(client.generator(FIRST, "local"))
    with torch.no_grad():
        out = twin.backbone.train()(x)
    feature_BD = out.feature_TBD.double().mean(dim=0)
    total = sum((feature_BD[b] - down[f"class/{y[b]}"]).square().sum().item() for b in range(5) if y[b] != 1)
    if kind == "snn" and supervision == "tet":
        steps = [F.cross_entropy(z, y).item() for z in out.logits_TBC]
        ce = (1 - 1e-4) * sum(steps) / 2 + 1e-4 * (out.logits_TBC - 1).square().mean().item()
    else:
        ce = F.cross_entropy(out.logits_TBC.mean(dim=0), y).item()
    metrics = method.client_round(client, FIRST).metrics
    assert metrics == pytest.approx({"local.ce": ce, "local.proto": 0.6 * total / (5 * 8)}, rel=1e-4)


def test_without_prototypes_training_is_standalone(lab: Any) -> None:
    """Round 0 equals standalone training bit for bit."""
    ours, alone = lab.client(FedProto()), lab.client(lab.method("standalone"))
    assert FedProto().client_round(ours, FIRST).metrics.keys() == {"local.ce"}
    lab.method("standalone").client_round(alone, FIRST)
    for p, q in zip(ours.backbone.parameters(), alone.backbone.parameters(), strict=True):
        assert torch.equal(p, q)


def moved(lab: Any, strength: float, kind: Kind) -> list[Tensor]:
    """The change of the backbone in one SGD step."""
    plain = Optimiser(lr_ann=0.1, lr_snn=0.1, weight_decay_ann=0.0, weight_decay_snn=0.0, momentum=0.0)
    method = FedProto(lambda_proto=strength)
    client = client_with(lab, method, [0, 1, 1, 2], kind, task=lab.one_batch(optimiser=plain))
    start = [p.detach().clone() for p in client.backbone.parameters()]
    method.client_receive(client, {f"class/{label}": proto(3.0) for label in range(3)}, FIRST)
    method.client_round(client, FIRST)
    return [(p - s).detach() for p, s in zip(client.backbone.parameters(), start, strict=True)]


@pytest.mark.parametrize("kind", KINDS)
def test_prototype_loss_is_proportional_to_lambda(lab: Any, kind: Kind) -> None:
    none, once, thrice = (moved(lab, strength, kind) for strength in (0.0, 1.0, 3.0))
    pulls = [(b - a, c - a) for a, b, c in zip(none, once, thrice, strict=True)]
    assert sum(pull.abs().sum().item() for pull, _ in pulls) > 0.1
    for pull, triple in pulls:
        torch.testing.assert_close(triple, 3 * pull, rtol=1e-3, atol=1e-5)


def test_download_does_not_change_backbone_and_momentum(lab: Any, to_bytes: Bytes) -> None:
    method, client = FedProto(), lab.client(FedProto())
    method.client_round(client, FIRST)
    before, buffers = to_bytes(client.backbone), payload.clone(client.momentum["backbone"])
    method.client_receive(client, {"class/1": proto(1.0)}, SECOND)
    assert to_bytes(client.backbone) == before
    assert lists(client.momentum["backbone"]) == lists(buffers)


def test_prototypes_are_part_of_the_client_state(lab: Any) -> None:
    """Also after serialisation; a later download updates only its classes."""
    method = FedProto()
    client, other = (lab.client(method, task=replace(lab.task, classes=12)) for _ in range(2))
    method.client_receive(client, {"class/1": proto(1.0), "class/10": proto(3.0)}, FIRST)
    method.client_receive(client, {"class/10": proto(4.0)}, SECOND)
    other.load_state_dict(safetensors.torch.load(safetensors.torch.save(client.state_dict())))
    known = prototypes_of(other)
    assert known.known_C.nonzero().flatten().tolist() == [1, 10]
    assert known.centre_CD[:, 0].tolist() == [0.0, 1.0, *[0.0] * 8, 4.0, 0.0]


# the nearest-prototype predictor


def test_logits_of_the_nearest_prototype_by_hand() -> None:
    prototypes = Prototypes(4, 2)
    for label, centre in ((0, [3.0, 4.0]), (1, [0.0, 1.0]), (3, [-6.0, 8.0])):
        prototypes.learn(label, torch.tensor(centre))
    assert prototypes(torch.zeros(1, 2)).tolist() == [[-5.0, -1.0, UNKNOWN_LOGIT, -10.0]]
    far = prototypes(torch.full((1, 2), 1e6))
    assert far.argmax(dim=1).item() != 2
    assert torch.isfinite(far).all()


@pytest.mark.parametrize("kind", KINDS)
def test_nearest_is_evaluated_once_a_prototype_is_known(lab: Any, kind: Kind) -> None:
    method = FedProto()
    client = client_with(lab, method, [0, 1, 2, 3], kind)
    assert not any("nearest" in name for name in take_turn(method, client, {}, FIRST).metrics)
    metrics = take_turn(method, client, {"class/1": proto(1.0)}, SECOND).metrics
    for point in ("received", "trained"):
        assert metrics[f"{point}.nearest_accuracy"] == 25.0  # it can only predict class 1
        assert metrics[f"{point}.nearest_loss"] == pytest.approx(-UNKNOWN_LOGIT * 3 / 4, rel=1e-3)


def test_nearest_is_evaluated_again_when_prototypes_change(lab: Any) -> None:
    """A cache that depends only on the backbone would be stale."""
    method = FedProto()
    client = client_with(lab, method, [0, 1, 1, 1])
    found = []
    for near, far in ((0, 1), (1, 0)):
        down = {f"class/{near}": proto(0.0), f"class/{far}": proto(1e4)}
        method.client_receive(client, down, SECOND)
        found.append(evaluate_at("received", method, client))
    assert [metrics["received.nearest_accuracy"] for metrics in found] == [25.0, 75.0]
    assert found[0]["received.accuracy"] == found[1]["received.accuracy"]


@pytest.mark.parametrize("kind", KINDS)
def test_nearest_uses_the_feature_averaged_over_time(lab: Any, kind: Kind) -> None:
    method = FedProto()
    client = client_with(lab, method, [0, 1, 2, 3], kind)
    method.client_receive(client, {"class/2": proto(0.25)}, FIRST)
    ((x, _),) = client.shard.test_batches(64)
    with torch.no_grad():
        feature_BD = client.backbone.eval()(client.place(x)).feature_TBD.mean(dim=0)
        logits = method.client_models(client)["nearest"](client.place(x))
    torch.testing.assert_close(logits[:, 2], -(feature_BD - 0.25).square().sum(dim=1).sqrt())


def test_the_defaults_are_the_documented_ones() -> None:
    assert FedProto() == FedProto(proto_weight="uniform", lambda_proto=1.0)
    assert FedProto.reports == "trained"
