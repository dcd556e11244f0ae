"""MH-pFLID (Xie et al., ICML 2024): a messenger network transfers knowledge between heterogeneous private models.

Exchanged: the messenger's body, both ways.
Client: injection (labels and, through the private receiver, the frozen messenger teach the backbone) for the task's
epochs, then distillation (labels and the frozen backbone teach messenger and private transmitter) for one.
Server: mean of the messengers, weighted by shard size.
Choices:
- deviation, following the AS-FedBridge paper: the messenger is the Bridge (architecture, size, initial weights, rate,
  weight decay, momentum); SGD instead of Adam; the task's epochs for injection plus one for distillation, instead of
  one budget for both;
- logits and feature of an SNN are means over time;
- the messenger's head stays private, matching the paper's 3.93 MB (`personal_head=False`: the original rule, 4.02 MB);
- BatchNorm statistics stay local; loss weights come from a re-implementation; KL(backbone || messenger) has
  temperature 1;
- attention tokens are slices of one sample's feature (8 of width 32), mapped by shared weights without biases;
- the receiver has the backbone's learning rate and weight decay, the transmitter the messenger's;
- the scales of the Bridge's ports are not used. They have no gradient, so they keep their initial values.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from asfedbridge.core import losses, seeds
from asfedbridge.core.client import Client, Predictor
from asfedbridge.core.errors import BadInput
from asfedbridge.core.method import Passes, register_method
from asfedbridge.core.task import ClientInfo, Output, Round, Task, Upload
from asfedbridge.core.training import Step, Terms, fit, fit_backbone, supervise
from asfedbridge.methods.bridge_sharing import BridgeSharing
from asfedbridge.models.attention import Receiver, Transmitter
from asfedbridge.models.parts import build


@register_method("mh-pflid")
@dataclass(frozen=True)
class MHpFLID(BridgeSharing):
    module: ClassVar[str] = "messenger"
    fused_with: ClassVar[str] = "transmitted"
    lambda_inject_local: float = 0.9  # injection: weight of the label loss of the backbone's head
    lambda_inject_messenger: float = 0.1  # injection: weight of the label loss of receiver and messenger head
    lambda_distil_label: float = 0.9  # distillation: weight of the label loss
    lambda_distil_kd: float = 0.1  # distillation: weight of the backbone's predictions
    temperature: float = 1.0  # temperature of distillation
    distillation_epochs: int = 1  # epochs of distillation per round
    tokens: int = 8  # number of slices of a feature in attention
    receiver_lr_factor: float = 1.0  # learning rate of the receiver, as a multiple of the backbone's
    transmitter_lr_factor: float = 1.0  # learning rate of the transmitter, as a multiple of bridge_lr

    def check(self, task: Task, clients: Sequence[ClientInfo]) -> None:
        if self.tokens < 2 or task.feature_dim % self.tokens:
            raise BadInput(
                f"method.tokens={self.tokens} does not split feature_dim={task.feature_dim} into equal tokens; "
                f"use a divisor of {task.feature_dim}, at least 2"
            )
        if self.temperature <= 0:
            raise BadInput(f"method.temperature={self.temperature} must be above 0")
        super().check(task, clients)

    def client_init(self, client: Client) -> None:
        super().client_init(client)
        seed, width = client.task.seed, client.task.feature_dim
        client.add("receiver", build(lambda: Receiver(width, self.tokens), seeds.generator(seed, "receiver")))
        client.add("transmitter", build(lambda: Transmitter(width, self.tokens), seeds.generator(seed, "transmitter")))

    def client_round(self, client: Client, rnd: Round) -> Upload:
        metrics = self.inject(client, rnd) | self.distil(client, rnd)
        return Upload(self.pack(client), metrics)

    def client_passes(self, task: Task, client: ClientInfo) -> dict[str, Passes]:
        own, more = task.epochs, self.distillation_epochs
        return {
            "backbone": Passes(own + more, own),
            "messenger": Passes(own + more, more),
            "receiver": Passes(own, own),
            "transmitter": Passes(more, more),
        }

    def client_models(self, client: Client) -> dict[str, Predictor]:
        """The messenger predicts through the transmitter, which also uses the backbone's feature."""
        return {"transmitted": lambda x: self.transmit(client, client.backbone(x), x)}

    def transmit(self, client: Client, local: Output, x: Tensor) -> Tensor:
        messenger = self.network(client)
        logits: Tensor = messenger.head(client.modules["transmitter"](local.feature, messenger.body(x)[-1]))
        return logits

    def inject(self, client: Client, rnd: Round) -> dict[str, float]:
        """Train backbone and receiver. Gradients flow through the messenger's frozen head without updating it."""
        messenger = self.network(client).eval()
        weight, bias = messenger.head.weight.detach(), messenger.head.bias.detach()
        receiver = client.modules["receiver"]

        def terms(out: Output, x: Tensor, y: Tensor) -> Terms:
            with torch.no_grad():
                feature = messenger.body(x)[-1]
            logits = F.linear(receiver(out.feature, feature), weight, bias)
            return {
                "ce": self.lambda_inject_local * supervise(client, out, y),
                "messenger_ce": self.lambda_inject_messenger * losses.cross_entropy(logits, y),
            }

        optimiser, kind = client.task.optimiser, client.info.kind
        step = Step(self.receiver_lr_factor * rnd.cosine(optimiser.rate(kind)), optimiser.decay(kind))
        return fit_backbone(client, rnd, "inject", terms, beside={"receiver": step})

    def distil(self, client: Client, rnd: Round) -> dict[str, float]:
        """Train messenger and transmitter on the labels and the frozen backbone's predictions."""
        backbone = client.backbone.eval()

        def terms(x: Tensor, y: Tensor) -> Terms:
            with torch.no_grad():
                local: Output = backbone(x)
            logits = self.transmit(client, local, x)
            return {
                "ce": self.lambda_distil_label * losses.cross_entropy(logits, y),
                "kd": self.lambda_distil_kd * losses.distillation(logits, local.logits, self.temperature),
            }

        own = self.step(rnd)
        steps = {"messenger": own, "transmitter": own._replace(lr=self.transmitter_lr_factor * own.lr)}
        return fit(client, rnd, "distil", steps, terms, self.distillation_epochs)
