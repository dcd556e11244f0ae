"""``Method``, the base class of federated methods, and their registry."""

import dataclasses
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeVar, get_args, get_origin, get_type_hints

from torch import nn

from asfedbridge.core.client import Client, Predictor
from asfedbridge.core.compression import encoded_bytes
from asfedbridge.core.payload import RUNNING_VARIANCE, Payload, Shapes, check_range
from asfedbridge.core.privacy import Mechanism
from asfedbridge.core.task import (
    ClientInfo,
    Point,
    Round,
    Task,
    Upload,
)


class Passes(NamedTuple):
    """How often a network processes each of a client's examples in one round."""

    forward: int
    backward: int


@dataclass(frozen=True)
class Column:
    """A table column for the accuracy of another predictor than the backbone.

    Methods may share a key if they also share its titles.
    """

    key: str  # in summary.json
    predictor: str  # a key of ``Method.client_models``, or "fused"
    title: str
    about: str  # long title
    point: Point | None = "received"  # evaluation point; None: ``Method.reports``
    by_kind: bool = False  # one column per kind of client in tables of runs
    averaged: bool = True  # comparisons show the mean over seeds
    compared: bool = True  # comparisons show the difference to the reference method


@dataclass(frozen=True)
class Method(ABC):
    """Defines what is exchanged and how clients learn from it.

    The fields of a subclass are its hyper-parameters. Instances are stateless: client state is in ``client``, server
    state is the payload ``state``. Everything that other packages need to know about a method is a member of this
    class, so no module outside ``methods`` checks the name or type of a method.
    """

    name: ClassVar[str]
    reports: ClassVar[Point] = "trained"  # the evaluation point shown in tables
    partial: ClassVar[bool] = False  # payloads may omit declared tensors (owned classes, chosen layers)
    continues: ClassVar[bool] = False  # an upload is the trained download, with the same names
    fused_with: ClassVar[str] = ""  # the predictor that `fused` averages with the backbone
    rate_ports: ClassVar[str] = ""  # the client module whose ports emit firing rates; "": none
    pools_data: ClassVar[bool] = False  # not federated: the first client of each model trains on all data
    family: ClassVar[str] = ""  # the only supported model family; "": any
    twin_start: ClassVar[bool] = True  # supports `twin_rounds`: SNN clients first train as ANN twins
    # Field values by recipe, in addition to those of base classes; "short" means all recipes except `paper`.
    recipes: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    @property
    def bn_buffers(self) -> Literal["local", "averaged"]:
        """Whether BatchNorm running statistics stay on the client or are sent and averaged."""
        return "local"

    @property
    def mechanism(self) -> Mechanism | None:
        """The differential-privacy mechanism for aggregates; None if there is none."""
        return None

    @classmethod
    def columns(cls) -> tuple[Column, ...]:
        """Columns that summaries and tables show in addition to the backbones' accuracy."""
        partner = cls.fused_with
        return (Column("fused", "fused", "fused", f"backbone and {partner} fused", by_kind=True),) if partner else ()

    def at(self, recipe: str) -> Self:
        """This method with the field values of a recipe."""
        values: dict[str, Any] = {}
        for base in reversed(type(self).__mro__):
            values |= vars(base).get("recipes", {}).get(recipe, {})
        return replace(self, **values)

    def shared_network(self, task: Task) -> nn.Module | None:
        """The network shared through the server, on the meta device, for cost estimates; None if there is none."""
        return None

    def sized_like(self, other: "Method") -> Self:
        """This method with a shared network of the same size as ``other``'s, for cost comparisons."""
        return self

    def check(self, task: Task, clients: Sequence[ClientInfo]) -> None:
        """Raise BadInput if the method cannot run this fleet or a field is invalid; called before anything is built."""

    def notes(self, task: Task) -> list[str]:
        """Remarks for readers of the results, one line each."""
        return []

    @abstractmethod
    def uploads(self, task: Task, client: ClientInfo) -> Shapes:
        """Names and shapes of all tensors that this client may upload."""

    @abstractmethod
    def downloads(self, task: Task, client: ClientInfo) -> Shapes:
        """Names and shapes of all tensors that may be sent to this client."""

    def check_upload(self, task: Task, client: ClientInfo, up: Payload, rnd: Round) -> None:
        """Raise GuardError for an upload with invalid content. Names, shapes and finiteness are already checked.

        Called on the server before ``server_round``, by every engine. ``norm_guard`` compares magnitudes between
        clients.
        """
        check_range(up, RUNNING_VARIANCE, least=0.0)

    def compared_with(self, state: Payload, client: ClientInfo, rnd: Round) -> Payload:
        """The tensors that ``norm_guard`` compares this client's upload with: by default the download."""
        return self.server_send(state, client, rnd)

    def largest_upload(self, task: Task, client: ClientInfo) -> int:
        """The maximum upload of this client in one round, in bytes."""
        return encoded_bytes(self.uploads(task, client), task.compress)

    def largest_download(self, task: Task, client: ClientInfo) -> int:
        """The maximum download of this client in one round, in bytes."""
        return encoded_bytes(self.downloads(task, client), task.compress)

    def table_upload(self, task: Task, client: ClientInfo) -> int:
        """The payload that the paper's cost table counts for this client, in bytes."""
        return self.largest_upload(task, client)

    def client_init(self, client: Client) -> None:
        """Add private modules to a new client."""

    def client_receive(self, client: Client, down: Payload, rnd: Round) -> None:
        """Load the download."""

    @abstractmethod
    def client_round(self, client: Client, rnd: Round) -> Upload:
        """Train and return the upload."""

    def client_passes(self, task: Task, client: ClientInfo) -> dict[str, Passes]:
        """The passes of ``client_round`` by module name, from which training costs are computed.

        A submodule that runs alone has a dotted name: ``bridge.head``. A test compares the passes with the operations
        of a real round, for every method.
        """
        return {"backbone": Passes(task.epochs, task.epochs)}

    def client_models(self, client: Client) -> dict[str, Predictor]:
        """Predictors that the engine evaluates in addition to the backbone.

        A predictor named like a module must depend on that module only: it is evaluated again only when the module
        changes.
        """
        return {}

    def server_init(self, task: Task, clients: Sequence[ClientInfo]) -> Payload:
        return {}

    def server_send(self, state: Payload, client: ClientInfo, rnd: Round) -> Payload:
        return {}

    def server_round(
        self, state: Payload, clients: Sequence[ClientInfo], ups: Mapping[int, Upload], rnd: Round
    ) -> Payload:
        """Compute the next state from the uploads of ``clients``, the round's participants in id order."""
        return state


