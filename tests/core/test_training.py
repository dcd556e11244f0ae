import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asfedbridge.core import training
from asfedbridge.core.client import Client
from asfedbridge.core.errors import Diverged
from asfedbridge.core.seeds import generator
from asfedbridge.core.task import ClientInfo, Kind, Optimiser, Output, Round, ShortBatch, Task

LR, DECAY, MOMENTUM = 0.1, 0.3, 0.9
ROUND = Round(2, 10)


class Points:
    """Five examples of three numbers, two classes."""

    train_size = 5
    x = torch.randn(5, 3, 1, 1, generator=torch.Generator().manual_seed(0))
    y = torch.tensor([0, 1, 1, 0, 1])

    def batches(
        self, batch_size: int, generator: torch.Generator, short_batch: ShortBatch = "merge"
    ) -> Iterator[tuple[Tensor, Tensor]]:
        for part in torch.randperm(5, generator=generator).split(batch_size):
            yield self.x[part], self.y[part]

    def test_batches(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        yield self.x, self.y


def make_client(kind: Kind = "ann", **task: object) -> Client:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = nn.Sequential(nn.Flatten(), nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    common = Task(2, 3, 1, batch_size=2, optimiser=Optimiser(momentum=MOMENTUM))
    return Client(ClientInfo(7, kind, "tiny"), replace(common, **task), model, Points())


def fit(client: Client, rnd: Round = ROUND, epochs: int = 2, stage: str = "local") -> dict[str, float]:
    def terms(x: Tensor, y: Tensor) -> training.Terms:
        z = client.backbone(x)
        return {"ce": F.cross_entropy(z, y), "size": 0.1 * z.square().mean()}

    return training.fit(client, rnd, stage, {"backbone": training.Step(LR, DECAY)}, terms, epochs)


def sgd_by_hand(model: nn.Module, rounds: list[Round], epochs: int) -> dict[str, float]:
    """v <- momentum v + (g + decay w), w <- w - lr v; only matrices decay. Returns the last epoch's mean terms."""
    velocity: dict[str, Tensor] = {}
    sums: dict[str, float] = {}
    for rnd in rounds:
        draws = generator(42, "client", 7, "round", rnd.index, "local")
        for _ in range(epochs):
            sums = {"local.ce": 0.0, "local.size": 0.0}
            for part in torch.randperm(5, generator=draws).split(2):
                z = model(Points.x[part])
                ce, size = F.cross_entropy(z, Points.y[part]), 0.1 * z.square().mean()
                sums["local.ce"] += ce.item() * len(part) / 5
                sums["local.size"] += size.item() * len(part) / 5
                named = dict(model.named_parameters())
                grads = torch.autograd.grad(ce + size, list(named.values()))
                for (name, w), g in zip(named.items(), grads, strict=True):
                    step = g + (DECAY * w.detach() if name in ("1.weight", "3.weight") else 0)
                    velocity[name] = MOMENTUM * velocity[name] + step if name in velocity else step
                    w.data -= LR * velocity[name]
    return sums


@pytest.mark.parametrize("epochs", [1, 3])
def test_fit_is_sgd_with_momentum_and_no_decay_of_biases_and_norms(epochs: int) -> None:
    client = make_client()
    expected = copy.deepcopy(client.backbone)
    means = sgd_by_hand(expected, [ROUND], epochs)
    assert fit(client, epochs=epochs) == pytest.approx(means, rel=1e-4)
    torch.testing.assert_close(client.backbone.state_dict(), expected.state_dict(), rtol=1e-4, atol=1e-6)


def test_momentum_continues_in_the_next_round() -> None:
    client = make_client()
    expected = copy.deepcopy(client.backbone)
    rounds = [Round(0, 10), Round(1, 10)]
    sgd_by_hand(expected, rounds, epochs=1)
    for rnd in rounds:
        fit(client, rnd, epochs=1)
    torch.testing.assert_close(client.backbone.state_dict(), expected.state_dict(), rtol=1e-4, atol=1e-6)


def test_gradients_are_clipped_module_by_module() -> None:
    """One step without momentum and decay: w <- w - lr g min(1, limit / |g|), |g| over all tensors of the module."""
    client = make_client(batch_size=5, optimiser=Optimiser(momentum=0.0, clip=0.5))
    client.add("large", nn.Linear(2, 2))
    client.add("small", nn.Linear(2, 2))

    def loss(modules: dict[str, nn.Module], x: Tensor, y: Tensor) -> Tensor:
        z = modules["backbone"](x)
        return F.cross_entropy(100 * modules["large"](z) + 0.01 * modules["small"](z) + z, y)

    before = {name: copy.deepcopy(module) for name, module in client.modules.items()}
    loss(before, Points.x, Points.y).backward()
    steps = {name: training.Step(LR, 0.0) for name in client.modules}
    training.fit(client, ROUND, "local", steps, lambda x, y: {"ce": loss(client.modules, x, y)}, epochs=1)
    norms = {}
    for name, old in before.items():
        gradients: list[Any] = [p.grad for p in old.parameters()]
        norms[name] = math.sqrt(sum(g.square().sum().item() for g in gradients))
        for p, new in zip(old.parameters(), client.modules[name].parameters(), strict=True):
            torch.testing.assert_close(new, p - LR * p.grad * min(1.0, 0.5 / norms[name]), rtol=1e-4, atol=1e-6)
    assert norms["small"] < 0.5 < norms["large"]


def test_clip_above_all_gradient_norms_has_no_effect() -> None:
    clients = [make_client(optimiser=Optimiser(momentum=MOMENTUM, clip=clip)) for clip in (0.0, 1e6)]
    for client in clients:
        fit(client)
    states = [client.state_dict() for client in clients]
    assert all(torch.equal(tensor, states[1][key]) for key, tensor in states[0].items())


def test_restored_client_continues_exactly() -> None:
    client, resumed = make_client(), make_client()
    fit(client, Round(0, 10))
    resumed.load_state_dict(client.state_dict())
    for one in (client, resumed):
        fit(one, Round(1, 10))
    states = client.state_dict(), resumed.state_dict()
    assert all(torch.equal(tensor, states[1][key]) for key, tensor in states[0].items())


def test_losing_the_momentum_changes_training() -> None:
    client, fresh = make_client(), make_client()
    fit(client, Round(0, 10))
    fresh.load_state_dict({key: t for key, t in client.state_dict().items() if not key.startswith("momentum/")})
    for one in (client, fresh):
        fit(one, Round(1, 10))
    assert not torch.equal(client.backbone[1].weight, fresh.backbone[1].weight)


def adamw_by_hand(model: nn.Module, rounds: list[Round], beta: float) -> None:
    """Loshchilov and Hutter, ICLR 2019: w <- w - lr decay w, then a step of Adam; only matrices decay."""
    first: dict[str, Tensor] = {}
    second: dict[str, Tensor] = {}
    count = 0
    for rnd in rounds:
        draws = generator(42, "client", 7, "round", rnd.index, "local")
        for part in torch.randperm(5, generator=draws).split(2):
            z = model(Points.x[part])
            loss = F.cross_entropy(z, Points.y[part]) + 0.1 * z.square().mean()
            named = dict(model.named_parameters())
            grads = torch.autograd.grad(loss, list(named.values()))
            count += 1
            for (name, w), g in zip(named.items(), grads, strict=True):
                first[name] = beta * first.get(name, 0) + (1 - beta) * g
                second[name] = 0.999 * second.get(name, 0) + 0.001 * g.square()
                w.data *= 1 - LR * DECAY if name in ("1.weight", "3.weight") else 1
                spread = (second[name] / (1 - 0.999**count)).sqrt() + 1e-8
                w.data -= LR * first[name] / (1 - beta**count) / spread


def test_adamw_has_decoupled_decay_and_continues_in_the_next_round() -> None:
    client = make_client(optimiser=Optimiser(momentum=0.8, name="adamw"))
    expected = copy.deepcopy(client.backbone)
    rounds = [Round(0, 10), Round(1, 10)]
    adamw_by_hand(expected, rounds, beta=0.8)
    for rnd in rounds:
        fit(client, rnd, epochs=1)
    torch.testing.assert_close(client.backbone.state_dict(), expected.state_dict(), rtol=1e-3, atol=1e-4)
    assert {steps.item() for steps in client.steps["backbone"].values()} == {6.0}


def test_a_client_with_adamw_is_restored_exactly() -> None:
    client, resumed = (make_client(optimiser=Optimiser(name="adamw")) for _ in range(2))
    fit(client, Round(0, 10))
    resumed.load_state_dict(client.state_dict())
    for one in (client, resumed):
        fit(one, Round(1, 10))
    states = client.state_dict(), resumed.state_dict()
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(tensor, states[1][key]) for key, tensor in states[0].items())


def test_deleting_the_momentum_resets_adamw() -> None:
    """For a whole module or one tensor: second moments and step counts are ignored without a first moment."""
    client, fresh = (make_client(optimiser=Optimiser(name="adamw")) for _ in range(2))
    fit(client, Round(0, 10), epochs=1)
    del client.momentum["backbone"]["1.weight"]
    assert not [key for key in client.state_dict() if "moment" in key and key.endswith("1.weight")]
    assert "steps/backbone/1.weight" not in client.state_dict()
    fit(client, Round(1, 10), epochs=1)
    assert (client.steps["backbone"]["1.weight"], client.steps["backbone"]["3.weight"]) == (3, 6)
    client.momentum.pop("backbone")
    fresh.load_state_dict({key: t for key, t in client.state_dict().items() if key.startswith("module/")})
    for one in (client, fresh):
        fit(one, Round(2, 10), epochs=1)
    assert all(torch.equal(tensor, fresh.state_dict()[key]) for key, tensor in client.state_dict().items())


def test_only_forward_passes_use_half_precision() -> None:
    client, plain = make_client(precision="bf16"), make_client()
    seen = set()

    def terms(x: Tensor, y: Tensor) -> training.Terms:
        z = client.backbone(x)
        seen.add(z.dtype)
        return {"ce": F.cross_entropy(z, y), "size": 0.1 * z.square().mean()}

    training.fit(client, ROUND, "local", {"backbone": training.Step(LR, DECAY)}, terms, 2)
    fit(plain)
    assert seen == {torch.bfloat16}
    assert {t.dtype for t in client.state_dict().values()} == {torch.float32}
    for one, other in zip(client.backbone.parameters(), plain.backbone.parameters(), strict=True):
        assert one.grad is not None
        assert one.grad.dtype == torch.float32
        torch.testing.assert_close(one, other, rtol=0.1, atol=0.1)
        assert not torch.equal(one, other)


def test_teacher_without_gradients_does_not_remove_the_students() -> None:
    """In older versions of torch, autocast's cache gave the student the teacher's weights without gradients."""
    client = make_client(precision="bf16")
    before = copy.deepcopy(client.backbone)

    def terms(x: Tensor, y: Tensor) -> training.Terms:
        with torch.no_grad():
            teacher = client.backbone(x)
        return {"kd": (client.backbone(x) - teacher - 1).square().mean()}

    training.fit(client, ROUND, "local", {"backbone": training.Step(LR, 0.0)}, terms, 1)
    assert all(not torch.equal(a, b) for a, b in zip(before.parameters(), client.backbone.parameters(), strict=True))


class Clipped(nn.Linear, training.Bounded):
    def bound(self) -> None:
        self.weight.clamp_(-0.01, 0.01)


def test_bounded_layers_are_clipped_after_every_step_and_not_decayed() -> None:
    client = make_client()
    client.add("backbone", nn.Sequential(nn.Flatten(), Clipped(3, 4), nn.Linear(4, 2)))
    seen: list[float] = []
    client.backbone[1].register_forward_hook(lambda layer, *_: seen.append(layer.weight.abs().max().item()))
    groups = training._restore(client, {"backbone": training.Step(LR, DECAY)}).param_groups
    decayed = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    named = dict(client.backbone.named_parameters())
    assert {name: decayed[id(p)] for name, p in named.items()} == {
        "1.weight": 0.0, "1.bias": 0.0, "2.weight": DECAY, "2.bias": 0.0,
    }  # fmt: skip
    fit(client, epochs=2)
    assert seen[0] > 0.01
    assert max(seen[1:]) <= 0.01
    assert client.backbone[1].weight.abs().max() <= 0.01


def test_watch_is_called_after_every_epoch() -> None:
    client, seen = make_client(), []
    client.watch = lambda *what: seen.append(what)
    means = fit(client, epochs=2)
    assert [(stage, epoch, epochs) for stage, epoch, epochs, _ in seen] == [("local", 0, 2), ("local", 1, 2)]
    assert means == {f"local.{name}": value for name, value in seen[-1][3].items()}


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_divergence_names_client_round_stage_and_term(bad: float) -> None:
    client = make_client()
    before = client.state_dict()

    def terms(x: Tensor, y: Tensor) -> training.Terms:
        return {"ce": client.backbone(x).sum(), "kd": client.backbone(x).sum() * bad}

    with pytest.raises(Diverged, match=r"client 7 .*round 2, inject: loss 'kd' is -?(nan|inf)"):
        training.fit(client, ROUND, "inject", {"backbone": training.Step(LR, 0.0)}, terms, 1)
    assert all(torch.equal(tensor, before[key]) for key, tensor in client.state_dict().items())


@pytest.mark.parametrize(
    ("kind", "loss", "expected"),
    [("ann", "ce", "mean"), ("ann", "tet", "mean"), ("snn", "ce", "mean"), ("snn", "tet", "steps")],
)
def test_snn_loss_of_the_task(kind: Kind, loss: str, expected: str) -> None:
    z, y = torch.tensor([[[2.0, 0.0]], [[-4.0, 0.0]]]), torch.tensor([0])
    value = training.supervise(make_client(kind, snn_loss=loss), Output(z, z), y).item()
    on_mean = math.log(1 + math.exp(1))  # mean logits -1, 0
    steps = (math.log(1 + math.exp(-2)) + math.log(1 + math.exp(4))) / 2
    squares = (1 + 1 + 25 + 1) / 4
    assert value == pytest.approx(on_mean if expected == "mean" else (1 - 1e-4) * steps + 1e-4 * squares, rel=1e-6)


@pytest.mark.parametrize(("kind", "rate", "decay"), [("ann", 0.05, 1e-4), ("snn", 0.1, 5e-4)])
def test_backbone_uses_the_settings_of_its_kind(
    kind: Kind, rate: float, decay: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []
    monkeypatch.setattr(training, "fit", lambda *settings: given.extend(settings))
    beside = {"other": training.Step(1.0, 2.0)}
    training.fit_backbone(make_client(kind, epochs=3), Round(5, 10), "local", lambda out, x, y: {}, beside)
    _, _, _, steps, _, epochs = given
    assert epochs == 3
    assert steps == {"backbone": (pytest.approx(rate / 2), decay), "other": (1.0, 2.0)}  # half-way of the cosine


def test_two_modules_train_together_each_with_its_own_rate() -> None:
    """With independent losses, joint training equals separate training."""

    def terms(client: Client) -> Callable[[Tensor, Tensor], training.Terms]:
        def both(x: Tensor, y: Tensor) -> training.Terms:
            return {name: F.cross_entropy(client.modules[name](x), y) for name in ("backbone", "other")}

        return both

    def make() -> Client:
        client = make_client()
        client.add("other", copy.deepcopy(client.backbone))
        return client

    steps = {"backbone": training.Step(LR, DECAY), "other": training.Step(LR / 3, 0.0)}
    together = make()
    for index in range(2):
        metrics = training.fit(together, Round(index, 10), "local", steps, terms(together), 2)
    assert set(metrics) == {"local.backbone", "local.other"}
    for name, step in steps.items():
        alone = make()
        for index in range(2):
            training.fit(alone, Round(index, 10), "local", {name: step}, terms(alone), 2)
        for key, tensor in alone.state_dict().items():
            if f"/{name}/" in key:
                assert torch.equal(tensor, together.state_dict()[key]), key
