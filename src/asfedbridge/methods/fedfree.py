"""FedFree (Du et al., NeurIPS 2025): reverse layer-wise transfer and knowledge gain entropy.

Exchanged: up, weight and bias of the k convolutional or linear layers that moved most; down, at most one layer of the
server's global model.
Client: inserts the layer it is sent; the task's epochs on its labels; picks the layers by the L2 norm of their change.
Server: draws global layers towards the uploads that map to them, by responses to N(0, 1) inputs; of its uploads, a
client gets back the layer whose global counterpart gains most in entropy, if any gains.
Choices, where the paper is silent or contradicts itself, most of them fields:
- norms are not normalised by size; layers map by type and relative depth: one to one where networks are equally deep;
- the global model is the fleet's ResNet-18 at its widest; a global layer begins as the mean of its first uploads;
- the loss is summed over output channels; 50 steps a round; pseudo inputs of the kernel's size: one response each;
- entropies are of weights, over each tensor's own range; an upload is compared with its counterpart after transfer;
- step sizes of a QNN stay with the client, also when a layer is inserted; it learns them anew;
- with `mismatch=prefix`, entries beyond the common prefix stay as they are, on both sides;
- a client that was away gets the layer it was promised, as the server has it by then;
- momentum of an overwritten layer starts anew; tables show clients with their layer inserted (point `received`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from asfedbridge.core import payload, responses, seeds
from asfedbridge.core.client import Client
from asfedbridge.core.compression import encoded_bytes
from asfedbridge.core.entropy import entropy_gain
from asfedbridge.core.errors import BadInput
from asfedbridge.core.method import Method, register_method
from asfedbridge.core.payload import GuardError, Payload, Shapes
from asfedbridge.core.task import ClientInfo, Point, Round, Task, Upload, first_of_each
from asfedbridge.core.training import fit_backbone, supervise
from asfedbridge.models.layers import by_layer, layer_shapes, match_by_depth, overwrite_prefix
from asfedbridge.models.zoo import build_backbone, outline_backbone


@register_method("fedfree")
@dataclass(frozen=True)
class FedFree(Method):
    reports: ClassVar[Point] = "received"
    partial: ClassVar[bool] = True
    mismatch: Literal["refuse", "prefix"] = "refuse"  # prefix: layers of unequal shapes exchange their first entries
    reduction: Literal["channels", "mean"] = "channels"  # of the squared response: sum over channels, or mean
    histogram: Literal["own", "common"] = "own"  # range: each tensor's own, or one for both that are compared
    first_upload: bool = True  # a global layer begins as the mean of its first uploads
    k: int = 2  # layers that a client uploads
    global_width: float = 0.0  # 0: the fleet's widest
    server_lr: float = 0.01  # of the server's learning from uploads
    server_steps: int = 50  # for each global layer
    pseudo_batch: int = 64  # noise inputs of a server step
    pseudo_positions: int = 1  # responses of a pseudo input along each side
    bins: int = 256  # of the histogram whose entropy measures gain

    def check(self, task: Task, clients: Sequence[ClientInfo]) -> None:
        for name in ("k", "pseudo_batch", "pseudo_positions", "bins"):
            if getattr(self, name) < 1:
                raise BadInput(f"method.{name}={getattr(self, name)} must be at least 1")
        if self.global_width and not 0.01 <= self.global_width <= 4:
            raise BadInput(f"method.global_width={self.global_width} is out of range; use 0.01 to 4, or 0")
        target = outline_backbone(task, self.global_model(clients))
        theirs = by_layer(layer_shapes(target))
        for layer, parts in theirs.items():
            rows = self.pseudo_batch * self.pseudo_positions ** len(parts["weight"][2:])
            most = responses.largest_rate(parts["weight"], rows, self.reduction == "mean")
            if self.server_lr >= most:
                raise BadInput(
                    f"method.server_lr={self.server_lr} diverges on {layer} of shape {parts['weight']}; "
                    f"use less than {most:.2g}, or more than method.pseudo_batch={self.pseudo_batch}"
                )
        for client in first_of_each(clients):
            outline = outline_backbone(task, client)
            own = by_layer(layer_shapes(outline))
            if self.k > len(own):
                raise BadInput(f"method.k={self.k}: {client.label} has {len(own)} layers; use 1 to {len(own)}")
            pairs = match_by_depth(outline, target)
            if alone := [layer for layer in own if layer not in pairs]:
                raise BadInput(
                    f"method=fedfree: {client.label} has {alone[0]}, and the global model no layer of its type; "
                    f"add a resnet18 to the fleet, or use another method"
                )
            for layer, other in pairs.items():
                if self.mismatch == "refuse" and own[layer] != theirs[other]:
                    raise BadInput(
                        f"method=fedfree: {client.label} has {layer} of shape {own[layer]['weight']}, the global model "
                        f"{other} of {theirs[other]['weight']}; use one model and width, or set method.mismatch=prefix"
                    )

    def global_model(self, clients: Sequence[ClientInfo]) -> ClientInfo:
        widest = max(clients, key=lambda c: (c.model == "resnet18", c.width, -c.id))
        return replace(widest, width=self.global_width or widest.width)

    def uploads(self, task: Task, client: ClientInfo) -> Shapes:
        return layer_shapes(outline_backbone(task, client))

    downloads = uploads

    def largest_upload(self, task: Task, client: ClientInfo) -> int:
        layers = by_layer(self.uploads(task, client)).values()
        return sum(sorted(encoded_bytes(parts, task.compress) for parts in layers)[-self.k :])

    def largest_download(self, task: Task, client: ClientInfo) -> int:
        layers = by_layer(self.downloads(task, client)).values()
        return max(encoded_bytes(parts, task.compress) for parts in layers)

    # client side

    def client_receive(self, client: Client, down: Payload, rnd: Round) -> None:
        payload.load(client.backbone, down)
        for name in down:
            client.momentum.get("backbone", {}).pop(name, None)

    def client_round(self, client: Client, rnd: Round) -> Upload:
        tensors = {name: client.backbone.get_parameter(name) for name in layer_shapes(client.backbone)}
        before = payload.clone(tensors)
        metrics = fit_backbone(client, rnd, "local", lambda out, x, y: {"ce": supervise(client, out, y)})
        after = payload.clone(tensors)
        moved = by_layer({name: (t - before[name]).double().square().sum().item() for name, t in after.items()})
        order = sorted(moved, key=lambda layer: sum(moved[layer].values()), reverse=True)
        layers = by_layer(after)
        return Upload({f"{name}.{part}": t for name in order[: self.k] for part, t in layers[name].items()}, metrics)

    # server side: the global model, which of its layers were ever taught, who maps where, what clients are owed

    def server_init(self, task: Task, clients: Sequence[ClientInfo]) -> Payload:
        model = build_backbone(task, self.global_model(clients))
        tensors = payload.clone({name: model.get_parameter(name) for name in layer_shapes(model)})
        state = {"seed": torch.tensor(task.seed)} | {f"global/{name}": t for name, t in tensors.items()}
        state |= {f"taught/{layer}": torch.tensor(False) for layer in by_layer(tensors)}
        for client in {c.model: c for c in reversed(clients)}.values():
            for layer, other in match_by_depth(outline_backbone(task, client), model).items():
                state[f"map/{client.model}/{layer}"] = write(other)
        return state

    def server_send(self, state: Payload, client: ClientInfo, rnd: Round) -> Payload:
        if f"owed/{client.id}" not in state:
            return {}
        layer = read(state[f"owed/{client.id}"])
        new = layer_in(state, f"global/{read(state[f'map/{client.model}/{layer}'])}")
        own = layer_in(state, f"kept/{client.id}") or new
        return {f"{layer}.{part}": t for part, t in reshaped(new, own).items()}

    def server_round(
        self, state: Payload, clients: Sequence[ClientInfo], ups: Mapping[int, Upload], rnd: Round
    ) -> Payload:
        state = payload.clone(state)
        uploads: dict[str, list[tuple[ClientInfo, str, Payload]]] = {}  # by global layer
        for client in clients:
            layers = by_layer(ups[client.id].payload)
            if len(layers) > self.k or not all("weight" in parts for parts in layers.values()):
                raise GuardError(f"upload of {client.label}: {sorted(layers)} are not at most {self.k} whole layers")
            for layer in sorted(layers):
                other = read(state[f"map/{client.model}/{layer}"])
                uploads.setdefault(other, []).append((client, layer, layers[layer]))
            for name in ("owed/{}", "kept/{}.weight", "kept/{}.bias"):  # sent at the beginning of this round
                state.pop(name.format(client.id), None)
        best: dict[int, tuple[float, str, Payload]] = {c.id: (0.0, "", {}) for c in clients}
        for other in sorted(uploads):
            new = self.transfer(state, other, [parts for _, _, parts in uploads[other]], rnd)
            state |= {f"global/{other}.{part}": t for part, t in new.items()} | {f"taught/{other}": torch.tensor(True)}
            for client, layer, own in uploads[other]:
                gain = entropy_gain(new["weight"], own["weight"], self.bins, self.histogram == "common")
                if gain > best[client.id][0]:
                    best[client.id] = (gain, layer, own)
        for number, (gain, layer, own) in best.items():
            if gain > 0:
                state[f"owed/{number}"] = write(layer)
                if self.mismatch == "prefix":  # its shape, and the entries that no prefix reaches
                    state |= {f"kept/{number}.{part}": t.clone() for part, t in own.items()}
        return state

    def transfer(self, state: Payload, name: str, teachers: Sequence[Payload], rnd: Round) -> Payload:
        """A global layer after this round's uploads for it."""
        layer = layer_in(state, f"global/{name}")
        mean = payload.weighted_mean([reshaped(teacher, layer) for teacher in teachers], [1.0] * len(teachers))
        if self.first_upload and not state[f"taught/{name}"]:
            return mean
        draws = seeds.generator(int(state["seed"]), "server", "round", rnd.index, name)
        noise = (
            responses.noise_rows(layer["weight"], self.pseudo_batch, self.pseudo_positions, draws)
            for _ in range(self.server_steps)
        )
        return responses.align(layer, mean, noise, self.server_lr, self.reduction == "mean")


def write(text: str) -> Tensor:
    """Text in a server's state, which holds tensors."""
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


def read(tensor: Tensor) -> str:
    return bytes(tensor.tolist()).decode()


def layer_in(state: Payload, name: str) -> Payload:
    return {part: state[f"{name}.{part}"] for part in ("weight", "bias") if f"{name}.{part}" in state}


def reshaped(source: Payload, target: Payload) -> Payload:
    """A layer in the shapes of ``target``, which keeps its own entries where ``source`` has none."""
    return {part: overwrite_prefix(t, source[part]) if part in source else t for part, t in target.items()}
