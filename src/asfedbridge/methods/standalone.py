"""Standalone: every client trains its backbone alone. The reference without collaboration.

Exchanged: nothing.
Client: trains on its labels for the task's epochs.
Server: nothing.
Choices: none.
"""

from dataclasses import dataclass

from asfedbridge.core.client import Client
from asfedbridge.core.method import Method, register_method
from asfedbridge.core.payload import Shapes
from asfedbridge.core.task import ClientInfo, Round, Task, Upload
from asfedbridge.core.training import fit_backbone, supervise


@register_method("standalone")
@dataclass(frozen=True)
class Standalone(Method):
    def uploads(self, task: Task, client: ClientInfo) -> Shapes:
        return {}

    def downloads(self, task: Task, client: ClientInfo) -> Shapes:
        return {}

    def client_round(self, client: Client, rnd: Round) -> Upload:
        return Upload(metrics=fit_backbone(client, rnd, "local", lambda out, x, y: {"ce": supervise(client, out, y)}))
