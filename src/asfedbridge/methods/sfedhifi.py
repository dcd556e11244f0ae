"""SFedHIFI (Tao et al., AAAI 2026): composed networks of several widths, fused by their singular values.

Exchanged: every trainable tensor of a composed ResNet-18 (`models.composed`), both ways; an SNN also uploads the firing
rates at its layers' inputs.
Client: starts from the aggregate; trains on its labels for the task's epochs, with an orthogonality loss on the banks;
an SNN then measures its firing rates.
Server: within a kind, banks are averaged over all clients and all other tensors over clients of one width. In the first
rounds, the coefficients of one layer get common singular values across widths.
Choices:
- Tucker decomposition of a matrix is implemented as its SVD, so signs cannot cancel in the mean of the cores;
- the layer to fuse is chosen by rates on training images after local training (the authors use test images). For ANN
  clients it is the last convolution. Only widths present in the round are fused; a single width is not changed;
- projection and classifier are averaged within a width; there is no neuron after the classifier;
- an SNN is supervised with TET at the authors' weight. `snn_loss=ce` uses the mean output, `snn_loss=task` follows the
  run's `snn_loss` like the other baselines;
- with `aggregation` other than mean, that rule replaces both means: for banks, and for all other tensors;
- BatchNorm statistics stay local (`bn_buffers`);
- momentum of the overwritten backbone is reset; tables show the downloaded aggregate (point `received`).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from asfedbridge.core import losses, payload
from asfedbridge.core.aggregation import Weights
from asfedbridge.core.client import Client
from asfedbridge.core.errors import BadInput
from asfedbridge.core.method import Passes, register_method
from asfedbridge.core.payload import Payload, Shapes
from asfedbridge.core.task import ClientInfo, Output, Point, Round, Task, Upload, first_of_each
from asfedbridge.core.training import Terms, fit_backbone, supervise
from asfedbridge.methods.aggregating import Weighing
from asfedbridge.models.composed import CONVOLUTIONS, ComposedResNet18, block_sizes, build_composed, outline_composed

MAX_INPUT = 1e6  # mean input of a convolution; at most 1 if all inputs are spikes


@register_method("sfedhifi")
@dataclass(frozen=True)
class SFedHIFI(Weighing):
    reports: ClassVar[Point] = "received"
    continues: ClassVar[bool] = True
    family: ClassVar[str] = "resnet18"
    twin_start: ClassVar[bool] = False  # a twin has no firing rates
    recipes: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "short": {"snn_loss": "ce"},  # TET learns more slowly at first
        "smoke": {"bank_inputs": 0.0625},  # so that the banks divide the channels of its narrow models
    }
    bn_buffers: Literal["local", "averaged"] = "local"  # running statistics of BatchNorm: private, or averaged
    weights: Weights = "uniform"  # client weights in a mean: equal, by shard size, or capped; widths have equal weight
    snn_loss: Literal["tet", "ce", "task"] = "tet"  # SNN loss: TET, CE of the mean logits, or the task's snn_loss
    lambda_orthogonal: float = 10.0  # weight of the orthogonality loss of banks
    lambda_tet: float = 1e-3  # weight of the regulariser in TET
    fusion_share: float = 0.45  # fraction of rounds, from the first on, in which widths are fused
    fusion_rank: float = 0.25  # rank kept, as a fraction of the smallest side of the coefficients
    bank_inputs: float = 0.125  # input channels of a bank, as a fraction of its block's at width 1
    bank_outputs: float = 0.25  # output channels of a bank, as a fraction of its block's at width 1

    def check(self, task: Task, clients: Sequence[ClientInfo]) -> None:
        super().check(task, clients)
        for name in ("fusion_rank", "bank_inputs", "bank_outputs"):
            if not 0 < getattr(self, name) <= 1:
                raise BadInput(f"method.{name}={getattr(self, name)} is out of range; use more than 0, up to 1")
        if self.fusion_share > 1:
            raise BadInput(f"method.fusion_share={self.fusion_share} is out of range; use 0 to 1")
        if task.twin_rounds and any(c.kind == "snn" for c in clients):
            raise BadInput(f"twin_rounds={task.twin_rounds} with method=sfedhifi: a twin has no firing rates; use 0")
        for client in first_of_each(clients):
            if client.model != self.family or client.kind not in ("ann", "snn"):
                raise BadInput(
                    f"method=sfedhifi needs resnet18 clients of kind ann or snn, not {client.label}; change fleet"
                )
            for inputs, outputs, _, (_, channels) in block_sizes(client.width, self.bank_inputs, self.bank_outputs):
                if inputs % channels or outputs % channels:
                    raise BadInput(
                        f"method=sfedhifi: in fleet, {client.label} has a block of {inputs} to {outputs} channels, not "
                        f"multiples of its bank's {channels}; use widths that are multiples of {self.bank_inputs}, or "
                        f"a smaller method.bank_inputs={self.bank_inputs}"
                    )

    def uploads(self, task: Task, client: ClientInfo) -> Shapes:
        shapes = self.downloads(task, client)
        return shapes | {"firing": (2, len(CONVOLUTIONS))} if self.fires(client) else shapes

    def downloads(self, task: Task, client: ClientInfo) -> Shapes:
        outline = outline_composed(task, client, self.bank_inputs, self.bank_outputs)
        return payload.shapes(outline, self.bn_buffers == "averaged")

    def check_upload(self, task: Task, client: ClientInfo, up: Payload, rnd: Round) -> None:
        super().check_upload(task, client, up, rnd)
        if "firing" in up:
            payload.check_range({"firing, shares of batches": up["firing"][1]}, "", 0.0, 1.01)
            payload.check_range({"firing, rates": up["firing"][0]}, "", -MAX_INPUT, MAX_INPUT)

    def fires(self, client: ClientInfo) -> bool:
        """Whether the client uploads its firing rates."""
        return client.kind == "snn" and self.fusion_share > 0

    def fuses(self, rnd: Round) -> bool:
        return rnd.index < self.fusion_share * rnd.total

    # client side

    def client_init(self, client: Client) -> None:
        client.add("backbone", build_composed(client.task, client.info, self.bank_inputs, self.bank_outputs))

    def client_receive(self, client: Client, down: Payload, rnd: Round) -> None:
        payload.load(client.backbone, down)
        client.momentum.pop("backbone", None)

    def client_round(self, client: Client, rnd: Round) -> Upload:
        model = client.backbone
        assert isinstance(model, ComposedResNet18)
        spiking = client.info.kind == "snn"

        def terms(out: Output, x: Tensor, y: Tensor) -> Terms:
            if self.snn_loss == "tet" and spiking:
                parts = {"tet": losses.tet(out.logits_TBC, y, self.lambda_tet)}
            elif self.snn_loss == "task":
                parts = {"ce": supervise(client, out, y)}
            else:
                parts = {"ce": losses.cross_entropy(out.logits, y)}
            return parts | {"orthogonal": self.lambda_orthogonal * orthogonality(model.banks())}

        metrics = fit_backbone(client, rnd, "local", terms)
        up = payload.select(model, self.bn_buffers == "averaged")
        if self.fires(client.info):
            up["firing"] = measure_firing(client, model) if self.fuses(rnd) else torch.zeros(2, len(CONVOLUTIONS))
        return Upload(up, metrics)

    def client_passes(self, task: Task, client: ClientInfo) -> dict[str, Passes]:
        measuring = 1 if self.fires(client) else 0  # in rounds with fusion
        return {"backbone": Passes(task.epochs + measuring, task.epochs)}

    # server side: "KIND/banks/NAME" is shared by all widths of a kind, "KIND/WIDTH/NAME" belongs to one

    def server_init(self, task: Task, clients: Sequence[ClientInfo]) -> Payload:
        state: Payload = {}
        for client in {(c.kind, c.width): c for c in reversed(clients)}.values():
            model = build_composed(task, client, self.bank_inputs, self.bank_outputs)
            for name, tensor in payload.select(model, self.bn_buffers == "averaged").items():
                state[f"{client.kind}/{'banks' if is_bank(name) else client.width}/{name}"] = tensor
        return state

    def server_send(self, state: Payload, client: ClientInfo, rnd: Round) -> Payload:
        own = (f"{client.kind}/banks/", f"{client.kind}/{client.width}/")
        return {name.rpartition("/")[2]: tensor for name, tensor in state.items() if name.startswith(own)}

    def server_round(
        self, state: Payload, clients: Sequence[ClientInfo], ups: Mapping[int, Upload], rnd: Round
    ) -> Payload:
        state, weights = dict(state), self.weigh(clients, self.weights)
        for kind in sorted({c.kind for c in clients}):
            members = [c for c in clients if c.kind == kind]
            means = {
                width: self.mean([c for c in members if c.width == width], ups, weights, banks=False)
                for width in sorted({c.width for c in members})
            }
            if self.fuses(rnd) and len(means) > 1:
                firing = [mean["firing"] for mean in means.values() if "firing" in mean]
                name = f"{CONVOLUTIONS[choose_layer(firing) if firing else -1]}.coefficient"
                fused = fuse([mean[name] for mean in means.values()], self.fusion_rank)
                means = {width: mean | {name: t} for (width, mean), t in zip(means.items(), fused, strict=True)}
            state |= {f"{kind}/banks/{name}": t for name, t in self.mean(members, ups, weights, banks=True).items()}
            for width, mean in means.items():
                state |= {f"{kind}/{width}/{name}": t for name, t in mean.items() if name != "firing"}
        return state

    def mean(
        self, clients: Sequence[ClientInfo], ups: Mapping[int, Upload], weights: Mapping[int, float], banks: bool
    ) -> Payload:
        """Aggregate the uploads of some clients: the banks, or all other tensors."""
        parts = [{n: t for n, t in ups[c.id].payload.items() if is_bank(n) == banks} for c in clients]
        return self.combine(parts, [weights[c.id] for c in clients])


def is_bank(name: str) -> bool:
    return name.endswith(".bank")


def orthogonality(banks: Sequence[Tensor]) -> Tensor:
    """Sum over banks of the mean squared entry of B B' - I, one row of B per kernel."""
    rows = [bank.flatten(1) for bank in banks]
    return torch.stack([(b @ b.T - torch.eye(len(b), device=b.device)).square().mean() for b in rows]).sum()


