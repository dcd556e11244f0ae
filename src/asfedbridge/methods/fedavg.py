"""FedAvg (McMahan et al., AISTATS 2017), direct over clients of all kinds, and isolated by kind.

Exchanged: every trainable tensor of the backbone, both ways.
Client: starts from the aggregate; the task's epochs on its labels.
Server: mean by shard size, tensor by tensor, over all clients or within a kind.
Choices:
- BatchNorm running statistics stay local (`bn_buffers`);
- low-bit clients send latent weights; step sizes of a QNN are averaged with their weights, but among QNNs of the same
  bits only: to others they say nothing. Isolated, QNNs of different bits are different kinds;
- the momentum of a backbone that the download overwrites starts anew each round;
- tables show the downloaded aggregate (point `received`);
- direct, all clients start from the first client's backbone: the first download replaces their own, so
  `start=by-kind` has no effect (it has on stems that stay local, below). Isolated, each kind starts from its own;
- on event data the stems of ANN and SNN clients differ in shape: direct, each client keeps its own.
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
from asfedbridge.models.lowbit import is_step
from asfedbridge.models.zoo import build_backbone, outline_backbone

V = TypeVar("V")


@register_method("fedavg")
@dataclass(frozen=True)
class FedAvg(Averaging):
    reports: ClassVar[Point] = "received"
    bn_buffers: Literal["local", "averaged"] = "local"

    def group(self, client: ClientInfo) -> str:
        """Clients of one group share one aggregate."""
        return "all"

    def keeps_stems(self, task: Task) -> bool:
        """Whether stems stay with their clients, because one aggregate is for clients whose stems differ in shape."""
        return task.stems_differ

    def shared(self, task: Task, tensors: Mapping[str, V]) -> dict[str, V]:
        """Of a backbone's tensors, those that are averaged."""
        kept = "stem." if self.keeps_stems(task) else None
        return {name: t for name, t in tensors.items() if kept is None or not name.startswith(kept)}

    def notes(self, task: Task) -> list[str]:
        if not self.keeps_stems(task):
            return super().notes(task)
        widths = f"{task.channels} and {task.channels // task.frames} channels"
        return [
            f"{self.name}: stems that take frames at once or one by one ({widths}) are not averaged; clients keep them",
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

    def client_receive(self, client: Client, down: Payload, rnd: Round) -> None:
        payload.load(client.backbone, down)
        client.momentum.pop("backbone", None)

    def client_round(self, client: Client, rnd: Round) -> Upload:
        start = [p.detach().clone() for p in self.trained(client)]
        metrics = fit_backbone(client, rnd, "local", lambda out, x, y: self.terms(client, start, out, y))
        own = payload.select(client.backbone, self.bn_buffers == "averaged")
        return Upload(self.shared(client.task, own), metrics)

    def trained(self, client: Client) -> list[Tensor]:
        """The trainable tensors that came with the download."""
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
        """Among whom a tensor of this client is averaged: its group, or for a step size its full kind."""
        return client.full_kind if is_step(name) else self.group(client)

    def server_send(self, state: Payload, client: ClientInfo, rnd: Round) -> Payload:
        own = (f"{self.group(client)}/", f"{client.full_kind}/")
        return {name.partition("/")[2]: t for name, t in state.items() if name.startswith(own)}

    def server_round(
        self, state: Payload, clients: Sequence[ClientInfo], ups: Mapping[int, Upload], rnd: Round
    ) -> Payload:
        state, sent = dict(state), self.bounded(state, clients, ups, rnd)
        parts: dict[str, list[tuple[int, Payload]]] = {}  # by owner: sizes and tensors, in id order
        for client in clients:
            own: dict[str, Payload] = {}
            for name, tensor in sent[client.id].items():
                own.setdefault(self.owner(client, name), {})[name] = tensor
            for owner, part in own.items():
                parts.setdefault(owner, []).append((client.train_size, part))
        for owner, members in parts.items():
            sizes, tensors = zip(*members, strict=True)
            mean = self.average(state, tensors, sizes, rnd, owner)
            state |= {f"{owner}/{name}": tensor for name, tensor in mean.items()}
        return state


@register_method("isolated-fedavg")
@dataclass(frozen=True)
class IsolatedFedAvg(FedAvg):
    """One aggregate per kind of client: no knowledge passes between ANN and SNN."""

    def group(self, client: ClientInfo) -> str:
        return client.full_kind

    def keeps_stems(self, task: Task) -> bool:
        return False
