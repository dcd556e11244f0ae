"""The local training loop of all methods and models."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from asfedbridge.core import losses
from asfedbridge.core.client import Client
from asfedbridge.core.errors import Diverged
from asfedbridge.core.optimiser import MOMENTUM, SGD
from asfedbridge.core.payload import Payload
from asfedbridge.core.task import Output, Round

SECOND_MOMENT_DECAY = 0.999  # AdamW's second beta
Terms = dict[str, Tensor]  # weighted loss terms by name; their sum is minimised


class Bounded(nn.Module, ABC):
    """A layer whose own tensors are clipped to bounds after every step and have no weight decay."""

    @abstractmethod
    def bound(self) -> None:
        """Clip the tensors in place; called under ``no_grad``."""


class Step(NamedTuple):
    """Optimiser settings of a module."""

    lr: float
    weight_decay: float


def fit(
    client: Client,
    rnd: Round,
    stage: str,
    steps: Mapping[str, Step],
    terms: Callable[[Tensor, Tensor], Terms],
    epochs: int,
) -> dict[str, float]:
    """Train the named modules of a client together; return each term's mean over the last epoch.

    The optimiser continues from ``client.momentum[module]``. Deleting that entry resets it.
    """
    for module in steps:
        client.modules[module].train()
    optimiser = _restore(client, steps)
    bounded = [layer for module in steps for layer in client.layers(module) if isinstance(layer, Bounded)]
    generator = client.generator(rnd, stage)
    scaler = torch.amp.GradScaler(client.device.type, enabled=client.task.precision == "fp16")
    means: dict[str, float] = {}
    for epoch in range(epochs):
        sums: dict[str, float] = {}
        for x, y in client.batches(generator):
            with client.autocast():
                parts = terms(x, y)
            loss = torch.stack(list(parts.values())).sum()
            if not torch.isfinite(loss):
                bad = next((name for name, part in parts.items() if not torch.isfinite(part)), "sum")
                raise Diverged(
                    f"{client.info.label}, round {rnd.index}, {stage}: loss '{bad}' is {parts.get(bad, loss).item()} "
                    f"in epoch {epoch}; lower the learning rate"
                )
            optimiser.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            scaler.unscale_(optimiser)
            _clip(client, steps)
            scaler.step(optimiser)  # skips the step if scaling is on and a gradient overflowed
            scaler.update()
            with torch.no_grad():
                for layer in bounded:
                    layer.bound()
            for name, part in parts.items():
                sums[name] = sums.get(name, 0.0) + part.item() * len(y)
        means = {name: total / client.shard.train_size for name, total in sums.items()}
        if client.watch:
            client.watch(stage, epoch, epochs, means)
    _keep(client, steps, optimiser)
    return {f"{stage}.{name}": value for name, value in means.items()}


def supervise(client: Client, output: Output, y: Tensor) -> Tensor:
    """The supervised loss of methods without one of their own: cross-entropy, or TET for SNNs (``snn_loss``)."""
    if client.info.kind == "snn" and client.task.snn_loss == "tet":
        return losses.tet(output.logits_TBC, y, weight=1e-4)
    return losses.cross_entropy(output.logits, y)


def fit_backbone(
    client: Client,
    rnd: Round,
    stage: str,
    terms: Callable[[Output, Tensor, Tensor], Terms],
    beside: Mapping[str, Step] | None = None,
) -> dict[str, float]:
    """Train the backbone for the task's epochs with the learning rate and weight decay of its kind.

    Modules in ``beside`` are trained in the same steps, each with its own settings.
    """
    task, kind = client.task, client.info.kind
    step = Step(rnd.cosine(task.optimiser.rate(kind)), task.optimiser.decay(kind))
    steps = {"backbone": step, **(beside or {})}
    return fit(client, rnd, stage, steps, lambda x, y: terms(client.backbone(x), x, y), task.epochs)


def _restore(client: Client, steps: Mapping[str, Step]) -> torch.optim.Optimizer:
    groups = []
    for module, step in steps.items():
        tensors = list(client.modules[module].parameters())
        layers = (layer for layer in client.layers(module) if isinstance(layer, Bounded))
        bounded = {id(p) for layer in layers for p in layer.parameters(recurse=False)}
        # One-dimensional tensors are biases, normalisation parameters, port scales and step sizes: no weight decay.
        decayed = {id(p) for p in tensors if p.dim() > 1} - bounded
        groups += [
            {"params": [p for p in tensors if id(p) in decayed], "lr": step.lr, "weight_decay": step.weight_decay},
            {"params": [p for p in tensors if id(p) not in decayed], "lr": step.lr, "weight_decay": 0.0},
        ]
    settings = client.task.optimiser
    optimiser: torch.optim.Optimizer
    if settings.name == "adamw":
        optimiser = torch.optim.AdamW(groups, betas=(settings.momentum, SECOND_MOMENT_DECAY))
    else:
        optimiser = SGD(groups, settings.momentum)
    for module in steps:
        named = dict(client.modules[module].named_parameters())
        for name in client.momentum.get(module, {}):
            optimiser.state[named[name]] |= {key: kept[module][name] for key, kept in _memory(client).items()}
    return optimiser


def _memory(client: Client) -> dict[str, dict[str, Payload]]:
    """The client's copies of torch's optimiser state, by torch's key."""
    if client.task.optimiser.name == "sgd":
        return {MOMENTUM: client.momentum}
    return {"exp_avg": client.momentum, "exp_avg_sq": client.second_moment, "step": client.steps}


def _clip(client: Client, steps: Mapping[str, Step]) -> None:
    """Clip each module separately, so that large gradients of one do not slow down the others."""
    if limit := client.task.optimiser.clip:
        for module in steps:
            nn.utils.clip_grad_norm_(client.modules[module].parameters(), limit)


def _keep(client: Client, steps: Mapping[str, Step], optimiser: torch.optim.Optimizer) -> None:
    for module in steps:
        for key, kept in _memory(client).items():
            kept[module] = {
                name: buffer
                for name, p in client.modules[module].named_parameters()
                if (buffer := optimiser.state[p].get(key)) is not None
            }
