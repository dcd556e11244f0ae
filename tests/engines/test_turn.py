"""One client's turn: evaluation at two points, and not twice for nothing."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from asfedbridge.core import payload
from asfedbridge.core.client import Answers, Client
from asfedbridge.core.errors import BadInput, Diverged, GuardError
from asfedbridge.core.method import Method
from asfedbridge.core.payload import Payload
from asfedbridge.core.task import Round, Upload
from asfedbridge.engines import turn
from asfedbridge.engines.turn import build_client, evaluate, take_turn
from asfedbridge.methods.as_fedbridge import ASFedBridge
from asfedbridge.methods.fedavg import FedAvg
from asfedbridge.methods.standalone import Standalone
from asfedbridge.models.zoo import build_backbone


@pytest.fixture
def evaluations(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with every pass over a test shard."""
    calls: list[int] = []
    original = turn.answer

    def counted(client: Client, *given: Any) -> Answers:
        calls.append(client.info.id)
        return original(client, *given)

    monkeypatch.setattr(turn, "answer", counted)
    return calls


@dataclass(frozen=True)
class Idle(Standalone):
    def client_round(self, client: Client, rnd: Round) -> Upload:
        return Upload(metrics={"own": 1.5})


def client_of(pair: Any, method: Method, number: int = 0) -> Client:
    return build_client(method, pair.task, pair.clients[number], pair.shards[number])


def test_accuracy_and_loss_by_hand(pair: Any) -> None:
    client = client_of(pair, Standalone())
    _, y = next(client.shard.test_batches(1000))
    right = y.clone()
    right[0] = (y[0] + 1) % 10  # all but the first
    logits = F.one_hot(right, 10).float() * 3
    found = evaluate(client, lambda x: logits[: len(x)])
    assert found["accuracy"] == pytest.approx(100 * (len(y) - 1) / len(y))
    assert found["loss"] == pytest.approx(F.cross_entropy(logits, y).item())


