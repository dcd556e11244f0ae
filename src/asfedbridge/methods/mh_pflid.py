"""MH-pFLID (Xie et al., ICML 2024): a messenger carries knowledge between private models that need not be alike.

Exchanged: the messenger's body, both ways.
Client: injection (labels and, through the private receiver, the frozen messenger teach the backbone) for the task's
epochs, then distillation (labels and the frozen backbone teach messenger and private transmitter) for one.
Server: mean of the messengers by shard size.
Choices:
- deviation, as the AS-FedBridge paper adapts it: the messenger is the Bridge (architecture, size, start, rate, decay,
  momentum); SGD, not Adam; the task's epochs of injection and one more of distillation, not shares of one budget;
- an SNN shows its mean logits and mean feature;
- the messenger's head stays private, as the paper's 3.93 MB says (`personal_head=False`: the original rule, 4.02 MB);
- BatchNorm statistics stay local; weights of the losses from a re-implementation; KL(backbone || messenger) at
  temperature 1;
- tokens of the attention are pieces of one sample's feature (8 of width 32), each mapped alike, without biases;
- the receiver learns at the backbone's rate and decay, the transmitter at the messenger's;
- the scales of the Bridge's ports are never used: without a gradient they travel as they started.
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
    lambda_inject_local: float = 0.9  # labels, by the backbone's own head
    lambda_inject_messenger: float = 0.1  # labels, by the receiver and the messenger's head
    lambda_distil_label: float = 0.9  # distillation: weight of the labels
    lambda_distil_kd: float = 0.1  # distillation: weight of the backbone's predictions
    temperature: float = 1.0  # of distillation
    distillation_epochs: int = 1  # per round
    tokens: int = 8  # into which attention splits a feature
    receiver_lr_factor: float = 1.0  # of the backbone's rate
    transmitter_lr_factor: float = 1.0  # of bridge_lr

    def check(self, task: Task, clients: Sequence[ClientInfo]) -> None:
        if self.tokens < 2 or task.feature_dim % self.tokens:
            raise BadInput(
                f"method.tokens={self.tokens} does not split feature_dim={task.feature_dim} into equal tokens; "
                f"use a divisor of {task.feature_dim} from 2 on"
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
        """The messenger answers through the transmitter, which also reads the backbone's feature."""
        return {"transmitted": lambda x: self.transmit(client, client.backbone(x), x)}

    def transmit(self, client: Client, local: Output, x: Tensor) -> Tensor:
        messenger = self.network(client)
        logits: Tensor = messenger.head(client.modules["transmitter"](local.feature, messenger.body(x)[-1]))
        return logits

    def inject(self, client: Client, rnd: Round) -> dict[str, float]:
        """Update backbone and receiver; gradients pass through the frozen messenger's head, none stays in it."""
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
        """Update messenger and transmitter from the labels and the frozen backbone."""
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
