"""The words every layer speaks: Task, ClientInfo, Round, Output, Upload, Client, Method."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn

from asfedbridge.core import schedules, seeds
from asfedbridge.core.compression import Codec, encoded_bytes
from asfedbridge.core.payload import Payload, Shapes, clone
from asfedbridge.core.privacy import Mechanism

Kind = Literal["ann", "snn", "bnn", "qnn"]  # continuous, spiking, binary, quantised
ShortBatch = Literal["merge", "keep"]  # how a last batch smaller than half the batch size is handled
Point = Literal["received", "trained"]  # after the download, after local training
Precision = Literal["fp32", "bf16", "fp16"]
HALF: dict[Precision, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Output(NamedTuple):
    """What every backbone returns; T == 1 unless it is an SNN."""

    logits_TBC: Tensor
    feature_TBD: Tensor

    @property
    def logits(self) -> Tensor:
        """Mean over the time steps: what predicts."""
        return self.logits_TBC.mean(dim=0)

    @property
    def feature(self) -> Tensor:
        """Mean over the time steps: an SNN's firing rates, an ANN's feature."""
        return self.feature_TBD.mean(dim=0)


@dataclass(frozen=True)
class Neuron:
    """Constants of the leaky integrate-and-fire neuron: u <- decay * v + input, spike when u >= threshold."""

    decay: float = 0.5
    threshold: float = 1.0
    surrogate: Literal["triangle", "rectangle", "sigmoid", "atan"] = "triangle"
    sharpness: float = 1.0  # triangle: half base gamma; rectangle: half width; sigmoid, atan: alpha
    detach_reset: bool = False


@dataclass(frozen=True)
class Optimiser:
    """SGD with momentum, or AdamW; cosine decay over rounds. Biases and normalisation parameters are never decayed.

    Low-bit clients learn at the ANN's rate and decay. Rates are used as they are: AdamW wants smaller ones than the
    defaults, about 1e-3, also for networks whose rate is a field of the method (``method.bridge_lr``).
    """

    lr_ann: float = 0.05
    lr_snn: float = 0.1
    weight_decay_ann: float = 1e-4
    weight_decay_snn: float = 5e-4
    momentum: float = 0.9  # adamw: of the first moment; that of the second is 0.999
    clip: float = 0.0  # largest gradient norm of a module in a step; larger ones are scaled down to it; 0: no limit
    name: Literal["sgd", "adamw"] = "sgd"

    def rate(self, kind: Kind) -> float:
        return self.lr_snn if kind == "snn" else self.lr_ann

    def decay(self, kind: Kind) -> float:
        return self.weight_decay_snn if kind == "snn" else self.weight_decay_ann


@dataclass(frozen=True)
class Task:
    """What all participants of a run agree on, whatever the method."""

    classes: int
    channels: int
    image_size: int
    frames: int = 1  # time steps inside the data, folded into the channels; 1: static images
    stems_differ: bool = False  # some clients take the frames one by one, others all at once as channels
    seed: int = 42
    start: Literal["equal", "by-kind"] = "equal"  # initial weights of ANN and SNN twins
    rounds: int = 100
    epochs: int = 5  # of the private backbone, per round
    batch_size: int = 256
    short_batch: ShortBatch = "merge"
    evaluate_every: int = 1  # rounds
    feature_dim: int = 256
    projector: Literal["linear", "identity"] = "linear"
    twin_rounds: int = 0  # number of first rounds in which SNN clients train as their ANN twins
    snn_loss: Literal["ce", "tet"] = "ce"  # how methods without a rule of their own supervise an SNN
    quantiser: Literal["lsq", "dorefa"] = "lsq"  # of QNN clients
    compress: Codec = "none"  # how payloads are rounded for the wire, both ways
    precision: Precision = "fp32"  # of forward passes in training and evaluation; tensors that stay are float32
    neuron: Neuron = field(default_factory=Neuron)
    optimiser: Optimiser = field(default_factory=Optimiser)

    def start_seed(self, what: str, kind: Kind) -> int:
        """The seed of initial weights: one for all clients, or one for each kind."""
        return seeds.seed(self.seed, what, *([kind] if self.start == "by-kind" else []))


@dataclass(frozen=True)
class ClientInfo:
    """What the server may know of a client."""

    id: int
    kind: Kind
    model: str
    width: float = 1.0
    T: int = 1  # time steps; 1 unless it is an SNN
    train_size: int = 0
    test_size: int = 0
    bits: int = 32  # of weights and activations: 1 for a BNN, 2 to 8 for a QNN

    @property
    def shape(self) -> "ClientInfo":
        """The client without all that does not change its networks: clients of one shape start from equal tensors."""
        return replace(self, id=0, train_size=0, test_size=0)

    @property
    def full_kind(self) -> str:
        """The kind, of a QNN with its bits: the same tensors mean the same in all clients of one full kind."""
        return f"qnn:b={self.bits}" if self.kind == "qnn" else self.kind

    @property
    def label(self) -> str:
        return f"client {self.id} ({self.model}@{self.width:g}:{self.full_kind})"


@dataclass(frozen=True)
class Round:
    """Where we are: ``index`` counts from 0; ``index == total`` is the closing visit (receive, no training)."""

    index: int
    total: int

    @property
    def closing(self) -> bool:
        return self.index >= self.total

    def due(self, every: int) -> bool:
        """Whether what is done every so many rounds is done now: always in the last round and in the closing visit."""
        return self.closing or (self.index + 1) % every == 0 or self.index + 1 == self.total

    def cosine(self, start: float) -> float:
        return schedules.cosine(start, self.index, self.total)

    def ramp(self, ends: schedules.Ramp) -> float:
        return schedules.ramp(ends, self.index, self.total)


@dataclass(frozen=True)
class Upload:
    """What leaves a client: the payload for the server, and the numbers the client chose to report."""

    payload: Payload = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)


Predictor = Callable[[Tensor], Tensor]  # a batch of images -> logits_BC


class Answers(NamedTuple):
    """Logits of a predictor on a set of images, and their labels."""

    logits: Tensor
    labels: Tensor


class Passes(NamedTuple):
    """How often a network goes over each of a client's examples in one round."""

    forward: int
    backward: int


