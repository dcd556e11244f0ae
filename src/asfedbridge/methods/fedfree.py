"""FedFree (Du et al., NeurIPS 2025): reverse layer-wise transfer and knowledge gain entropy.

Exchanged: up, weight and bias of the k convolutional or linear layers that changed most; down, at most one layer of
the server's global model.
Client: inserts the received layer; trains on its labels for the task's epochs; uploads the layers of largest L2 change.
Server: trains each global layer on the responses of the uploads that map to it, for N(0, 1) inputs. A client gets back
the uploaded layer whose global counterpart gains most in entropy, if any gains.
Choices, where the paper is silent or contradicts itself, most of them fields:
- norms are not normalised by size. Layers map by type and relative depth: one to one if networks are equally deep;
- the global model is the fleet's widest ResNet-18. A global layer starts as the mean of its first uploads;
- with `aggregation` other than mean, that rule combines the uploads for a global layer into one teacher. It protects
  layers that at least three clients upload;
- the loss is summed over output channels; 50 steps per round; pseudo inputs have the kernel's size: one response each;
- entropy is that of the weights, over each tensor's own range; uploads are compared with the transferred layer;
- step sizes of a QNN stay on the client, also when a layer is inserted, and are learned again;
- with `mismatch=prefix`, entries beyond the common prefix are not changed, on either side;
- a client that missed rounds gets the current version of the layer that it was due;
- momentum of an overwritten layer is reset; tables show clients with their layer inserted (point `received`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from asfedbridge.core import payload, responses, seeds
from asfedbridge.core.client import Client
from asfedbridge.core.compression import encoded_bytes
from asfedbridge.core.errors import BadInput, GuardError
from asfedbridge.core.method import register_method
from asfedbridge.core.payload import Payload, Shapes
from asfedbridge.core.task import ClientInfo, Point, Round, Task, Upload, first_of_each
from asfedbridge.core.training import fit_backbone, supervise
from asfedbridge.methods.aggregating import Aggregating
from asfedbridge.models.layers import by_layer, layer_shapes, match_by_depth, overwrite_prefix
from asfedbridge.models.zoo import build_backbone, outline_backbone


@register_method("fedfree")
@dataclass(frozen=True)
class FedFree(Aggregating):
    reports: ClassVar[Point] = "received"
    partial: ClassVar[bool] = True
    mismatch: Literal["refuse", "prefix"] = "refuse"  # prefix: layers of different shapes exchange their first entries
    reduction: Literal["channels", "mean"] = "channels"  # sum or mean of squared responses over channels
    histogram: Literal["own", "common"] = "own"  # range of the histograms: each tensor's own, or a common one
    first_upload: bool = True  # a global layer starts as the mean of its first uploads
    k: int = 2  # number of layers that a client uploads
    global_width: float = 0.0  # width of the global model; 0: the fleet's widest
    server_lr: float = 0.01  # learning rate of global layers
    server_steps: int = 50  # server steps per round and global layer
    pseudo_batch: int = 64  # noise inputs per server step
    pseudo_positions: int = 1  # responses along each side of a noise input
    bins: int = 256  # bins of the entropy histogram

    def check(self, task: Task, clients: Sequence[ClientInfo]) -> None:
        super().check(task, clients)
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
                    f"method=fedfree: {client.label} has {alone[0]}, but the global model has no layer of its type; "
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

    def check_upload(self, task: Task, client: ClientInfo, up: Payload, rnd: Round) -> None:
        layers, declared = by_layer(up), by_layer(self.uploads(task, client))
        if not 1 <= len(layers) <= self.k:
            raise GuardError(f"has {len(layers)} layers; expected 1 to {self.k}")
        for layer, parts in layers.items():
            if parts.keys() != declared[layer].keys():
                raise GuardError(f"layer '{layer}' is incomplete: has only {', '.join(sorted(parts))}")

    def compared_with(self, state: Payload, client: ClientInfo, rnd: Round) -> Payload:
        return {name: t for name, t in state.items() if name.startswith("global/")}

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

    # server side; state: global (the model), taught (which layers had uploads), map (client to global layers), owed (a
    # client's next download), kept (the client's upload of that layer)

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
            for layer in sorted(layers):
                other = read(state[f"map/{client.model}/{layer}"])
                uploads.setdefault(other, []).append((client, layer, layers[layer]))
            for name in ("owed/{}", "kept/{}.weight", "kept/{}.bias"):  # was sent at the start of this round
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
                if self.mismatch == "prefix":  # for its shape and the entries beyond the prefix
                    state |= {f"kept/{number}.{part}": t.clone() for part, t in own.items()}
        return state

    def transfer(self, state: Payload, name: str, teachers: Sequence[Payload], rnd: Round) -> Payload:
        """Train a global layer on this round's uploads for it."""
        layer = layer_in(state, f"global/{name}")
        mean = self.combine([reshaped(teacher, layer) for teacher in teachers], [1.0] * len(teachers))
        if self.first_upload and not state[f"taught/{name}"]:
            return mean
        draws = seeds.generator(int(state["seed"]), "server", "round", rnd.index, name)
        noise = (
            responses.noise_rows(layer["weight"], self.pseudo_batch, self.pseudo_positions, draws)
            for _ in range(self.server_steps)
        )
        return responses.align(layer, mean, noise, self.server_lr, self.reduction == "mean")


def write(text: str) -> Tensor:
    """Encode text as a tensor, because the server state is a payload."""
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


def read(tensor: Tensor) -> str:
    return bytes(tensor.tolist()).decode()


def layer_in(state: Payload, name: str) -> Payload:
    return {part: state[f"{name}.{part}"] for part in ("weight", "bias") if f"{name}.{part}" in state}


def reshaped(source: Payload, target: Payload) -> Payload:
    """A copy of ``target`` whose first entries are overwritten by those of ``source``."""
    return {part: overwrite_prefix(t, source[part]) if part in source else t for part, t in target.items()}


def histogram_entropy(x: Tensor, bins: int, low: float, high: float) -> float:
    """Shannon entropy in nats over ``bins`` equal bins from ``low`` to ``high``; 0 if ``low == high``."""
    if low == high:
        return 0.0
    counts = torch.histc(x.flatten(), bins, low, high).double()
    share = counts[counts > 0] / counts.sum()
    return -(share * share.log()).sum().item()


def entropy_gain(new: Tensor, old: Tensor, bins: int, common: bool) -> float:
    """Entropy of ``new`` minus entropy of ``old``, each over its own range or both over their ``common`` range."""
    ranges = [(x.min().item(), x.max().item()) for x in (new, old)]
    if common:
        ranges = [(min(low for low, _ in ranges), max(high for _, high in ranges))] * 2
    return histogram_entropy(new, bins, *ranges[0]) - histogram_entropy(old, bins, *ranges[1])
