"""FedAvg (McMahan et al., AISTATS 2017), direct (over clients of all kinds) and isolated (within each kind).

Exchanged: every trainable tensor of the backbone, both ways.
Client: starts from the aggregate; trains on its labels for the task's epochs.
Server: mean weighted by shard size (`weights`, `aggregation`), tensor by tensor, over all clients or within a kind.
Choices:
- BatchNorm running statistics stay local (`bn_buffers`);
- low-bit clients send latent weights. Step sizes are averaged only among QNNs with the same number of bits. Isolated
  methods treat QNNs of different bits as different kinds;
- momentum is reset every round, because the download overwrites the backbone;
- tables show the downloaded aggregate (point `received`);
- with direct averaging, the first download replaces every backbone by the first client's, so `start=by-kind` affects
  only stems that stay local (see below). With isolated averaging, each kind has its own start;
- on event data, stems of ANN and SNN clients differ in shape. With direct averaging they stay on the client.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeVar

from torch import Tensor

from asfedbridge.core import payload
from asfedbridge.core.client import Client
from asfedbridge.core.errors import BadInput
from asfedbridge.core.method import register_method
from asfedbridge.core.payload import Payload, Shapes
from asfedbridge.core.task import ClientInfo, Output, Point, Round, Task, Upload, first_of_each
from asfedbridge.core.training import Terms, fit_backbone, supervise
from asfedbridge.methods.averaging import Averaging
from asfedbridge.models.lowbit import STEP, is_step
from asfedbridge.models.zoo import build_backbone, outline_backbone

V = TypeVar("V")


@register_method("fedavg")
@dataclass(frozen=True)
class FedAvg(Averaging):
    reports: ClassVar[Point] = "received"
    bn_buffers: Literal["local", "averaged"] = "local"  # running statistics of BatchNorm: private, or averaged

    def group(self, client: ClientInfo) -> str:
        """The group whose aggregate this client receives."""
        return "all"

    def keeps_stems(self, task: Task) -> bool:
        """Whether stems stay on the client, because clients of one group have stems of different shapes."""
        return task.stems_differ

    def shared(self, task: Task, tensors: Mapping[str, V]) -> dict[str, V]:
        """The tensors of a backbone that are averaged."""
        kept = "stem." if self.keeps_stems(task) else None
        return {name: t for name, t in tensors.items() if kept is None or not name.startswith(kept)}

    def notes(self, task: Task) -> list[str]:
        if not self.keeps_stems(task):
            return super().notes(task)
        widths = f"{task.channels} and {task.channels // task.frames} channels"
        return [
            f"{self.name}: stems stay on the clients, because their shapes differ ({widths})",
            *super().notes(task),
        ]

    def check(self, task: Task, clients: Sequence[ClientInfo]) -> None:
        super().check(task, clients)
        first: dict[str, tuple[ClientInfo, Shapes]] = {}
        for client in first_of_each(clients):
            shapes = {name: shape for name, shape in self.uploads(task, client).items() if not is_step(name)}
            other, expected = first.setdefault(self.group(client), (client, shapes))
            if shapes != expected:
                raise BadInput(
                    f"method={self.name} averages tensor by tensor, but {client.label} and {other.label} "
                    f"do not have the same shapes; use one model and width in the fleet, or another method"
                )

    def uploads(self, task: Task, client: ClientInfo) -> Shapes:
        return self.shared(task, payload.shapes(outline_backbone(task, client), self.bn_buffers == "averaged"))

    downloads = uploads

    def check_upload(self, task: Task, client: ClientInfo, up: Payload, rnd: Round) -> None:
        super().check_upload(task, client, up, rnd)
        if task.compress == "none":  # rounding could make a step size negative
            payload.check_range(up, STEP, least=0.0)

    def client_receive(self, client: Client, down: Payload, rnd: Round) -> None:
        payload.load(client.backbone, down)
        client.momentum.pop("backbone", None)

    def client_round(self, client: Client, rnd: Round) -> Upload:
        start = [p.detach().clone() for p in self.trained(client)]
        metrics = fit_backbone(client, rnd, "local", lambda out, x, y: self.terms(client, start, out, y))
        own = payload.select(client.backbone, self.bn_buffers == "averaged")
        return Upload(self.shared(client.task, own), metrics)

    def trained(self, client: Client) -> list[Tensor]:
        """The trainable tensors that are part of the download."""
        return list(self.shared(client.task, dict(client.backbone.named_parameters())).values())

    def terms(self, client: Client, start: list[Tensor], out: Output, y: Tensor) -> Terms:
        """The local loss; ``start`` is the downloaded backbone."""
        return {"ce": supervise(client, out, y)}

    def server_init(self, task: Task, clients: Sequence[ClientInfo]) -> Payload:
        state = self.remembered(task)
        for client in first_of_each(clients):
            start = payload.select(build_backbone(task, client), buffers=self.bn_buffers == "averaged")
            for name, tensor in self.shared(task, start).items():
                state.setdefault(f"{self.owner(client, name)}/{name}", tensor)
        return state

    def owner(self, client: ClientInfo, name: str) -> str:
        """The set of clients that average this tensor: the group, or the full kind for step sizes."""
        return client.full_kind if is_step(name) else self.group(client)

    def server_send(self, state: Payload, client: ClientInfo, rnd: Round) -> Payload:
        own = (f"{self.group(client)}/", f"{client.full_kind}/")
        return {name.partition("/")[2]: t for name, t in state.items() if name.startswith(own)}

    def server_round(
        self, state: Payload, clients: Sequence[ClientInfo], ups: Mapping[int, Upload], rnd: Round
    ) -> Payload:
        state, sent, weights = dict(state), self.bounded(state, clients, ups, rnd), self.weigh(clients, self.weights)
        parts: dict[str, list[tuple[float, Payload]]] = {}  # by owner: weights and tensors, in id order
        for client in clients:
            own: dict[str, Payload] = {}
            for name, tensor in sent[client.id].items():
                own.setdefault(self.owner(client, name), {})[name] = tensor
            for owner, part in own.items():
                parts.setdefault(owner, []).append((weights[client.id], part))
        for owner, members in parts.items():
            shares, tensors = zip(*members, strict=True)
            mean = self.average(state, tensors, shares, rnd, owner)
            state |= {f"{owner}/{name}": tensor for name, tensor in mean.items()}
        return state


@register_method("isolated-fedavg")
@dataclass(frozen=True)
class IsolatedFedAvg(FedAvg):
    """One aggregate per kind of client: nothing is exchanged between ANN and SNN clients."""

    def group(self, client: ClientInfo) -> str:
        return client.full_kind

    def keeps_stems(self, task: Task) -> bool:
        return False
