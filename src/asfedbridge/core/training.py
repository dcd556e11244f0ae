"""The local epoch loop, once for every method and every model."""

from collections.abc import Callable

import torch
from torch import Tensor

from asfedbridge.core import losses
from asfedbridge.core.errors import Diverged
from asfedbridge.core.protocol import Client, Output, Round

Terms = dict[str, Tensor]  # weighted terms of a loss by name; their sum is minimised


def fit(
    client: Client,
    rnd: Round,
    stage: str,
    module: str,
    terms: Callable[[Tensor, Tensor], Terms],
    *,
    lr: float,
    weight_decay: float,
    epochs: int,
) -> dict[str, float]:
    """Train one module of a client for some epochs; return each term's mean over the last epoch.

    Momentum goes on from ``client.momentum[module]``; a method that wants a fresh start deletes that entry.
    """
    model = client.modules[module]
    model.train()
    optimiser = _restore(client, module, lr, weight_decay)
    generator = client.generator(rnd, stage)
    means: dict[str, float] = {}
    for epoch in range(epochs):
        sums: dict[str, float] = {}
        for x, y in client.batches(generator):
            parts = terms(x, y)
            loss = torch.stack(list(parts.values())).sum()
            if not torch.isfinite(loss):
                bad = next((name for name, part in parts.items() if not torch.isfinite(part)), "sum")
                raise Diverged(
                    f"{client.info.label}, round {rnd.index}, {stage}: loss '{bad}' is {parts.get(bad, loss).item()} "
                    f"in epoch {epoch}; lower the learning rate"
                )
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            for name, part in parts.items():
                sums[name] = sums.get(name, 0.0) + part.item() * len(y)
        means = {name: total / client.shard.train_size for name, total in sums.items()}
        if client.watch:
            client.watch(stage, epoch, epochs, means)
    _keep(client, module, optimiser)
    return {f"{stage}.{name}": value for name, value in means.items()}


def supervise(client: Client, output: Output, y: Tensor) -> Tensor:
    """The plain supervised loss of methods that bring no rule of their own for SNNs (a setting of the task)."""
    if client.info.kind == "snn" and client.task.snn_loss == "tet":
        return losses.tet(output.logits_TBC, y, weight=1e-4)
    return losses.cross_entropy(output.logits, y)


def fit_backbone(
    client: Client, rnd: Round, stage: str, terms: Callable[[Output, Tensor, Tensor], Terms]
) -> dict[str, float]:
    """The private backbone's share of a round: the task's epochs, its kind's learning rate and weight decay."""
    task, kind = client.task, client.info.kind
    return fit(
        client,
        rnd,
        stage,
        "backbone",
        lambda x, y: terms(client.backbone(x), x, y),
        lr=rnd.cosine(task.optimiser.rate(kind)),
        weight_decay=task.optimiser.decay(kind),
        epochs=task.epochs,
    )


def _restore(client: Client, module: str, lr: float, weight_decay: float) -> torch.optim.SGD:
    named = dict(client.modules[module].named_parameters())
    # Tensors of one dimension are biases, normalisation parameters and port scales: never decayed.
    groups = [
        {"params": [p for p in named.values() if p.dim() > 1], "weight_decay": weight_decay},
        {"params": [p for p in named.values() if p.dim() <= 1], "weight_decay": 0.0},
    ]
    optimiser = torch.optim.SGD(groups, lr=lr, momentum=client.task.optimiser.momentum)
    for name, buffer in client.momentum.get(module, {}).items():
        optimiser.state[named[name]]["momentum_buffer"] = buffer
    return optimiser


def _keep(client: Client, module: str, optimiser: torch.optim.SGD) -> None:
    client.momentum[module] = {
        name: buffer
        for name, p in client.modules[module].named_parameters()
        if (buffer := optimiser.state[p].get("momentum_buffer")) is not None
    }
