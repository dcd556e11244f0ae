from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from asfedbridge.core.client import Client
from asfedbridge.core.method import METHODS, Method, register_method
from asfedbridge.core.payload import Shapes
from asfedbridge.core.task import ClientInfo, Optimiser, Output, Round, ShortBatch, Task, Upload
from asfedbridge.data.loader import Shard


class Plain(Method):
    """A method that exchanges nothing."""

    def uploads(self, task: Task, client: ClientInfo) -> Shapes:
        return {}

    def downloads(self, task: Task, client: ClientInfo) -> Shapes:
        return {}

    def client_round(self, client: Client, rnd: Round) -> Upload:
        return Upload()


class NoData:
    train_size = 0

    def batches(
        self, batch_size: int, generator: torch.Generator, short_batch: ShortBatch = "merge"
    ) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(())

    def test_batches(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(())


def make_client(value: float = 0.0) -> Client:
    """Two modules filled with a value, momentum for one of them."""
    client = Client(
        ClientInfo(3, "ann", "tiny"), Task(2, 1, 8), nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)), NoData()
    )
    client.add("helper", nn.Linear(2, 2))
    client.momentum["backbone"] = {"0.weight": torch.full((2, 1, 3, 3), value)}
    for module in client.modules.values():
        for tensor in module.state_dict().values():
            tensor.fill_(value)
    return client


def test_output_means_are_over_time() -> None:
    out = Output(torch.tensor([[[1.0, 2.0]], [[3.0, 6.0]]]), torch.tensor([[[0.0, 1.0, 1.0]], [[0.0, 0.0, 1.0]]]))
    assert out.logits.tolist() == [[2.0, 4.0]]
    assert out.feature.tolist() == [[0.0, 0.5, 1.0]]


def test_learning_rate_and_decay_by_kind() -> None:
    """The paper's table."""
    optimiser = Optimiser()
    assert (optimiser.rate("ann"), optimiser.decay("ann")) == (0.05, 1e-4)
    assert (optimiser.rate("snn"), optimiser.decay("snn")) == (0.1, 5e-4)
    assert optimiser.momentum == 0.9


@pytest.mark.parametrize(("index", "closing"), [(0, False), (9, False), (10, True)])
def test_the_closing_visit_comes_after_the_last_round(index: int, closing: bool) -> None:
    assert Round(index, 10).closing == closing


def test_a_client_is_restored_from_its_state() -> None:
    state, other = make_client(1.0).state_dict(), make_client(0.0)
    other.momentum["helper"] = {"weight": torch.zeros(2, 2)}  # not in the loaded state: must be removed
    other.load_state_dict(state)
    again = other.state_dict()
    assert again.keys() == state.keys()
    assert all(torch.equal(again[key], tensor) for key, tensor in state.items())
    assert (other.modules["helper"].weight == 1).all()
    assert (other.backbone[1].running_mean == 1).all()
    assert other.backbone[1].num_batches_tracked == 1
    assert other.momentum.keys() == {"backbone"}
    assert other.momentum["backbone"]["0.weight"].unique().tolist() == [1.0]


def test_the_state_is_complete() -> None:
    parts = {"0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked"}
    expected = {f"module/backbone/{name}" for name in parts} | {"module/helper/weight", "module/helper/bias"}
    assert make_client().state_dict().keys() == expected | {"momentum/backbone/0.weight"}


def test_states_are_copies_both_ways() -> None:
    client = make_client(1.0)
    state = client.state_dict()
    for tensor in state.values():
        tensor.fill_(5)
    assert all((tensor == 1).all() for tensor in client.state_dict().values())
    client.load_state_dict(state)
    for tensor in state.values():
        tensor.fill_(7)
    assert all((tensor == 5).all() for tensor in client.state_dict().values())


@pytest.mark.parametrize(("short_batch", "sizes"), [("merge", [4, 5]), ("keep", [4, 4, 1])])
def test_batch_settings_come_from_the_task(short_batch: ShortBatch, sizes: list[int]) -> None:
    x, y = torch.zeros(9, 2, 8, 8, dtype=torch.uint8), torch.zeros(9, dtype=torch.int64)
    client = make_client()
    client.task = replace(client.task, batch_size=4, short_batch=short_batch)
    client.shard = Shard(x, y, x, y, [0.0] * 2, [1.0] * 2, "none")
    assert [len(y) for _, y in client.batches(torch.Generator())] == sizes


def test_residual_is_part_of_the_state() -> None:
    client = make_client()
    client.residual = {"class/3": torch.tensor([1.0, -2.0])}
    state = client.state_dict()
    assert state["residual/upload/class/3"].tolist() == [1.0, -2.0]
    client.residual["class/3"].zero_()
    client.load_state_dict(state)
    state["residual/upload/class/3"].zero_()  # a copy, both ways
    assert {name: t.tolist() for name, t in client.residual.items()} == {"class/3": [1.0, -2.0]}
    assert client.momentum.keys() == {"backbone"}
    client.load_state_dict(make_client().state_dict())
    assert client.residual == {}


def test_an_incomplete_state_is_refused() -> None:
    client = make_client()
    state = client.state_dict()
    del state["module/helper/bias"]
    with pytest.raises(RuntimeError, match="bias"):
        client.load_state_dict(state)


def test_generators_differ_by_client_round_and_stage() -> None:
    client = make_client()
    draws = {
        client.generator(Round(index, 5), stage).initial_seed() for index in (0, 1) for stage in ("noise", "local")
    }
    client.info = ClientInfo(4, "ann", "tiny")
    assert len(draws | {client.generator(Round(0, 5), "noise").initial_seed()}) == 5


def test_duplicate_method_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asfedbridge.core.method.METHODS", METHODS.copy())
    known = set(METHODS)

    @register_method("a-name")
    class First(Plain): ...

    assert First.name == "a-name"
    with pytest.raises(ValueError, match="'a-name'"):

        @register_method("a-name")
        class Second(Plain): ...

    assert set(METHODS) == known


def with_field(hint: Any, field: str = "b", **default: Any) -> type:
    return dataclass(frozen=True)(type("Mine", (Plain,), {"__annotations__": {field: hint}, **default}))


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (type("NoMethod", (), {}), "'NoMethod' must be a subclass of asfedbridge.Method"),
        (lambda: None, "must be a subclass of asfedbridge.Method"),
        (type("Abstract", (Method,), {}), "does not implement client_round, downloads, uploads"),
        (with_field(float), "field b has no default"),
        (with_field(float | None, b=None), "field b has type float | None; use bool, int"),
        (with_field(dict, b=None), "field b has type dict"),
        (with_field(tuple, b=(1, 2)), "field b has type tuple"),
        (with_field(tuple[int, ...], b=(1, 2)), "field b has type tuple"),
        (with_field(str, "name", name="x"), "'name' is the name of the method"),
    ],
)
def test_a_class_that_is_no_usable_method_is_refused(cls: Any, message: str) -> None:
    with pytest.raises(TypeError) as caught:
        register_method("mine")(cls)
    assert message in str(caught.value)
    assert "mine" not in METHODS


@pytest.mark.parametrize("name", ["", "my method", "a/../b", "-x", "a,b"])
def test_a_name_that_is_no_folder_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="invalid method name"):
        register_method(name)


def test_the_decorator_needs_a_name() -> None:
    with pytest.raises(TypeError, match="register_method needs a name"):
        register_method(Plain)  # type: ignore[arg-type]
