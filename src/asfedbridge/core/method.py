"""``Method``: what is exchanged and how clients learn from it; and the registry of methods."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeVar

from torch import nn

from asfedbridge.core.client import Client, Predictor
from asfedbridge.core.compression import encoded_bytes
from asfedbridge.core.payload import Payload, Shapes
from asfedbridge.core.privacy import Mechanism
from asfedbridge.core.task import (
    ClientInfo,
    Point,
    Round,
    Task,
    Upload,
)


class Passes(NamedTuple):
    """How often a network goes over each of a client's examples in one round."""

    forward: int
    backward: int


@dataclass(frozen=True)
class Column:
    """The accuracy of a predictor beside the backbone: an entry of summary.json, and what tables call it.

    Methods may share a key. Its titles are then the same in all of them.
    """

    key: str  # in summary.json
    predictor: str  # a name of ``Method.client_models``, or "fused"
    title: str
    about: str  # in place of the title where there is room
    point: Point | None = "received"  # where it is evaluated; None: where the method is judged
    by_kind: bool = False  # tables of runs have a column for each kind of client
    averaged: bool = True  # comparisons show its mean over seeds
    compared: bool = True  # and its difference to the reference


@dataclass(frozen=True)
class Method(ABC):
    """What is exchanged and how clients learn from it.

    The fields of a subclass are its hyper-parameters. An instance remembers nothing: client memory is in
    ``client``, server memory is the payload ``state``. Whatever other packages have to know of a method is a member
    of this class, so that no module outside ``methods`` asks for a method by name or type.
    """

    name: ClassVar[str]
    reports: ClassVar[Point] = "trained"  # the evaluation point that tables show
    partial: ClassVar[bool] = False  # a payload may be any part of what is declared: owned classes, chosen layers
    continues: ClassVar[bool] = False  # an upload is the download, trained on: one running state, name by name
    fused_with: ClassVar[str] = ""  # the predictor whose probabilities are averaged with the backbone's (`fused`)
    rate_ports: ClassVar[str] = ""  # the client's module whose ports emit firing rates; "": none
    pools_data: ClassVar[bool] = False  # not federated: the first client of each model trains on everybody's data
    family: ClassVar[str] = ""  # the only family of models that it can train; "": any
    twin_start: ClassVar[bool] = True  # SNN clients can train as their ANN twins in the first rounds
    # Values of fields by recipe; "short" stands for all recipes but `paper`. Those of base classes count too.
    recipes: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    # Fields that came after the first runs, with the values those were made with. Those of base classes count too.
    later: ClassVar[Mapping[str, Any]] = {}

    @property
    def bn_buffers(self) -> Literal["local", "averaged"]:
        """Whether running statistics of BatchNorm stay with their clients, or travel and are averaged."""
        return "local"

    @property
    def mechanism(self) -> Mechanism | None:
        """How aggregates are made differentially private, if they are."""
        return None

    @classmethod
    def columns(cls) -> tuple[Column, ...]:
        """What summaries and tables show beside the accuracy of the backbones."""
        partner = cls.fused_with
        return (Column("fused", "fused", "fused", f"backbone and {partner} fused", by_kind=True),) if partner else ()

    @classmethod
    def later_fields(cls) -> dict[str, Any]:
        """``later``, with that of all base classes."""
        fields: dict[str, Any] = {}
        for base in reversed(cls.__mro__):
            fields |= vars(base).get("later", {})
        return fields

    def at(self, recipe: str) -> Self:
        """This method with the values that suit a recipe."""
        values: dict[str, Any] = {}
        for base in reversed(type(self).__mro__):
            values |= vars(base).get("recipes", {}).get(recipe, {})
        return replace(self, **values)

    def shared_network(self, task: Task) -> nn.Module | None:
        """The network that each client has beside its backbone, on the meta device, if there is one: for costs."""
        return None

    def sized_like(self, other: "Method") -> Self:
        """This method with a shared network of the other's size, where both have one: for costs that are compared."""
        return self

    def check(self, task: Task, clients: Sequence[ClientInfo]) -> None:
        """Raise BadInput in one line when this fleet has no valid mapping; called before anything is built."""

    def notes(self, task: Task) -> list[str]:
        """What a reader of this run's results should know, a line each."""
        return []

    @abstractmethod
    def uploads(self, task: Task, client: ClientInfo) -> Shapes:
        """Names and shapes of all that may leave this client."""

    @abstractmethod
    def downloads(self, task: Task, client: ClientInfo) -> Shapes:
        """Names and shapes of all that is sent to this client."""

    def largest_upload(self, task: Task, client: ClientInfo) -> int:
        """Bytes that leave this client in a round, at most."""
        return encoded_bytes(self.uploads(task, client), task.compress)

    def largest_download(self, task: Task, client: ClientInfo) -> int:
        """Bytes that are sent to this client in a round, at most."""
        return encoded_bytes(self.downloads(task, client), task.compress)

    def table_upload(self, task: Task, client: ClientInfo) -> int:
        """Bytes that the paper's cost table counts for this client."""
        return self.largest_upload(task, client)

    def client_init(self, client: Client) -> None:
        """Add private modules to a new client."""

    def client_receive(self, client: Client, down: Payload, rnd: Round) -> None:
        """Take in what the server sent."""

    @abstractmethod
    def client_round(self, client: Client, rnd: Round) -> Upload:
        """Train, and say what leaves."""

    def client_passes(self, task: Task, client: ClientInfo) -> dict[str, Passes]:
        """What ``client_round`` executes, by the name of the client's module: what training costs is counted from it.

        A part that runs alone has a dotted name: ``bridge.head``.
        A test compares it with the operations of a real round, for every method.
        """
        return {"backbone": Passes(task.epochs, task.epochs)}

    def client_models(self, client: Client) -> dict[str, Predictor]:
        """Predictors (logits of a batch) that the engine evaluates beside the backbone.

        The name of a module stands for that module alone: it is run again only when the module has changed.
        """
        return {}

    def server_init(self, task: Task, clients: Sequence[ClientInfo]) -> Payload:
        return {}

    def server_send(self, state: Payload, client: ClientInfo, rnd: Round) -> Payload:
        return {}

    def server_round(
        self, state: Payload, clients: Sequence[ClientInfo], ups: Mapping[int, Upload], rnd: Round
    ) -> Payload:
        """The next state from the uploads of ``clients`` (this round's participants, in id order)."""
        return state


METHODS: dict[str, type[Method]] = {}


def table_columns() -> dict[str, Column]:
    """By key: all columns that the known methods add to tables."""
    return {column.key: column for cls in METHODS.values() for column in cls.columns()}


M = TypeVar("M", bound=type[Method])


def register_method(name: str) -> Callable[[M], M]:
    """Class decorator: make a method known under ``name`` to command line, recipes and conformance suite.

    It goes above ``@dataclass(frozen=True)``, whose fields are the method's hyper-parameters.
    """

    def enter(cls: M) -> M:
        if vars(cls).get("__annotations__") and "__dataclass_params__" not in vars(cls):
            raise TypeError(f"method '{name}': class {cls.__name__} has fields; make it a @dataclass(frozen=True)")
        known = METHODS.get(name, cls)
        if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ValueError(f"two methods are called '{name}'")
        cls.name = name
        METHODS[name] = cls
        return cls

    return enter
