"""Types used by all packages: the task, the server's view of clients, rounds, outputs and uploads."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from asfedbridge.core import schedules, seeds
from asfedbridge.core.compression import Codec
from asfedbridge.core.payload import Payload

Kind = Literal["ann", "snn", "bnn", "qnn"]  # continuous, spiking, binary, quantised
ShortBatch = Literal["merge", "keep"]  # how a last batch smaller than half the batch size is handled
Point = Literal["received", "trained"]  # after the download, after local training
Precision = Literal["fp32", "bf16", "fp16"]
HALF: dict[Precision, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Output(NamedTuple):
    """The output of every backbone; T == 1 unless it is an SNN."""

    logits_TBC: Tensor
    feature_TBD: Tensor

    @property
    def logits(self) -> Tensor:
        """Mean over the time steps: the prediction."""
        return self.logits_TBC.mean(dim=0)

    @property
    def feature(self) -> Tensor:
        """Mean over the time steps: firing rates for an SNN, the feature for an ANN."""
        return self.feature_TBD.mean(dim=0)


@dataclass(frozen=True)
class Neuron:
    """Leaky integrate-and-fire neuron: u <- decay * v + input, spike when u >= threshold."""

    decay: float = 0.5  # factor of the membrane potential per time step
    threshold: float = 1.0  # the neuron fires when its membrane potential reaches it
    surrogate: Literal["triangle", "rectangle", "sigmoid", "atan"] = "triangle"  # derivative of the spike function
    sharpness: float = 1.0  # triangle: half base gamma; rectangle: half width; sigmoid, atan: alpha
    detach_reset: bool = False  # no gradient through the reset


@dataclass(frozen=True)
class Optimiser:
    """SGD with momentum, or AdamW; cosine decay over rounds. Biases and normalisation parameters have no weight decay.

    Low-bit clients use the ANN's rate and weight decay. AdamW needs smaller rates than the defaults, about 1e-3, also
    for networks whose rate is a field of the method (``method.bridge_lr``).
    """

    lr_ann: float = 0.05  # initial learning rate; cosine decay over rounds
    lr_snn: float = 0.1  # the same for SNN clients
    weight_decay_ann: float = 1e-4  # L2 weight decay (adamw: decoupled)
    weight_decay_snn: float = 5e-4  # the same for SNN clients
    momentum: float = 0.9  # momentum of SGD; adamw: decay of the first moment (that of the second is 0.999)
    clip: float = 0.0  # maximum gradient norm per module; larger gradients are scaled down; 0: no limit
    name: Literal["sgd", "adamw"] = "sgd"  # optimisation algorithm

    def rate(self, kind: Kind) -> float:
        return self.lr_snn if kind == "snn" else self.lr_ann

    def decay(self, kind: Kind) -> float:
        return self.weight_decay_snn if kind == "snn" else self.weight_decay_ann


@dataclass(frozen=True)
class Task:
    """Settings that all participants of a run share, independent of the method."""

    classes: int
    channels: int
    image_size: int
    frames: int = 1  # time steps in the data, stored as channels; 1: static images
    stems_differ: bool = False  # some clients process frames one by one, others all at once as channels
    seed: int = 42
    start: Literal["equal", "by-kind"] = "equal"  # initial weights of ANN and SNN twins
    rounds: int = 100
    epochs: int = 5  # per round, for the private backbone
    batch_size: int = 256
    short_batch: ShortBatch = "merge"
    evaluate_every: int = 1  # rounds
    feature_dim: int = 256
    projector: Literal["linear", "identity"] = "linear"
    twin_rounds: int = 0  # number of initial rounds in which SNN clients train as ANN twins
    snn_loss: Literal["ce", "tet"] = "ce"  # supervised loss of SNNs in methods that define none
    quantiser: Literal["lsq", "dorefa"] = "lsq"  # for QNN clients
    compress: Codec = "none"  # compression of payloads in both directions
    norm_guard: float = 100.0  # refuse uploads larger than this multiple of the round's median; 0: off
    precision: Precision = "fp32"  # precision of forward passes; stored tensors are float32
    neuron: Neuron = field(default_factory=Neuron)
    optimiser: Optimiser = field(default_factory=Optimiser)

    def start_seed(self, what: str, kind: Kind) -> int:
        """The seed of initial weights: the same for all clients or, with ``start=by-kind``, for each kind."""
        return seeds.seed(self.seed, what, *([kind] if self.start == "by-kind" else []))


@dataclass(frozen=True)
class ClientInfo:
    """What the server knows about a client."""

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
        """The fields that determine the client's networks. Clients of equal shape start from equal tensors."""
        return replace(self, id=0, train_size=0, test_size=0)

    @property
    def full_kind(self) -> str:
        """The kind, with bits for a QNN. Tensors of clients of one full kind have the same meaning."""
        return f"qnn:b={self.bits}" if self.kind == "qnn" else self.kind

    @property
    def label(self) -> str:
        return f"client {self.id} ({self.model}@{self.width:g}:{self.full_kind})"


@dataclass(frozen=True)
class Round:
    """``index`` counts from 0; ``index == total`` is the closing visit (receive, no training)."""

    index: int
    total: int

    @property
    def closing(self) -> bool:
        return self.index >= self.total

    def due(self, every: int) -> bool:
        """Whether a periodic action is due; always true in the last round and in the closing visit."""
        return self.closing or (self.index + 1) % every == 0 or self.index + 1 == self.total

    def cosine(self, start: float) -> float:
        return schedules.cosine(start, self.index, self.total)

    def ramp(self, ends: schedules.Ramp) -> float:
        return schedules.ramp(ends, self.index, self.total)


@dataclass(frozen=True)
class Upload:
    """A client's reply: the payload for the server, and the metrics that the client reports."""

    payload: Payload = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)


def first_of_each(clients: Iterable[ClientInfo]) -> list[ClientInfo]:
    """The first client of every shape, in id order."""
    first: dict[ClientInfo, ClientInfo] = {}
    for client in clients:
        first.setdefault(client.shape, client)
    return list(first.values())