def test_accuracy_does_not_depend_on_the_batch(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    client = client_of(pair, Standalone(), 1)
    client.backbone.eval()
    whole = evaluate(client, lambda x: client.backbone(x).logits)
    monkeypatch.setattr(turn, "EVALUATION_BATCH", 2)
    parts = evaluate(client, lambda x: client.backbone(x).logits)
    assert parts["accuracy"] == whole["accuracy"]
    assert parts["loss"] == pytest.approx(whole["loss"], rel=1e-5)


@pytest.mark.parametrize("number", [0, 1], ids=["ann", "snn"])
def test_both_points_are_of_the_private_backbone(pair: Any, number: int) -> None:
    client = client_of(pair, Standalone(), number)
    client.backbone.eval()
    before = evaluate(client, lambda x: client.backbone(x).logits)
    up = take_turn(Standalone(), client, {}, Round(0, 2))
    assert not client.backbone.training
    after = evaluate(client, lambda x: client.backbone(x).logits)
    assert {k: up.metrics[f"received.{k}"] for k in before} == before
    assert {k: up.metrics[f"trained.{k}"] for k in after} == after
    assert before["loss"] != after["loss"]
    assert {"local.ce", "seconds"} <= set(up.metrics)


def test_received_is_after_the_download(pair: Any) -> None:
    method = FedAvg()
    client = client_of(pair, method)
    down = payload.select(client.backbone)
    down["classifier.weight"].zero_()
    down["classifier.bias"].zero_()
    up = take_turn(method, client, down, Round(0, 2))
    assert up.metrics["received.loss"] == pytest.approx(2.302585, abs=1e-5)  # log 10: knows nothing


def test_an_unchanged_backbone_is_not_evaluated_again(pair: Any, evaluations: list[int]) -> None:
    client = client_of(pair, Idle())
    up = take_turn(Idle(), client, {}, Round(0, 2))
    assert len(evaluations) == 1
    assert up.metrics["trained.accuracy"] == up.metrics["received.accuracy"]
    assert up.metrics["own"] == 1.5
    take_turn(Idle(), client, {}, Round(1, 2))
    assert len(evaluations) == 1


def test_a_trained_backbone_is_evaluated_once_per_round(pair: Any, evaluations: list[int]) -> None:
    client = client_of(pair, Standalone())
    take_turn(Standalone(), client, {}, Round(0, 2))
    assert len(evaluations) == 2
    take_turn(Standalone(), client, {}, Round(1, 2))  # received is what trained was
    assert len(evaluations) == 3
    take_turn(Standalone(), client, {}, Round(2, 2))
    assert len(evaluations) == 3


def test_a_downloaded_backbone_is_evaluated_again(pair: Any, evaluations: list[int]) -> None:
    client = client_of(pair, FedAvg())
    down = payload.select(client.backbone)
    for index in range(3):
        take_turn(FedAvg(), client, down, Round(index, 2))
    assert len(evaluations) == 5


LEANING = torch.tensor([5.0, *[0.0] * 9])  # to the first class: added to every class it would change nothing


def restore(client: Client) -> None:
    key = "module/backbone/classifier.bias"
    client.load_state_dict(client.state_dict() | {key: LEANING})


def rebuild(client: Client) -> None:
    """Another module, made by the same steps."""
    client.add("backbone", build_backbone(replace(client.task, seed=7), client.info))


@pytest.mark.parametrize(
    "change",
    [
        restore,
        rebuild,
        lambda c: payload.load(c.backbone, {"classifier.bias": LEANING}),
        lambda c: c.backbone.norm.running_mean.add_(1.0),
        lambda c: setattr(c.backbone.classifier, "bias", torch.nn.Parameter(LEANING.clone())),
        lambda c: setattr(c.backbone.classifier.bias, "data", LEANING.clone()),
        lambda c: c.backbone.classifier.bias.data.add_(LEANING),
    ],
    ids=["restored", "rebuilt", "loaded", "statistics", "parameter replaced", "data replaced", "data added to"],
)
def test_a_change_by_any_way_is_seen(pair: Any, change: Callable[[Client], object]) -> None:
    client = client_of(pair, Idle())
    before = take_turn(Idle(), client, {}, Round(0, 3))
    change(client)
    after = take_turn(Idle(), client, {}, Round(1, 3))
    client.evaluated.clear()
    fresh = take_turn(Idle(), client, {}, Round(2, 3))
    assert fresh.metrics["received.loss"] != before.metrics["received.loss"]
    assert after.metrics["received.loss"] == fresh.metrics["received.loss"]


def test_the_bridge_is_evaluated_beside_the_backbone(pair: Any, evaluations: list[int]) -> None:
    method = ASFedBridge(bridge_width=0.34)
    client = client_of(pair, method)
    down = method.server_init(pair.task, pair.clients)
    up = take_turn(method, client, down, Round(0, 1))
    points = ("received", "trained")
    assert {f"{p}.{n}{k}" for p in points for n in ("", "bridge_") for k in ("accuracy", "loss")} <= set(up.metrics)
    assert len(evaluations) == 4
    take_turn(method, client, down, Round(1, 1))  # the Bridge is new, the backbone is not
    assert len(evaluations) == 5


def test_a_private_tensor_is_stopped_at_the_client(pair: Any) -> None:
    """Before the engine moves it anywhere; the server's check is a second one."""

    @dataclass(frozen=True)
    class Sending(Standalone):
        def client_round(self, client: Client, rnd: Round) -> Upload:
            return Upload({"stem.weight": client.backbone.stem.weight.detach()})  # type: ignore[union-attr]

    with pytest.raises(GuardError, match=r"upload of client 1 .*round 0: tensor 'stem\.weight' is private"):
        take_turn(Sending(), client_of(pair, Sending(), 1), {}, Round(0, 2))


def test_a_restored_client_shares_nothing_with_the_state_it_came_from(pair: Any) -> None:
    client = client_of(pair, Standalone())
    take_turn(Standalone(), client, {}, Round(0, 2))
    state = client.state_dict()
    assert any(name.startswith("momentum/") for name in state)
    client.load_state_dict(state)
    before = {name: t.clone() for name, t in state.items()}
    for tensor in state.values():
        tensor.fill_(3)
    after = client.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], t) for name, t in before.items())


def test_the_upload_is_a_copy(pair: Any) -> None:
    kept: dict[str, Tensor] = {}

    @dataclass(frozen=True)
    class Aliasing(FedAvg):
        def client_round(self, client: Client, rnd: Round) -> Upload:
            kept.update({name: p.detach() for name, p in client.backbone.named_parameters()})
            return Upload(dict(kept))

    client = client_of(pair, Aliasing())
    up = take_turn(Aliasing(), client, payload.select(client.backbone), Round(0, 2))
    assert all(up.payload[name].data_ptr() != t.data_ptr() for name, t in kept.items())


