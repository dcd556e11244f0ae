"""FedProto (Tan et al., AAAI 2022): clients share the mean feature of each of their classes.

Exchanged: one vector per class; up those of the client's classes, down all known ones. Class counts are uploaded too
if `proto_weight` is not "uniform".
Client: CE + lambda MSE(feature, prototype of the label) for the task's epochs, then one pass for its own prototypes.
Server: class-wise mean over the clients that have the class (or another `aggregation`, also class-wise).
Choices, following the authors' code:
- the MSE is a mean over examples and dimensions; examples of classes without a prototype contribute zero;
- clients have equal weight; size weights are normalised to sum 1 (the printed formula would shrink prototypes);
- deviation: prototypes come from a separate pass after training (eval mode, no augmentation), as the costs in
  AS-FedBridge's table imply; the head predicts, and the nearest prototype is only recorded as a second predictor;
- lambda = 1, and a class without uploads in a round keeps its last prototype: neither is specified anywhere.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asfedbridge.core import aggregation, payload
from asfedbridge.core.aggregation import Weights
from asfedbridge.core.client import Client, Predictor
from asfedbridge.core.errors import GuardError
from asfedbridge.core.method import Column, Passes, register_method
from asfedbridge.core.payload import Payload, Shapes
from asfedbridge.core.task import ClientInfo, Output, Round, Task, Upload
from asfedbridge.core.training import Terms, fit_backbone, supervise
from asfedbridge.methods.aggregating import Aggregating, Weighing

COUNT_TOLERANCE = 1e-3  # relative; counts may have been rounded by compression
UNKNOWN_LOGIT = -1e9  # for classes without a prototype: ranked last, with a finite loss


class Prototypes(nn.Module):
    """The global prototypes that a client has received."""

    centre_CD: Tensor
    known_C: Tensor

    def __init__(self, classes: int, dimension: int) -> None:
        super().__init__()
        self.register_buffer("centre_CD", torch.zeros(classes, dimension))
        self.register_buffer("known_C", torch.zeros(classes, dtype=torch.bool))

    def learn(self, label: int, centre_D: Tensor) -> None:
        self.centre_CD[label] = centre_D
        self.known_C[label] = True

    def pull(self, feature_BD: Tensor, y_B: Tensor) -> Tensor:
        """Mean squared difference to the prototype of the label; zero for labels without a prototype."""
        known_B1 = self.known_C[y_B].unsqueeze(1)
        return F.mse_loss(feature_BD, torch.where(known_B1, self.centre_CD[y_B], feature_BD.detach()))

    def forward(self, feature_BD: Tensor) -> Tensor:
        """Logits: negative distances to the prototypes."""
        return torch.where(self.known_C, -distance(feature_BD, self.centre_CD), UNKNOWN_LOGIT)


def distance(a_ND: Tensor, b_MD: Tensor) -> Tensor:
    """Euclidean distances [N, M]. The gradient of distance 0 is 0; a plain square root would give NaN."""
    return torch.cdist(a_ND, b_MD, compute_mode="donot_use_mm_for_euclid_dist")


def prototypes_of(client: Client) -> Prototypes:
    prototypes = client.modules["prototypes"]
    assert isinstance(prototypes, Prototypes)
    return prototypes


def mean_features(client: Client) -> dict[int, tuple[Tensor, int]]:
    """The mean feature and the number of examples of each class in the shard."""
    task, backbone = client.task, client.backbone.eval()
    sum_CD = torch.zeros(task.classes, task.feature_dim, dtype=torch.float64)
    count_C = torch.zeros(task.classes, dtype=torch.int64)
    with torch.inference_mode(), client.autocast():
        for x, y in client.shard.train_batches_plain(task.batch_size):
            out: Output = backbone(client.place(x))
            sum_CD.index_add_(0, y, out.feature.cpu().double())  # on the CPU, where the order of addition is fixed
            count_C += torch.bincount(y, minlength=task.classes)
    counts = {label: count for label, count in enumerate(count_C.tolist()) if count}
    return {label: ((sum_CD[label] / count).float(), count) for label, count in counts.items()}


class PrototypeMethod(Aggregating):
    """Client side and payloads of prototype methods. Subclasses define how the server merges prototypes."""

    partial: ClassVar[bool] = True
    lambda_proto: float

    @classmethod
    def columns(cls) -> tuple[Column, ...]:
        return (Column("nearest", "nearest", "nearest", "nearest prototype", point=None, averaged=False),)

    def uploads(self, task: Task, client: ClientInfo) -> Shapes:
        return self.downloads(task, client)

    def downloads(self, task: Task, client: ClientInfo) -> Shapes:
        return {f"class/{label}": (task.feature_dim,) for label in range(task.classes)}

    def check_upload(self, task: Task, client: ClientInfo, up: Payload, rnd: Round) -> None:
        if not any(name.startswith("class/") for name in up):
            raise GuardError("has no prototype; expected at least one")

    def client_init(self, client: Client) -> None:
        client.add("prototypes", Prototypes(client.task.classes, client.task.feature_dim))

    def client_receive(self, client: Client, down: Payload, rnd: Round) -> None:
        for name, centre_D in down.items():
            prototypes_of(client).learn(int(name.removeprefix("class/")), centre_D)

    def client_round(self, client: Client, rnd: Round) -> Upload:
        taught = bool(prototypes_of(client).known_C.any())  # read here: a step must not wait for the device
        metrics = fit_backbone(client, rnd, "local", lambda out, x, y: self.terms(client, out, y, taught))
        return Upload(self.pack(mean_features(client)), metrics)

    def client_passes(self, task: Task, client: ClientInfo) -> dict[str, Passes]:
        return {"backbone": Passes(task.epochs + 1, task.epochs)}

    def terms(self, client: Client, out: Output, y: Tensor, taught: bool) -> Terms:
        parts = {"ce": supervise(client, out, y)}
        if taught:
            parts["proto"] = self.lambda_proto * prototypes_of(client).pull(out.feature, y)
        return parts

    def pack(self, owned: dict[int, tuple[Tensor, int]]) -> Payload:
        """The upload."""
        return {f"class/{label}": mean_D for label, (mean_D, _) in owned.items()}

    def client_models(self, client: Client) -> dict[str, Predictor]:
        prototypes = prototypes_of(client)
        if not prototypes.known_C.any():
            return {}
        return {"nearest": lambda x: prototypes(client.backbone(x).feature)}

    def server_send(self, state: Payload, client: ClientInfo, rnd: Round) -> Payload:
        return {name: tensor for name, tensor in state.items() if name.startswith("class/")}


@register_method("fedproto")
@dataclass(frozen=True)
class FedProto(PrototypeMethod, Weighing):
    # Chosen from three settings on a validation split of the training images (docs/results.md).
    recipes: ClassVar[Mapping[str, Mapping[str, Any]]] = {"cpu": {"lambda_proto": 10.0}}
    proto_weight: Weights = "uniform"  # client weights in a class mean: equal, by class count, or by capped count
    lambda_proto: float = 1.0  # weight of the distance to the received prototypes

    def uploads(self, task: Task, client: ClientInfo) -> Shapes:
        shapes = super().uploads(task, client)
        if self.proto_weight != "uniform":
            shapes |= {f"count/{label}": () for label in range(task.classes)}
        return shapes

    def check_upload(self, task: Task, client: ClientInfo, up: Payload, rnd: Round) -> None:
        super().check_upload(task, client, up, rnd)
        if self.proto_weight == "uniform":
            return
        owned, counted = ({n.partition("/")[2] for n in up if n.startswith(part)} for part in ("class/", "count/"))
        if owned != counted:
            raise GuardError(f"class {min(owned ^ counted)} needs both a prototype and a count")
        counts = {label: up[f"count/{label}"].item() for label in sorted(owned)}
        for label, count in counts.items():
            if count < 1 - COUNT_TOLERANCE or abs(count - round(count)) > COUNT_TOLERANCE * count:
                raise GuardError(f"class {label} has count {count:g}; expected a positive integer")
        if client.train_size and sum(counts.values()) > (1 + COUNT_TOLERANCE) * client.train_size:
            raise GuardError(f"counts add up to {sum(counts.values()):g}; the client has {client.train_size} examples")

    def pack(self, owned: dict[int, tuple[Tensor, int]]) -> Payload:
        up = super().pack(owned)
        if self.proto_weight != "uniform":
            up |= {f"count/{label}": torch.tensor(float(count)) for label, (_, count) in owned.items()}
        return up

    def server_round(
        self, state: Payload, clients: Sequence[ClientInfo], ups: Mapping[int, Upload], rnd: Round
    ) -> Payload:
        state, received = payload.clone(state), [ups[c.id].payload for c in clients]
        for name in sorted({name for up in received for name in up if name.startswith("class/")}):
            owners = [up for up in received if name in up]
            counts = [1.0] * len(owners)
            if self.proto_weight != "uniform":
                counts = [up[name.replace("class", "count")].item() for up in owners]
            weights = aggregation.weigh(counts, self.proto_weight, self.weight_cap)
            state |= self.combine([{name: up[name]} for up in owners], weights)
        return state
