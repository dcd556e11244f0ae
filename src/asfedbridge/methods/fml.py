"""FML, Federated Mutual Learning (Shen et al., arXiv 2006.16765): backbone and meme teach each other.

Exchanged: the body of the meme (a Bridge used as a plain network), both ways.
Client: backbone and meme are trained together, each on the labels and on the other's predictions.
Server: mean of the memes, weighted by shard size.
Choices:
- deviation, following the AS-FedBridge paper: the meme is the Bridge (architecture, size, initial weights, rate, weight
  decay);
- the prediction of an SNN is its mean logits;
- the meme's head stays private, which matches the paper's 3.93 MB (`personal_head=False`: the original rule, 4.02 MB);
- memes are weighted by shard size and BatchNorm statistics stay local (`weights=uniform`, `bn_buffers=averaged`: the
  original); the meme's momentum stays on the client, like the Bridge's;
- the scales of the Bridge's ports are not used. They have no gradient, so they keep their initial values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from asfedbridge.core import losses
from asfedbridge.core.client import Client, Predictor
from asfedbridge.core.errors import BadInput
from asfedbridge.core.method import Passes, register_method
from asfedbridge.core.task import ClientInfo, Output, Round, Task, Upload
from asfedbridge.core.training import Terms, fit_backbone, supervise
from asfedbridge.methods.bridge_sharing import BridgeSharing


@register_method("fml")
@dataclass(frozen=True)
class FML(BridgeSharing):
    module: ClassVar[str] = "meme"
    fused_with: ClassVar[str] = "meme"
    recipes: ClassVar[Mapping[str, Mapping[str, Any]]] = {"cpu": {"alpha": 0.75, "beta": 0.75}}
    alpha: float = 0.5  # backbone: weight of the labels; that of the meme's predictions is 1 - alpha
    beta: float = 0.5  # meme: weight of the labels; that of the backbone's predictions is 1 - beta
    temperature: float = 1.0  # temperature of distillation, in both directions

    def check(self, task: Task, clients: Sequence[ClientInfo]) -> None:
        for name, share in (("alpha", self.alpha), ("beta", self.beta)):
            if not 0 <= share <= 1:
                raise BadInput(f"method.{name}={share} is out of range; use 0 to 1")
        if self.temperature <= 0:
            raise BadInput(f"method.temperature={self.temperature} must be above 0")
        super().check(task, clients)

    def client_round(self, client: Client, rnd: Round) -> Upload:
        meme = self.network(client)

        def terms(out: Output, x: Tensor, y: Tensor) -> Terms:
            """Each network has two terms of its own: no gradient reaches a teacher."""
            logits = meme(x)
            return {
                "ce": self.alpha * supervise(client, out, y),
                "kd": (1 - self.alpha) * losses.distillation(out.logits, logits, self.temperature),
                "meme_ce": self.beta * losses.cross_entropy(logits, y),
                "meme_kd": (1 - self.beta) * losses.distillation(logits, out.logits, self.temperature),
            }

        metrics = fit_backbone(client, rnd, "mutual", terms, beside={"meme": self.step(rnd)})
        return Upload(self.pack(client), metrics)

    def client_passes(self, task: Task, client: ClientInfo) -> dict[str, Passes]:
        both = Passes(task.epochs, task.epochs)
        return {"backbone": both, "meme": both}

    def client_models(self, client: Client) -> dict[str, Predictor]:
        return {"meme": self.network(client)}