METHODS: dict[str, type[Method]] = {}


def table_columns() -> dict[str, Column]:
    """The columns of all registered methods, by key."""
    return {column.key: column for cls in METHODS.values() for column in cls.columns()}


M = TypeVar("M", bound=type[Method])
METHOD_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # it is part of folder names
FIELD_TYPES = (bool, int, float, str)


def register_method(name: str) -> Callable[[M], M]:
    """Class decorator: register a method under ``name`` for the command line, recipes and the conformance suite.

    Place it above ``@dataclass(frozen=True)``. The fields of the dataclass are the method's hyper-parameters.
    """

    if not isinstance(name, str):
        raise TypeError('register_method needs a name: write @register_method("my-method")')
    if not METHOD_NAME.fullmatch(name):
        raise ValueError(f"invalid method name '{name}': use letters, digits, '-', '_' and '.'")

    def enter(cls: M) -> M:
        _check_class(cls, name)
        known = METHODS.get(name, cls)
        if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ValueError(f"method name '{name}' is already registered")
        cls.name = name
        METHODS[name] = cls
        return cls

    return enter


def _check_class(cls: type, name: str) -> None:
    """Specifications are TOML files: a field must have a default and a type that they can hold."""
    if not (isinstance(cls, type) and issubclass(cls, Method)):
        raise TypeError(f"method '{name}': {getattr(cls, '__name__', cls)!r} must be a subclass of asfedbridge.Method")
    if vars(cls).get("__annotations__") and "__dataclass_params__" not in vars(cls):
        raise TypeError(f"method '{name}': class {cls.__name__} has fields; add @dataclass(frozen=True)")
    if missing := sorted(cls.__abstractmethods__):
        raise TypeError(f"method '{name}': class {cls.__name__} does not implement {', '.join(missing)}")
    hints = get_type_hints(cls)
    for entry in dataclasses.fields(cls):
        hint = hints[entry.name]
        parts = get_args(hint) if get_origin(hint) is tuple else (hint,)
        if entry.name == "name":
            raise TypeError(f"method '{name}': 'name' is the name of the method; call the field something else")
        if not all(part in FIELD_TYPES or get_origin(part) is Literal for part in parts) or not parts:
            raise TypeError(
                f"method '{name}': field {entry.name} has type {getattr(hint, '__name__', hint)}; use bool, int, "
                f"float, str, Literal[...] or a tuple of a fixed number of these"
            )
        if entry.default is dataclasses.MISSING:
            raise TypeError(f"method '{name}': field {entry.name} has no default; give it one")
