"""FedTGP: clients as in FedProto; a server that trains prototypes with a margin between classes."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from asfedbridge.core import payload
from asfedbridge.core.errors import BadInput
from asfedbridge.core.task import Kind, Round, Task, Upload
from asfedbridge.methods import fedtgp
from asfedbridge.methods.fedproto import FedProto, prototypes_of
from asfedbridge.methods.fedtgp import FedTGP, server_loss

KINDS: list[Kind] = ["ann", "snn"]
FIRST, SECOND = Round(0, 2), Round(1, 2)
PARTS = {"embedding", "inner.weight", "inner.bias", "outer.weight", "outer.bias"}

Bytes = Callable[[nn.Module], dict[str, bytes]]


def lists(state: dict[str, Tensor]) -> dict[str, Any]:
    return {name: t.tolist() for name, t in state.items()}


def identity_state() -> dict[str, Tensor]:
    """One dimension, two classes, identity layers: the prototypes equal the embedding, 1 and 4."""
    one, nought = torch.ones(1, 1), torch.zeros(1)
    parts = {"embedding": torch.tensor([[1.0], [4.0]]), "inner.weight": one, "inner.bias": nought}
    parts |= {"outer.weight": one.clone(), "outer.bias": nought.clone()}
    return {"seed": torch.tensor(3)} | {f"generator/{name}": t for name, t in parts.items()}


def up(**classes: float) -> Upload:
    """c0=2.0 means a one-dimensional prototype of class 0."""
    return Upload({f"class/{name[1:]}": torch.tensor([value]) for name, value in classes.items()})


# the server's loss and margin


def test_the_loss_by_hand() -> None:
    """Distances 5, 0 and 10 from the origin; own class 0 with margin 2: -log(e^-7 / (e^-7 + e^0 + e^-10))."""
    generated = torch.tensor([[3.0, 4.0], [0.0, 0.0], [-6.0, 8.0]])
    loss = server_loss(torch.zeros(1, 2), torch.tensor([0]), generated, 2.0)
    assert loss.item() == pytest.approx(7 + math.log(math.exp(-7) + 1 + math.exp(-10)))


def test_the_loss_is_a_mean_over_the_batch() -> None:
    generated = torch.tensor([[3.0], [0.0]])
    loss = server_loss(torch.tensor([[0.0], [1.0]]), torch.tensor([0, 1]), generated, 0.5)
    first, second = math.log(1 + math.exp(3.5)), math.log(1 + math.exp(1.5 - 2))
    assert loss.item() == pytest.approx((first + second) / 2)


def test_margin_applies_only_to_the_own_class() -> None:
    """The loss at equal distances is log(1 + (C - 1) e^margin)."""
    for margin in (0.0, 1.0, 3.0):
        loss = server_loss(torch.zeros(1, 1), torch.tensor([1]), torch.ones(3, 1), margin)
        assert loss.item() == pytest.approx(math.log(1 + 2 * math.exp(margin)))


def test_distance_zero_has_a_finite_gradient() -> None:
    generated = torch.tensor([[0.5, 0.5], [3.5, 4.5]], requires_grad=True)
    server_loss(torch.tensor([[0.5, 0.5]]), torch.tensor([0]), generated, 1.0).backward()
    assert generated.grad is not None
    assert generated.grad[0].tolist() == [0.0, 0.0]
    share = 1 / (1 + math.exp(5 - 1))  # of the other class, at distance 5
    torch.testing.assert_close(generated.grad[1], -share * torch.tensor([0.6, 0.8]))


# centres (1,1), (4,5), (4,17), the first the mean of two uploads; class 3 has none
PROTOTYPES = torch.tensor([[0.0, 1.0], [4.0, 5.0], [2.0, 1.0], [4.0, 17.0]])
LABELS = torch.tensor([0, 1, 0, 2])


def test_the_margin_of_the_code_by_hand() -> None:
    """Nearest gaps are 5, 5 and 12; the margin is the largest."""
    assert FedTGP().margin_of(PROTOTYPES, LABELS) == 12.0


def test_the_margin_of_the_paper_by_hand() -> None:
    assert FedTGP(margin="farthest").margin_of(PROTOTYPES, LABELS) == pytest.approx(math.sqrt(9 + 256))


@pytest.mark.parametrize("margin", ["nearest", "farthest"])
def test_the_margin_is_bounded_by_tau(margin: Any) -> None:
    assert FedTGP(margin, tau=7.5).margin_of(PROTOTYPES, LABELS) == 7.5
    assert FedTGP(margin).margin_of(100 * PROTOTYPES, LABELS) == 100.0


@pytest.mark.parametrize("margin", ["nearest", "farthest"])
def test_margin_of_a_single_class_is_tau(margin: Any) -> None:
    assert FedTGP(margin, tau=7.5).margin_of(PROTOTYPES, torch.zeros(4, dtype=torch.int64)) == 7.5


@pytest.mark.parametrize("margin", ["nearest", "farthest"])
def test_equal_centres_have_gap_zero(margin: Any) -> None:
    assert FedTGP(margin).margin_of(torch.ones(2, 3), torch.tensor([0, 1])) == 0.0


# the server's round


def test_one_round_by_hand(lab: Any) -> None:
    """One upload, 2 for class 0; distances 1 and 2, margin tau = 1: both classes have half of the softmax.

    The gradient is -1/2 for either prototype, hence -5/2 for the weights (inputs 1 and 4), -1 for the biases and -1/2
    for the embeddings; at rate 0.1 the weights become 1.25, the biases 0.1, the embeddings 1.05 and 4.05.
    """
    method, state = FedTGP(tau=1.0, server_epochs=1, server_lr=0.1), identity_state()
    before = payload.clone(state)
    new = method.server_round(state, [lab.info()], {0: up(c0=2.0)}, FIRST)
    expected = {
        "seed": 3,
        "generator/embedding": [[1.05], [4.05]],
        "generator/inner.weight": [[1.25]],
        "generator/inner.bias": [0.1],
        "generator/outer.weight": [[1.25]],
        "generator/outer.bias": [0.1],
        "class/0": [1.25 * (1.25 * 1.05 + 0.1) + 0.1],
        "class/1": [1.25 * (1.25 * 4.05 + 0.1) + 0.1],
    }
    assert new.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(new[name], torch.tensor(value))
    assert lists(state) == lists(before)
    storage = {t.untyped_storage().data_ptr() for t in state.values()}
    assert not storage & {t.untyped_storage().data_ptr() for t in new.values()}


def test_the_hidden_layer_is_rectified(lab: Any) -> None:
    """A class with a negative hidden unit has the outer bias as its prototype."""
    state = identity_state() | {"generator/embedding": torch.tensor([[1.0], [-4.0]])}
    new = FedTGP(server_epochs=1, server_lr=1e-9).server_round(state, [lab.info()], {0: up(c0=2.0)}, FIRST)
    assert new["class/1"].item() == pytest.approx(0.0, abs=1e-6)


def test_generator_training_continues_without_momentum(lab: Any) -> None:
    """Two rounds of one epoch equal one round of two."""
    one, two = (FedTGP(server_epochs=epochs, server_lr=0.1) for epochs in (1, 2))
    clients, ups = [lab.info()], {0: up(c0=2.0, c1=7.0)}
    twice = one.server_round(one.server_round(identity_state(), clients, ups, FIRST), clients, ups, SECOND)
    at_once = two.server_round(identity_state(), clients, ups, FIRST)
    for name, tensor in at_once.items():
        torch.testing.assert_close(twice[name], tensor)


def seen(monkeypatch: pytest.MonkeyPatch, lab: Any, method: FedTGP, rnd: Round = FIRST, seed: int = 3) -> list[Any]:
    """The batches of uploaded prototypes in a round with two clients, and each batch's margin."""
    batches: list[Any] = []

    def record(prototype_BD: Tensor, label_B: Tensor, generated_CD: Tensor, margin: float) -> Tensor:
        batches.append((list(zip(label_B.tolist(), prototype_BD.flatten().tolist(), strict=True)), margin))
        return server_loss(prototype_BD, label_B, generated_CD, margin)

    ups = {0: up(c1=3.0, c0=2.0), 1: up(c0=8.0), 2: up(c1=5.0, c0=4.0)}
    state = identity_state() | {"seed": torch.tensor(seed)}
    with monkeypatch.context() as patch:
        patch.setattr(fedtgp, "server_loss", record)
        method.server_round(state, [lab.info(id=i) for i in ups], ups, rnd)
    return batches