@torch.no_grad()
def measure_firing(client: Client, model: ComposedResNet18) -> Tensor:
    """For each convolution: its mean input over the training images, and the fraction of batches it had the highest."""
    model.eval()
    rates, wins, batches = torch.zeros(len(CONVOLUTIONS)), torch.zeros(len(CONVOLUTIONS)), 0
    for x, y in client.shard.train_batches_plain(client.task.batch_size):
        with client.autocast():
            batch = model.input_rates(client.place(x)).float().cpu()
        rates += batch * len(y) / client.shard.train_size
        wins[batch.argmax()] += 1
        batches += 1
    return torch.stack([rates, wins / batches])


def choose_layer(firing: Sequence[Tensor]) -> int:
    """Each width votes for the layer with most wins. In a tie, the vote with the highest firing rate decides."""
    votes = [int(wins.argmax()) for _, wins in firing]
    (first, most), *others = Counter(votes).most_common()
    if others and others[0][1] == most:
        return max(zip(votes, firing, strict=True), key=lambda vote: vote[1][0, vote[0]].item())[0]
    return first


def fuse(matrices: Sequence[Tensor], share: float) -> list[Tensor]:
    """Replace the leading singular values of all matrices by their mean and drop the others.

    The rank kept is ``share`` of the smallest side of all matrices. This is a Tucker decomposition with averaged cores:
    the core of a matrix is diagonal, and singular values are not negative, so they cannot cancel in the mean.
    """
    rank = max(1, round(share * min(min(m.shape) for m in matrices)))
    parts = [torch.linalg.svd(m, full_matrices=False) for m in matrices]
    mean = torch.stack([values[:rank] for _, values, _ in parts]).mean(dim=0)
    return [(u[:, :rank] * mean) @ v[:rank] for u, _, v in parts]
