"""Other packages use only members of ``Method``, so user-defined methods are supported everywhere."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import pytest

from asfedbridge.core.client import Client
from asfedbridge.core.method import METHODS, Column, Method, register_method
from asfedbridge.core.payload import Shapes
from asfedbridge.core.task import ClientInfo, Round, Task, Upload
from asfedbridge.methods import DEFAULT, REFERENCE
from asfedbridge.methods.bridge_sharing import BridgeSharing
from asfedbridge.methods.fedavg import FedAvg
from asfedbridge.models.zoo import outline_bridge
from asfedbridge.report.tables import run_rows
from asfedbridge.runs.recipes import RECIPES, cpu, extended, paper, quickstart, smoke
from asfedbridge.runs.records import summarise
from asfedbridge.runs.summary import parse_summary

TASK = Task(10, 3, 32)


@dataclass(frozen=True)
class Base(Method):
    recipes: ClassVar[Mapping[str, Mapping[str, Any]]] = {"short": {"rate": 0.5}, "cpu": {"depth": 2}}
    rate: float = 1.0
    depth: int = 1

    def uploads(self, task: Task, client: ClientInfo) -> Shapes:
        return {}

    downloads = uploads

    def client_round(self, client: Client, rnd: Round) -> Upload:
        return Upload()


@pytest.fixture
def own() -> Iterator[type[Method]]:
    """A method that overrides every member that other packages use."""

    @register_method("own")
    @dataclass(frozen=True)
    class Own(Base):
        family: ClassVar[str] = "resnet18"
        twin_start: ClassVar[bool] = False
        recipes: ClassVar[Mapping[str, Mapping[str, Any]]] = {"cpu": {"rate": 0.25}, "smoke": {"depth": 3}}
        bn_buffers: Literal["local", "averaged"] = "averaged"

        @classmethod
        def columns(cls) -> tuple[Column, ...]:
            return (Column("votes", "vote", "votes of all", "what all clients vote", point="trained", by_kind=True),)

    yield Own
    del METHODS["own"]


def test_default_and_reference_method() -> None:
    assert (DEFAULT, REFERENCE) == ("as-fedbridge", "standalone")
    assert {recipe(DEFAULT) == recipe() for recipe in (paper, quickstart, cpu, extended, smoke)} == {True}


def test_recipe_values_extend_those_of_base_classes(own: type[Any]) -> None:
    values = {name: (recipe("own").method.rate, recipe("own").method.depth) for name, recipe in RECIPES.items()}  # type: ignore[attr-defined]
    assert values == {
        "paper": (1.0, 1),
        "quickstart": (0.5, 1),
        "cpu": (0.25, 2),
        "extended": (0.25, 2),
        "smoke": (0.5, 3),
    }


def test_recipes_respect_family_and_twin_start(own: type[Method]) -> None:
    assert "resnet18" in quickstart("own").fleet
    assert "vgg9" in quickstart("fedavg").fleet
    assert (extended("own").twin_rounds, extended("fedavg").twin_rounds) == (0, 5)


def test_tables_show_the_columns_of_a_method(own: type[Method]) -> None:
    records = [
        {"round": 0, "client": i, "kind": kind, "uplink_bytes": 0, "downlink_bytes": 0}
        | {"trained.accuracy": 50.0 + i, "trained.vote_accuracy": 70.0 + i, "received.vote_accuracy": 0.0}
        for i, kind in enumerate(("ann", "snn"))
    ]
    clients = [ClientInfo(0, "ann", "resnet18"), ClientInfo(1, "snn", "resnet18")]
    more = {
        "method": "own",
        "data": "digits",
        "seed": 0,
        "rounds": 1,
        "partition": "iid",
        "alpha": 1.0,
        "bn_buffers": "averaged",
    }
    summary = summarise(own(), clients, records, more | {"wall_seconds": 60.0})
    assert summary["votes"] == {"ann": 70.0, "snn": 71.0, "all": 70.5}
    head, row = run_rows([parse_summary(summary)])
    cells = dict(zip(head, row, strict=True))
    assert (cells["votes of all ANN"], cells["votes of all all"]) == ("70.00", "70.50")
    assert "Bridge" not in cells


def test_shared_networks_are_compared_at_equal_size() -> None:
    sharing = {name: cls for name, cls in METHODS.items() if issubclass(cls, BridgeSharing)}
    assert set(sharing) == {"as-fedbridge", "fml", "mh-pflid"}
    for name, cls in METHODS.items():
        method = cls().sized_like(METHODS["fml"](bridge_width=0.5, bridge_norm="group"))  # type: ignore[call-arg]
        network = method.shared_network(TASK)
        assert (network is not None) == (name in sharing)
        assert network is None or network is outline_bridge(TASK, 0.5, "group")
    assert FedAvg().sized_like(FedAvg()) == FedAvg()


def test_statistics_stay_local_by_default() -> None:
    assert {cls().bn_buffers for cls in METHODS.values()} == {"local"}
    assert FedAvg(bn_buffers="averaged").bn_buffers == "averaged"