class Shard(Protocol):
    """One client's data, as far as a method needs it."""

    @property
    def train_size(self) -> int: ...
    def batches(
        self, batch_size: int, generator: torch.Generator, short_batch: ShortBatch = "merge"
    ) -> Iterator[tuple[Tensor, Tensor]]: ...
    def train_batches_plain(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]: ...
    def test_batches(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]: ...
    def hold_out(self, share: float, generator: torch.Generator) -> "tuple[Shard, Shard]":
        """Split the training examples at random: a shard without that ``share``, and one that tests on it alone."""
        ...


Watch = Callable[[str, int, int, dict[str, float]], None]  # stage, epoch, epochs, losses


class Client:
    """The private side: models, momentum, what rounding of uploads left over, and data.

    ``state_dict()`` is all that survives between rounds.
    """

    def __init__(
        self, info: ClientInfo, task: Task, backbone: nn.Module, shard: Shard, device: torch.device | str = "cpu"
    ) -> None:
        self.info = info
        self.task = task
        self.shard = shard
        self.held_out: Shard | None = None  # own training images that do not train
        self.device = torch.device(device)
        self.modules: dict[str, nn.Module] = {}
        # By module: one buffer per trainable tensor, once it has trained. AdamW's first moments, with its second
        # moments and step counts beside them. These count only where there is a first: to delete it is a fresh start.
        self.momentum: dict[str, Payload] = {}
        self.second_moment: dict[str, Payload] = {}
        self.steps: dict[str, Payload] = {}
        self.residual: Payload = {}  # what compression took from uploads so far: added to the next one
        self.watch: Watch | None = None
        self.evaluated: dict[str, tuple[int, Answers]] = {}  # the engine's cache, not part of the state
        self._layers: dict[str, list[nn.Module]] = {}
        self.add("backbone", backbone)

    @property
    def backbone(self) -> nn.Module:
        return self.modules["backbone"]

    def add(self, name: str, module: nn.Module) -> None:
        self.modules[name] = module.to(self.device)
        self._layers.pop(name, None)

    def layers(self, name: str) -> list[nn.Module]:
        """A module and all in it; remembered, because to walk a deep network takes longer than to look at a few."""
        if name not in self._layers:
            self._layers[name] = list(self.modules[name].modules())
        return self._layers[name]

    def generator(self, rnd: Round, stage: str) -> torch.Generator:
        return seeds.generator(self.task.seed, "client", self.info.id, "round", rnd.index, stage)

    def hold_out(self, share: float) -> None:
        """Keep a share of the training images from training, the same ones whenever the client is built."""
        generator = seeds.generator(self.task.seed, "client", self.info.id, "held out")
        self.shard, self.held_out = self.shard.hold_out(share, generator)

    def batches(self, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """One shuffled, augmented epoch in the batches of the task."""
        for x, y in self.shard.batches(self.task.batch_size, generator, self.task.short_batch):
            yield self.place(x), y.to(self.device)

    def place(self, x_BCHW: Tensor) -> Tensor:
        """Where and how the models want their input."""
        return x_BCHW.to(self.device).contiguous(memory_format=torch.channels_last)

    def autocast(self) -> AbstractContextManager[object]:
        """Inside, forward passes and losses have the task's precision. Weights, gradients and payloads are float32."""
        dtype = HALF.get(self.task.precision)
        if dtype is None:
            return nullcontext()
        # In older versions of torch the cache hands weights that were cast without gradients, for a teacher's pass, to
        # passes that need gradients (pytorch#158232).
        return torch.autocast(self.device.type, dtype, cache_enabled=False)

    def state_dict(self) -> Payload:
        """Everything private, flat, as copies on the CPU."""
        state: Payload = {}
        for name, module in self.modules.items():
            state |= {f"module/{name}/{key}": t for key, t in module.state_dict().items()}
        for name, buffers in self.momentum.items():
            state |= {f"momentum/{name}/{key}": t for key, t in buffers.items()}
            for part, beside in (("second_moment", self.second_moment), ("steps", self.steps)):
                state |= {f"{part}/{name}/{key}": t for key, t in beside.get(name, {}).items() if key in buffers}
        state |= {f"residual/upload/{key}": t for key, t in self.residual.items()}
        return clone(state)

    def load_state_dict(self, state: Payload) -> None:
        self.momentum, self.second_moment, self.steps, self.residual = {}, {}, {}, {}
        modules: dict[str, Payload] = {name: {} for name in self.modules}
        for key, tensor in state.items():
            part, name, rest = key.split("/", 2)
            if part == "module":
                modules[name][rest] = tensor
            elif part == "residual":
                self.residual[rest] = tensor.clone()
            elif part == "steps":
                self.steps.setdefault(name, {})[rest] = tensor.clone()  # torch wants them on the CPU
            else:
                buffers = self.second_moment if part == "second_moment" else self.momentum
                buffers.setdefault(name, {})[rest] = tensor.to(self.device, copy=True)
        for name, tensors in modules.items():
            self.modules[name].load_state_dict(tensors)


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


def first_of_each(clients: Iterable[ClientInfo]) -> list[ClientInfo]:
    """The first client of every shape, in id order: thousands of clients share a few."""
    first: dict[ClientInfo, ClientInfo] = {}
    for client in clients:
        first.setdefault(client.shape, client)
    return list(first.values())


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


register = register_method
