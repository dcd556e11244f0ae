"""FedTGP (Zhang et al., AAAI 2024): clients as in FedProto; the server trains prototypes with a margin.

Exchanged: as in FedProto, but all classes down. The prototype generator (embedding and two linear layers) never leaves
the server. AS-FedBridge's table counts it anyway: 0.60 MB for 100 classes (`generator_shapes`).
Client: as in FedProto.
Server: S epochs of SGD on the uploaded prototypes: cross-entropy of -(distance + margin [own class]).
Choices:
- with `aggregation` other than mean, the server trains on one prototype per class, aggregated by that rule;
- the margin follows the authors' code, which differs from the paper (`margin`). For a single class it is tau;
- nothing is sent before the first server round; the paper sends random prototypes (`first_download`);
- lambda = 1, as in FedProto; the server's learning rate and batch size are the authors', not the clients'.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asfedbridge.core import payload, seeds
from asfedbridge.core.compression import encoded_bytes
from asfedbridge.core.errors import BadInput
from asfedbridge.core.method import register_method
from asfedbridge.core.payload import Payload, Shapes
from asfedbridge.core.task import ClientInfo, Round, Task, Upload
from asfedbridge.methods.fedproto import PrototypeMethod, distance
from asfedbridge.models.parts import initialise


class PrototypeGenerator(nn.Module):
    """One prototype per class: an embedding, two linear layers and a ReLU between them."""

    def __init__(self, classes: int, dimension: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.empty(classes, dimension))
        self.inner = nn.Linear(dimension, dimension)
        self.outer = nn.Linear(dimension, dimension)

    def forward(self) -> Tensor:
        prototype_CD: Tensor = self.outer(self.inner(self.embedding).relu())
        return prototype_CD


def outline(classes: int, dimension: int) -> PrototypeGenerator:
    """A generator on the meta device."""
    with torch.device("meta"):
        return PrototypeGenerator(classes, dimension)


def server_loss(prototype_BD: Tensor, label_B: Tensor, generated_CD: Tensor, margin: float) -> Tensor:
    """Pulls each uploaded prototype towards its class's generated one, nearer than to any other by the margin."""
    distance_BC = distance(prototype_BD, generated_CD)
    own_BC = F.one_hot(label_B, len(generated_CD))
    return F.cross_entropy(-(distance_BC + margin * own_BC), label_B)


@register_method("fedtgp")
@dataclass(frozen=True)
class FedTGP(PrototypeMethod):
    recipes: ClassVar[Mapping[str, Mapping[str, Any]]] = {"cpu": {"lambda_proto": 0.1}}
    margin: Literal["nearest", "farthest"] = "nearest"  # gap to the nearest (code) or farthest class (paper)
    first_download: Literal["nothing", "random"] = "nothing"  # prototypes that clients receive in round 1
    lambda_proto: float = 1.0  # weight of the distance to the received prototypes
    tau: float = 100.0  # maximum margin
    server_epochs: int = 100  # epochs of the prototype generator per round
    server_batch: int = 10  # uploaded prototypes per server step
    server_lr: float = 0.01  # learning rate of the prototype generator

    def check(self, task: Task, clients: Sequence[ClientInfo]) -> None:
        super().check(task, clients)
        for name in ("server_epochs", "server_batch", "server_lr"):
            if (value := getattr(self, name)) <= 0:
                raise BadInput(f"method.{name}={value} must be above 0")

    def generator_shapes(self, task: Task) -> Shapes:
        """The prototype generator, which AS-FedBridge's cost table counts."""
        return payload.shapes(outline(task.classes, task.feature_dim))

    def table_upload(self, task: Task, client: ClientInfo) -> int:
        return encoded_bytes(self.generator_shapes(task), "none")

    def server_init(self, task: Task, clients: Sequence[ClientInfo]) -> Payload:
        generator = outline(task.classes, task.feature_dim).to_empty(device="cpu")
        draws = seeds.generator(task.seed, "server", "generator")
        initialise(generator, draws)
        with torch.no_grad():
            generator.embedding.normal_(generator=draws)
        seed = {"seed": torch.tensor(task.seed)}  # for the random draws of every round
        return seed | pack(generator, with_prototypes=self.first_download == "random")

    def server_round(
        self, state: Payload, clients: Sequence[ClientInfo], ups: Mapping[int, Upload], rnd: Round
    ) -> Payload:
        received = self.filtered([entry for c in clients for entry in sorted(ups[c.id].payload.items())])
        if not received:
            return state
        label_N = torch.tensor([int(name.removeprefix("class/")) for name, _ in received])
        prototype_ND = torch.stack([tensor for _, tensor in received])
        generator = unpack(state)
        draws = seeds.generator(int(state["seed"]), "server", "round", rnd.index)
        self.learn(generator, prototype_ND, label_N, draws)
        return {"seed": state["seed"].clone()} | pack(generator, with_prototypes=True)

    def filtered(self, received: list[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
        """The server's training set: all uploaded prototypes, or one robust aggregate per class."""
        if self.aggregation == "mean":
            return received
        owned: dict[str, list[Payload]] = {}
        for name, tensor in received:
            owned.setdefault(name, []).append({name: tensor})
        return [(name, self.combine(owned[name], [1.0] * len(owned[name]))[name]) for name in sorted(owned)]

    def learn(
        self, generator: PrototypeGenerator, prototype_ND: Tensor, label_N: Tensor, draws: torch.Generator
    ) -> None:
        margin = self.margin_of(prototype_ND, label_N)
        optimiser = torch.optim.SGD(generator.parameters(), lr=self.server_lr)
        for _ in range(self.server_epochs):
            for chosen in torch.randperm(len(label_N), generator=draws).split(self.server_batch):
                loss = server_loss(prototype_ND[chosen], label_N[chosen], generator(), margin)
                optimiser.zero_grad(set_to_none=True)
                loss.backward()
                optimiser.step()

    def margin_of(self, prototype_ND: Tensor, label_N: Tensor) -> float:
        """The largest gap between the classes' mean prototypes, at most tau.

        Classes without prototypes are left out. The authors' code gives them the smallest gap, which has no effect.
        """
        centre_KD = torch.stack([prototype_ND[label_N == label].mean(dim=0) for label in label_N.unique()])
        if len(centre_KD) == 1:
            return self.tau
        between_KK = distance(centre_KD, centre_KD)
        if self.margin == "nearest":
            between_KK = between_KK.fill_diagonal_(torch.inf).amin(dim=1)
        return min(between_KK.max().item(), self.tau)


def pack(generator: PrototypeGenerator, with_prototypes: bool) -> Payload:
    """The server state: the generator and, if they are to be sent, its prototypes."""
    state = {f"generator/{name}": tensor for name, tensor in payload.select(generator).items()}
    if with_prototypes:
        state |= payload.clone({f"class/{label}": row for label, row in enumerate(generator())})
    return state


def unpack(state: Payload) -> PrototypeGenerator:
    generator = outline(*state["generator/embedding"].shape).to_empty(device="cpu")
    prefix = "generator/"
    payload.load(generator, {name.removeprefix(prefix): t for name, t in state.items() if name.startswith(prefix)})
    return generator
