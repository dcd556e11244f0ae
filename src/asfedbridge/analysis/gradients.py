"""Cosine similarity between clients' gradients on the same images."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asfedbridge.core.client import Client, Shard
from asfedbridge.core.payload import Payload, clone

BATCH = 64
EPSILON = 1e-12


class Cosines(NamedTuple):
    cosine_NN: Tensor
    scalars_NN: Tensor  # number of scalars that each pair was compared on
    shared: list[str]  # tensors that every pair was compared on
    partial: list[str]  # tensors that some clients lack or have in another shape


def comparable(backbone: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters of all convolutions and of the classifier; not the projection, not normalisation.

    For a user's own model without either, those of its linear layers. Frozen parameters are left out.
    """
    layers = dict(backbone.named_modules())
    chosen = {name: layer for name, layer in layers.items() if isinstance(layer, nn.Conv2d) or name == "classifier"}
    linear = {name: layer for name, layer in layers.items() if isinstance(layer, nn.Linear) and name != "projector"}
    return {
        f"{name}.{part}": tensor
        for name, layer in (chosen or linear).items()
        for part, tensor in layer.named_parameters(recurse=False)
        if tensor.requires_grad
    }


def probe_gradient(client: Client, probe: Shard) -> Payload:
    """The gradient of the mean cross-entropy of the mean logits over the whole probe set.

    BatchNorm uses its running statistics, so the batch size has no effect on the result. Only the supervised loss is
    used: no TET, no other loss of the method.
    """
    backbone = client.backbone.eval()
    parameters = comparable(backbone)
    if not parameters:
        return {}
    total = {name: torch.zeros_like(p) for name, p in parameters.items()}
    count = 0
    for x, y in probe.test_batches(BATCH):
        loss = F.cross_entropy(backbone(client.place(x)).logits, y.to(client.device), reduction="sum")
        # A layer that the logits do not depend on has a gradient of zeros.
        found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True, materialize_grads=True)
        for sum_, grad in zip(total.values(), found, strict=True):
            sum_ += grad
        count += len(y)
    return clone({name: t / count for name, t in total.items()})


def cosines(gradients: Sequence[Payload]) -> Cosines:
    """<g_i, g_j> / (||g_i|| ||g_j|| + epsilon) over the tensors of a pair with the same name and shape.

    NaN for a pair without common tensors. At most two gradients are accessed at a time, so they may be loaded lazily.
    """
    n = len(gradients)
    cosine_NN = torch.full((n, n), torch.nan, dtype=torch.float64)
    scalars_NN = torch.zeros(n, n, dtype=torch.int64)
    everywhere: set[tuple[str, tuple[int, ...]]] | None = None
    names: set[str] = set()
    for j in range(n):
        h = gradients[j]
        own = {(name, tuple(t.shape)) for name, t in h.items()}
        everywhere = own if everywhere is None else everywhere & own
        names |= h.keys()
        for i in range(j + 1):
            g = h if i == j else gradients[i]
            # Sorted, because files return tensors in any order and float addition is not associative.
            common = sorted(name for name, t in h.items() if name in g and g[name].shape == t.shape)
            if common:
                cosine_NN[i, j] = cosine_NN[j, i] = _cosine([g[name] for name in common], [h[name] for name in common])
            scalars_NN[i, j] = scalars_NN[j, i] = sum(h[name].numel() for name in common)
    shared = {name for name, _ in everywhere or ()}
    return Cosines(cosine_NN, scalars_NN, sorted(shared), sorted(names - shared))


def _cosine(g: list[Tensor], h: list[Tensor]) -> Tensor:
    gh, gg, hh = (
        torch.stack([torch.dot(a.flatten().double(), b.flatten().double()) for a, b in zip(x, y, strict=True)]).sum()
        for x, y in ((g, h), (g, g), (h, h))
    )
    return gh / (gg.sqrt() * hh.sqrt() + EPSILON)