def test_the_download_is_not_changed(pair: Any) -> None:
    @dataclass(frozen=True)
    class Spoiling(FedAvg):
        def client_receive(self, client: Client, down: Payload, rnd: Round) -> None:
            for tensor in down.values():
                tensor.zero_()

    client = client_of(pair, Spoiling())
    down = payload.select(client.backbone)
    before = {name: t.clone() for name, t in down.items()}
    take_turn(Spoiling(), client, down, Round(2, 2))
    assert all(torch.equal(down[name], t) for name, t in before.items())


def test_progress_is_told_about_every_epoch(pair: Any, make_engine: Any) -> None:
    told = []
    engine = make_engine(
        Standalone(), progress=lambda info, stage, epoch, epochs, losses: told.append((info.id, stage, epoch, epochs))
    )
    engine.train(Round(0, 2), {0: {}, 1: {}})
    assert told == [(0, "local", 0, 1), (1, "local", 0, 1)]


def test_evaluation_may_be_rarer_than_rounds_and_changes_nothing_else(pair: Any, evaluations: list[int]) -> None:
    """Every third of four rounds: the third, the last, and the closing visit; the same tensors as with all."""
    method = FedAvg()
    found = {}
    for every in (1, 3):
        task = replace(pair.task, rounds=4, evaluate_every=every)
        client = build_client(method, task, pair.clients[0], pair.shards[0])
        state = method.server_init(task, pair.clients[:1])
        judged = []
        for index in range(5):
            rnd = Round(index, 4)
            upload = take_turn(method, client, method.server_send(state, client.info, rnd), rnd)
            judged.append({key for key in ("received.accuracy", "trained.accuracy") if key in upload.metrics})
            state = method.server_round(state, pair.clients[:1], {0: upload}, rnd) if index < 4 else state
        found[every] = (judged, state)
    both = {"received.accuracy", "trained.accuracy"}
    assert found[1][0] == [both] * 4 + [{"received.accuracy"}]
    assert found[3][0] == [set(), set(), both, both, {"received.accuracy"}]
    for name, tensor in found[1][1].items():
        assert torch.equal(tensor, found[3][1][name]), name


@dataclass(frozen=True)
class Reporting(Standalone):
    """Returns what the test wants it to."""

    def client_round(self, client: Client, rnd: Round) -> Any:
        return RETURNED[0]


RETURNED: list[Any] = []


@pytest.mark.parametrize("value", [1.5, torch.tensor(1.5), torch.tensor([1.5]), numpy.float32(1.5)])
def test_a_metric_of_one_value_is_a_number(pair: Any, value: Any) -> None:
    RETURNED[:] = [Upload(metrics={"mine": value})]
    method = Reporting()
    metrics = take_turn(method, client_of(pair, method), {}, Round(0, 1)).metrics
    assert (type(metrics["mine"]), metrics["mine"]) == (float, 1.5)


@pytest.mark.parametrize(
    ("returned", "error", "message"),
    [
        (None, BadInput, "client_round returned NoneType, expected an Upload"),
        ({"w": torch.zeros(1)}, BadInput, "client_round returned dict"),
        (Upload(metrics={"mine": "high"}), BadInput, "metric 'mine' is str, expected a number"),  # type: ignore[dict-item]
        (Upload(metrics={"mine": torch.zeros(2)}), BadInput, "metric 'mine' is Tensor"),  # type: ignore[dict-item]
        (Upload(metrics={"client": 3}), BadInput, "metric 'client' is reserved"),
        (Upload(metrics={"trained.accuracy": 100}), BadInput, "metric 'trained.accuracy' is reserved"),
        (Upload(metrics={"mine": float("nan")}), Diverged, "metric 'mine' is nan"),
    ],
)
def test_what_a_method_must_not_return(pair: Any, returned: Any, error: type[Exception], message: str) -> None:
    RETURNED[:] = [returned]
    method = Reporting()
    with pytest.raises(error, match=message):
        take_turn(method, client_of(pair, method), {}, Round(0, 1))
