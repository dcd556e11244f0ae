"""FedProx (Li et al., MLSys 2020), direct (over clients of all kinds) and isolated (within each kind).

Exchanged: as in FedAvg.
Client: as in FedAvg, plus mu/2 ||w - w_r||^2 over the trainable tensors, where w_r is the downloaded backbone.
Server: as in FedAvg.
Choices:
- mu = 0.01 (the AS-FedBridge paper gives no value);
- no straggler model: all clients do equal work. Otherwise as in FedAvg.
"""

from dataclasses import dataclass

from torch import Tensor

from asfedbridge.core.client import Client
from asfedbridge.core.losses import squared_distance
from asfedbridge.core.method import register_method
from asfedbridge.core.task import ClientInfo, Output, Task
from asfedbridge.core.training import Terms, supervise
from asfedbridge.methods.fedavg import FedAvg


@register_method("fedprox")
@dataclass(frozen=True)
class FedProx(FedAvg):
    mu: float = 0.01  # weight of the squared distance to the received backbone

    def terms(self, client: Client, start: list[Tensor], out: Output, y: Tensor) -> Terms:
        proximal = self.mu / 2 * squared_distance(self.trained(client), start)
        return {"ce": supervise(client, out, y), "prox": proximal}


@register_method("isolated-fedprox")
@dataclass(frozen=True)
class IsolatedFedProx(FedProx):
    """One aggregate per kind of client, which is also the proximal anchor."""

    def group(self, client: ClientInfo) -> str:
        return client.full_kind

    def keeps_stems(self, task: Task) -> bool:
        return False
