"""FedAvg (McMahan et al., AISTATS 2017), direct over ANN and SNN clients, and isolated by kind.

Exchanged: every trainable tensor of the backbone, both ways.
Client: starts from the aggregate; the task's epochs on its labels.
Server: mean by shard size, tensor by tensor, over all clients or within a kind.
Choices:
- BatchNorm running statistics stay local (`bn_buffers`);
- the momentum of a backbone that the download overwrites starts anew each round;
- tables show the downloaded aggregate (point `received`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

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


@register("fedavg")
@dataclass(frozen=True)
class FedAvg(Method):
    reports: ClassVar[Point] = "received"
    bn_buffers: Literal["local", "averaged"] = "local"

    def group(self, client: ClientInfo) -> str:
        """Clients of one group share one aggregate."""
        return "all"

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
        return payload.shapes(outline_backbone(task, client), buffers=self.bn_buffers == "averaged")

    downloads = uploads

    def client_receive(self, client: Client, down: Payload, rnd: Round) -> None:
        payload.load(client.backbone, down)
        client.momentum.pop("backbone", None)

    def client_round(self, client: Client, rnd: Round) -> Upload:
        start = [p.detach().clone() for p in client.backbone.parameters()]
        metrics = fit_backbone(client, rnd, "local", lambda out, x, y: self.terms(client, start, out, y))
        return Upload(payload.select(client.backbone, buffers=self.bn_buffers == "averaged"), metrics)

    def terms(self, client: Client, start: list[Tensor], out: Output, y: Tensor) -> Terms:
        """The local loss; ``start`` is the downloaded backbone."""
        return {"ce": supervise(client, out, y)}

    def server_init(self, task: Task, clients: Sequence[ClientInfo]) -> Payload:
        state: Payload = {}
        for client in clients:
            if not any(name.startswith(f"{self.group(client)}/") for name in state):
                start = payload.select(build_backbone(task, client), buffers=self.bn_buffers == "averaged")
                state |= {f"{self.group(client)}/{name}": tensor for name, tensor in start.items()}
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