def test_every_epoch_sees_every_prototype_once(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = seen(monkeypatch, lab, FedTGP(server_epochs=7, server_batch=2))
    assert [len(batch) for batch, _ in batches] == [2, 2, 1] * 7
    epochs = [batches[i][0] + batches[i + 1][0] + batches[i + 2][0] for i in range(0, 21, 3)]
    assert all(sorted(epoch) == [(0, 2.0), (0, 4.0), (0, 8.0), (1, 3.0), (1, 5.0)] for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1
    assert {margin for _, margin in batches} == {FedTGP().margin_of(torch.tensor([[14 / 3], [4.0]]), torch.arange(2))}


def test_order_of_batches_depends_on_seed_and_round(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    method = FedTGP(server_epochs=7, server_batch=2)
    torch.manual_seed(0)
    first = seen(monkeypatch, lab, method)
    torch.manual_seed(1)
    assert seen(monkeypatch, lab, method) == first
    assert seen(monkeypatch, lab, method, SECOND) != first
    assert seen(monkeypatch, lab, method, seed=4) != first


def test_the_order_of_names_in_an_upload_changes_nothing(lab: Any) -> None:
    method, clients = FedTGP(server_epochs=3, server_batch=1), [lab.info()]
    there = method.server_round(identity_state(), clients, {0: up(c0=2.0, c1=3.0)}, FIRST)
    back = method.server_round(identity_state(), clients, {0: up(c1=3.0, c0=2.0)}, FIRST)
    assert lists(there) == lists(back)


def test_only_participants_count_and_empty_rounds_change_nothing(lab: Any) -> None:
    method, state = FedTGP(server_epochs=2), identity_state()
    ups = {0: up(c0=2.0), 1: up(c1=90.0)}
    alone = method.server_round(state, [lab.info()], {0: ups[0]}, FIRST)
    assert lists(method.server_round(state, [lab.info()], ups, FIRST)) == lists(alone)
    assert lists(method.server_round(state, [lab.info()], {0: Upload()}, FIRST)) == lists(identity_state())


def test_one_round_with_default_settings_separates_the_classes(lab: Any) -> None:
    """From random weights at full width; every upload is then nearest to its own class."""
    method, task = FedTGP(), Task(12, 3, 32)
    draws = torch.Generator().manual_seed(0)
    centre_CD = torch.rand(12, 256, generator=draws)
    near_CD = [centre_CD + 0.05 * torch.rand(12, 256, generator=draws) for _ in range(3)]
    ups = {i: Upload({f"class/{c}": row.clone() for c, row in enumerate(near_CD[i])}) for i in range(3)}
    infos = [lab.info(id=i) for i in ups]
    new = method.server_round(method.server_init(task, infos), infos, ups, FIRST)
    learned_CD = torch.stack([new[f"class/{c}"] for c in range(12)])
    for rows in near_CD:
        between = (rows[:, None] - learned_CD).square().sum(dim=2).sqrt()
        assert between.argmin(dim=1).tolist() == list(range(12))
        assert between.diagonal().max() < 1


# payloads


def test_the_generator_of_the_papers_table() -> None:
    shapes = FedTGP().generator_shapes(Task(100, 3, 32))
    scalars = sum(torch.Size(shape).numel() for shape in shapes.values())
    assert shapes.keys() == PARTS
    assert scalars == 157_184 == 100 * 256 + 2 * (256**2 + 256)
    assert round(4 * scalars / 2**20, 2) == 0.60


@pytest.mark.parametrize("kind", KINDS)
def test_only_prototypes_are_exchanged(lab: Any, kind: Kind) -> None:
    method, task, info = FedTGP(), Task(100, 3, 32), lab.info(kind, width=1.0)
    shapes = {f"class/{label}": (256,) for label in range(100)}
    assert method.uploads(task, info) == method.downloads(task, info) == shapes
    state = method.server_init(lab.task, [info])
    prototypes = {"class/2": torch.ones(8)}
    new = method.server_round(state, [info], {info.id: Upload(prototypes)}, FIRST)
    sent = method.server_send(new, info, SECOND)
    assert sent.keys() == {f"class/{label}" for label in range(4)}  # three classes have no examples
    generated = fedtgp.unpack(new)()
    assert all(torch.equal(sent[f"class/{label}"], generated[label]) for label in range(4))


def test_initial_generator_depends_only_on_the_seed() -> None:
    task, other = Task(100, 3, 32), Task(100, 3, 32, seed=43)
    before = torch.random.get_rng_state()
    state, again, elsewhere = (FedTGP().server_init(t, []) for t in (task, task, other))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert lists(state) == lists(again)
    assert state.keys() == {"seed", *(f"generator/{part}" for part in PARTS)}
    assert (state["seed"].item(), elsewhere["seed"].item()) == (42, 43)
    assert not torch.equal(state["generator/embedding"], elsewhere["generator/embedding"])
    embedding = state["generator/embedding"]
    assert embedding.mean().item() == pytest.approx(0, abs=0.05)
    assert embedding.std().item() == pytest.approx(1, abs=0.05)
    for part in ("inner.weight", "inner.bias", "outer.weight", "outer.bias"):
        assert 0.9 / 16 < state[f"generator/{part}"].abs().max().item() <= 1 / 16


def test_first_download_is_empty_by_default(lab: Any) -> None:
    for choice, terms in (("nothing", {"local.ce"}), ("random", {"local.ce", "local.proto"})):
        method = FedTGP(first_download=choice)
        client = lab.client(method)
        state = method.server_init(client.task, [client.info])
        down = method.server_send(state, client.info, FIRST)
        assert len(down) == (4 if choice == "random" else 0)
        generated = fedtgp.unpack(state)()
        assert all(torch.equal(tensor, generated[int(name[-1])]) for name, tensor in down.items())
        metrics = lab.turn(method, client).metrics
        assert {name for name in metrics if name.startswith("local.")} == terms


@pytest.mark.parametrize("kind", KINDS)
def test_client_side_equals_fedproto(lab: Any, to_bytes: Bytes, kind: Kind) -> None:
    """Equal downloads give bit-identical backbones and uploads."""
    down = {"class/0": torch.full((8,), 0.3), "class/3": torch.arange(8.0)}
    results = []
    for method in (FedProto(lambda_proto=2.0), FedTGP(lambda_proto=2.0)):
        client = lab.client(method, kind, task=lab.gentle())
        method.client_receive(client, down, FIRST)
        assert prototypes_of(client).known_C.tolist() == [True, False, False, True]
        start = client.state_dict()
        sent = method.client_round(client, FIRST)
        assert all(t.isfinite().all() for t in (*client.state_dict().values(), *sent.payload.values()))
        assert max(p.abs().max().item() for p in client.backbone.parameters()) < 10
        assert not torch.equal(client.backbone.get_parameter("stem.weight"), start["module/backbone/stem.weight"])
        results.append((to_bytes(client.backbone), lists(sent.payload), sent.metrics))
    assert results[0] == results[1]


# settings


@pytest.mark.parametrize("field", ["server_epochs", "server_batch", "server_lr"])
def test_invalid_server_settings_are_refused(lab: Any, field: str) -> None:
    FedTGP().check(lab.task, [lab.info()])
    with pytest.raises(BadInput, match=rf"method\.{field}=0 must be above 0"):
        FedTGP(**{field: 0}).check(lab.task, [lab.info()])


def test_the_defaults_are_the_documented_ones() -> None:
    documented = {"margin": "nearest", "first_download": "nothing", "lambda_proto": 1.0, "tau": 100.0}
    assert FedTGP() == FedTGP(**documented, server_epochs=100, server_batch=10, server_lr=0.01)
    assert FedTGP.reports == "trained"


# Byzantine clients


@pytest.mark.parametrize("rule", ["median", "trimmed", "krum", "geometric"])
def test_robust_rule_gives_one_prototype_per_class(lab: Any, rule: Any) -> None:
    """Class 0 has three uploads, one of them Byzantine, class 1 has one: the same as one client with 2 and 5."""
    infos = [lab.info(id=i) for i in range(3)]
    ups = {0: up(c0=1.0, c1=5.0), 1: up(c0=1e30), 2: up(c0=2.0)}
    method = FedTGP(aggregation=rule, server_epochs=3)
    new = method.server_round(identity_state(), infos, ups, FIRST)
    middle = {"krum": 1.5}.get(rule, 2.0)
    expected = FedTGP(server_epochs=3).server_round(identity_state(), infos[:1], {0: up(c0=middle, c1=5.0)}, FIRST)
    torch.testing.assert_close(new, expected, rtol=0, atol=1e-5)
    poisoned = FedTGP(server_epochs=3).server_round(identity_state(), infos, ups, FIRST)
    assert not torch.allclose(poisoned["class/0"], expected["class/0"], atol=1e-3)  # it is NaN


def test_invalid_trim_is_refused(lab: Any) -> None:
    with pytest.raises(BadInput, match=r"^method\.trim=0\.7 "):
        FedTGP(trim=0.7).check(lab.task, [lab.info()])
