"""FedAvg (McMahan et al., AISTATS 2017), direct over ANN and SNN clients, and isolated by kind.

Exchanged: every trainable tensor of the backbone, both ways.
Client: starts from the aggregate; the task's epochs on its labels.
Server: mean by shard size, tensor by tensor, over all clients or within a kind.
Choices:
- BatchNorm running statistics stay local (`bn_buffers`);
- the momentum of a backbone that the download overwrites starts anew each round;
- tables show the downloaded aggregate (point `received`);
- on event data the stems of ANN and SNN clients differ in shape: direct, each client keeps its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeVar

from torch import Tensor

from asfedbridge.core import payload
from asfedbridge.core.errors import BadInput
from asfedbridge.core.payload import Payload, Shapes
from asfedbridge.core.protocol import (
    Client,
    ClientInfo,
    Method,
    Output,
    Point,
    Round,
    Task,
    Upload,
    first_of_each,
    register,
)
from asfedbridge.core.training import Terms, fit_backbone, supervise
from asfedbridge.models.zoo import build_backbone, outline_backbone

V = TypeVar("V")


@register("fedavg")
@dataclass(frozen=True)
class FedAvg(Method):
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
            return []
        widths = f"{task.channels} and {task.channels // task.frames} channels"
        return [
            f"{self.name}: stems that take frames at once or one by one ({widths}) are not averaged; clients keep them"
        ]

    def check(self, task: Task, clients: Sequence[ClientInfo]) -> None:
        first: dict[str, ClientInfo] = {}
        for client in first_of_each(clients):
            other = first.setdefault(self.group(client), client)
            if self.uploads(task, other) != self.uploads(task, client):
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
        state: Payload = {}
        for client in clients:
            if not any(name.startswith(f"{self.group(client)}/") for name in state):
                start = payload.select(build_backbone(task, client), self.bn_buffers == "averaged")
                state |= {f"{self.group(client)}/{name}": t for name, t in self.shared(task, start).items()}
        return state

    def server_send(self, state: Payload, client: ClientInfo, rnd: Round) -> Payload:
        prefix = f"{self.group(client)}/"
        return {name.removeprefix(prefix): t for name, t in state.items() if name.startswith(prefix)}

    def server_round(
        self, state: Payload, clients: Sequence[ClientInfo], ups: Mapping[int, Upload], rnd: Round
    ) -> Payload:
        state = dict(state)
        for group in sorted({self.group(c) for c in clients}):
            members = [c for c in clients if self.group(c) == group]
            mean = payload.weighted_mean([ups[c.id].payload for c in members], [c.train_size for c in members])
            state |= {f"{group}/{name}": tensor for name, tensor in mean.items()}
        return state


@register("isolated-fedavg")
@dataclass(frozen=True)
class IsolatedFedAvg(FedAvg):
    """One aggregate per kind of client: no knowledge passes between ANN and SNN."""

    def group(self, client: ClientInfo) -> str:
        return client.kind

    def keeps_stems(self, task: Task) -> bool:
        return False
