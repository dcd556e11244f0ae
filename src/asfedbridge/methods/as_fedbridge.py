"""AS-FedBridge: pseudo-spike Bridge distillation for mixed ANN-SNN federations (the paper this project implements).

Exchanged: the Bridge's body, both ways; backbone and Bridge head stay private.
Client: extraction (the frozen Bridge teaches the backbone) for the task's epochs, then injection (the frozen backbone
teaches the Bridge) for one epoch.
Server: mean of the bodies, weighted by shard size.
Choices, where the paper leaves details open:
- loss weights change linearly over the rounds;
- low-bit clients (BNN, QNN) are treated as ANN clients, also in `direction`;
- with one `direction`, receiving clients never change the Bridge's body and upload nothing. They adapt the private part
  of their Bridge: the head is trained as in injection and BatchNorm statistics are updated. Otherwise the head of their
  teacher would stay untrained. `receivers=frozen` keeps their Bridge as received (no injection at all);
- the Bridge's optimiser state stays on the client, as in the paper's client algorithm;
- the Bridge has the ANN's weight decay; BatchNorm statistics stay local (`bn_buffers`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from asfedbridge.core import losses, pseudospike
from asfedbridge.core.client import Client, Predictor
from asfedbridge.core.errors import BadInput
from asfedbridge.core.method import Passes, register_method
from asfedbridge.core.payload import Shapes
from asfedbridge.core.schedules import Ramp
from asfedbridge.core.task import ClientInfo, Output, Round, Task, Upload
from asfedbridge.core.training import Terms, fit, fit_backbone
from asfedbridge.methods.bridge_sharing import BridgeSharing

Gate = Literal["none", "right", "confident"]


def choose(gate: Gate, student_BC: Tensor, teacher_BC: Tensor, y_B: Tensor) -> Tensor | None:
    """The images on which the distillation loss counts; None means all.

    "right": the teacher predicts the label. "confident": it gives the label a higher probability than the student.
    """
    if gate == "none":
        return None
    if gate == "right":
        return teacher_BC.argmax(dim=1) == y_B
    own, other = (
        F.log_softmax(z.detach().float(), dim=1).gather(1, y_B[:, None])[:, 0] for z in (student_BC, teacher_BC)
    )
    return other > own


@register_method("as-fedbridge")
@dataclass(frozen=True)
class ASFedBridge(BridgeSharing):
    module: ClassVar[str] = "bridge"
    fused_with: ClassVar[str] = "bridge"
    rate_ports: ClassVar[str] = "bridge"
    recipes: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "short": {"snn_loss": "ce"},  # TET learns more slowly at first
        # Chosen from three settings on a validation split of the training images (docs/results.md).
        "cpu": {"alpha_kd_ann": (2.0, 2.0), "alpha_kd_snn": (2.0, 2.0)},
        "extended": {"gate": "right"},
    }
    # ablations: each switch removes one part
    direction: Literal["both", "ann-to-snn", "snn-to-ann"] = "both"  # direction of transfer
    receivers: Literal["adapt", "frozen"] = "adapt"  # with one direction: whether receivers adapt their Bridge
    pseudo_spike: bool = True  # the complete rate branch: quantiser, rate loss and PSPR
    pspr: bool = True  # ablation: polarisation regularisation of rates (PSPR)
    quantise: bool = True  # ablation: rates rounded to multiples of 1/T
    rate_loss: bool = True  # ablation: match the Bridge's rates to the SNN's
    # the paper's parameter table
    temperature: float = 2.0  # temperature of distillation, in both directions
    alpha_kd_ann: Ramp = (0.10, 0.025)  # extraction: weight of distillation for an ANN, first and last round
    alpha_kd_snn: Ramp = (0.07, 0.025)  # the same, for an SNN
    alpha_teach: Ramp = (0.16, 0.05)  # injection: weight of distillation, first and last round
    alpha_ce: Ramp = (1.10, 0.55)  # injection: weight of the label loss, first and last round
    alpha_rate: float = 0.005  # injection: weight of the rate loss
    alpha_pspr: float = 0.10  # injection: weight of PSPR
    alpha_prox: float = 1e-4  # injection: weight of the squared distance to the received body
    gate: Gate = "none"  # images used for distillation: all, or where the Bridge is right or more confident
    snn_loss: Literal["tet", "ce"] = "tet"  # SNN loss in extraction: the paper's TET, or CE of the mean logits
    lambda_nld: float = 0.08  # strength of the logit noise for an SNN in distillation
    lambda_tet: float = 1e-4  # weight of the regulariser in TET
    pspr_threshold: float = 0.5  # V_th of PSPR
    pspr_spread: float = 1.0  # k_d of PSPR
    pspr_deviation: float = 0.05  # sigma_min of PSPR
    pspr_variance_weight: float = 1.0  # lambda_var of PSPR
    injection_epochs: int = 1  # epochs of injection per round

    def check(self, task: Task, clients: Sequence[ClientInfo]) -> None:
        if self.temperature == 0:
            raise BadInput("method.temperature=0 must be above 0")
        if self.direction != "both" and task.twin_rounds:
            raise BadInput(
                f"twin_rounds={task.twin_rounds} with method.direction={self.direction}: a twin would act as an ANN "
                f"client; use twin_rounds=0 or method.direction=both"
            )
        super().check(task, clients)

    def extracts(self, client: ClientInfo) -> bool:
        """Whether the Bridge teaches this client."""
        return self.direction == "both" or (client.kind == "snn") == (self.direction == "ann-to-snn")

    def injects(self, client: ClientInfo) -> bool:
        """Whether this client teaches the Bridge and uploads it."""
        return self.direction == "both" or (client.kind == "snn") == (self.direction == "snn-to-ann")

    def adapts(self, client: ClientInfo) -> bool:
        """Whether this client has a private part of the Bridge and adapts it to the received body."""
        statistics = self.bridge_norm == "batch" and self.bn_buffers == "local"
        return not self.injects(client) and self.receivers == "adapt" and (self.personal_head or statistics)

    def uploads(self, task: Task, client: ClientInfo) -> Shapes:
        return self.downloads(task, client) if self.injects(client) else {}

    def client_round(self, client: Client, rnd: Round) -> Upload:
        metrics = self.extract(client, rnd)
        if self.injects(client.info):
            metrics |= self.inject(client, rnd)
            return Upload(self.pack(client), metrics)
        if self.adapts(client.info):
            metrics |= self.adapt(client, rnd)
        return Upload(metrics=metrics)

    def client_passes(self, task: Task, client: ClientInfo) -> dict[str, Passes]:
        extraction = task.epochs if self.extracts(client) else 0
        injection = self.injection_epochs if self.injects(client) else 0
        adaptation = self.injection_epochs if self.adapts(client) else 0
        head = adaptation if self.personal_head else 0
        passes = {
            "backbone": Passes(task.epochs + injection + head, task.epochs),
            "bridge": Passes(extraction + injection + adaptation, injection),
        }
        return passes | ({"bridge.head": Passes(0, head)} if head else {})

    def client_models(self, client: Client) -> dict[str, Predictor]:
        return {"bridge": self.network(client)}

    def extract(self, client: Client, rnd: Round) -> dict[str, float]:
        """Train the backbone on the labels, with the frozen Bridge as teacher."""
        bridge = self.network(client).eval()
        spiking = client.info.kind == "snn"
        weight = rnd.ramp(self.alpha_kd_snn if spiking else self.alpha_kd_ann)
        noise = client.generator(rnd, "noise")

        def terms(out: Output, x: Tensor, y: Tensor) -> Terms:
            if spiking and self.snn_loss == "tet":
                parts = {"tet": losses.tet(out.logits_TBC, y, self.lambda_tet)}
            else:
                parts = {"ce": losses.cross_entropy(out.logits, y)}
            if self.extracts(client.info) and weight > 0:
                student = out.logits
                with torch.no_grad():
                    teacher = bridge(x)
                if spiking:
                    fresh = torch.randn(student.shape, generator=noise).to(student.device)
                    student = losses.smooth_with_noise(student, self.lambda_nld, fresh)
                chosen = choose(self.gate, out.logits, teacher, y)
                parts["kd"] = weight * losses.distillation(student, teacher, self.temperature, chosen)
            return parts

        return fit_backbone(client, rnd, "extract", terms)

    def inject(self, client: Client, rnd: Round) -> dict[str, float]:
        """Train the local Bridge on the labels, the frozen backbone's predictions and, for an SNN, its firing rates."""
        bridge = self.network(client)
        backbone = client.backbone.eval()
        ports = self.pseudo_spike and client.info.kind == "snn"
        start = [p.detach().clone() for p in bridge.body.parameters()]

        def terms(x: Tensor, y: Tensor) -> Terms:
            with torch.no_grad():
                teacher: Output = backbone(x)
            reading = bridge.read(x)
            parts = self.guide(reading.logits_BC, teacher, y, rnd)
            parts["prox"] = self.alpha_prox * losses.squared_distance(bridge.body.parameters(), start)
            if ports and self.rate_loss:
                rate = reading.rates[-1]
                rate = pseudospike.quantise(rate, client.info.T) if self.quantise else rate
                parts["rate"] = self.alpha_rate * pseudospike.rate_loss(rate, teacher.feature)
            if ports and self.pspr:
                parts["pspr"] = self.alpha_pspr * pseudospike.pspr(
                    reading.rates,
                    self.pspr_threshold,
                    self.pspr_spread,
                    self.pspr_deviation,
                    self.pspr_variance_weight,
                )
            return parts

        return fit(client, rnd, "inject", {"bridge": self.step(rnd)}, terms, self.injection_epochs)

    def adapt(self, client: Client, rnd: Round) -> dict[str, float]:
        """Injection for a receiver: trains the private head and updates BatchNorm statistics; the body is unchanged.

        A shared head is not trained: the next download replaces it.
        """
        bridge = self.network(client).train()
        backbone = client.backbone.eval()
        if not self.personal_head:
            order = client.generator(rnd, "adapt")
            with torch.no_grad(), client.autocast():
                for _ in range(self.injection_epochs):
                    for x, _ in client.batches(order):
                        bridge(x)
            return {}

        def terms(x: Tensor, y: Tensor) -> Terms:
            with torch.no_grad():  # without gradients the optimiser skips the body: no step, no weight decay
                teacher: Output = backbone(x)
                feature = bridge.body(x)[-1]
            return self.guide(bridge.head(feature), teacher, y, rnd)

        return fit(client, rnd, "adapt", {"bridge": self.step(rnd)}, terms, self.injection_epochs)

    def guide(self, logits_BC: Tensor, teacher: Output, y: Tensor, rnd: Round) -> Terms:
        """Losses of the Bridge's predictions: distillation from the backbone, and the labels."""
        return {
            "kd": rnd.ramp(self.alpha_teach) * losses.distillation(logits_BC, teacher.logits, self.temperature),
            "ce": rnd.ramp(self.alpha_ce) * losses.cross_entropy(logits_BC, y),
        }
