"""Do clients want to move the same way? Cosines between their gradients on the same images."""

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
    scalars_NN: Tensor  # how many each pair was compared on
    shared: list[str]  # tensors that every pair was compared on
    partial: list[str]  # tensors that only some clients have, or have in other shapes


def comparable(backbone: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters of all convolutions and of the classifier; not the projection, not normalisation."""
    return {
        f"{name}.{part}": tensor
        for name, layer in backbone.named_modules()
        if isinstance(layer, nn.Conv2d) or name == "classifier"
        for part, tensor in layer.named_parameters(recurse=False)
    }


def probe_gradient(client: Client, probe: Shard) -> Payload:
    """The gradient of the mean cross-entropy of the mean logits over the whole probe set.

    The model is frozen (BatchNorm with its running statistics), so batches are a matter of memory only. No loss of
    the method, no TET: the supervised loss alone.
    """
    backbone = client.backbone.eval()
    parameters = comparable(backbone)
    total = {name: torch.zeros_like(p) for name, p in parameters.items()}
    count = 0
    for x, y in probe.test_batches(BATCH):
        loss = F.cross_entropy(backbone(client.place(x)).logits, y.to(client.device), reduction="sum")
        for sum_, grad in zip(total.values(), torch.autograd.grad(loss, list(parameters.values())), strict=True):
            sum_ += grad
        count += len(y)
    return clone({name: t / count for name, t in total.items()})


def cosines(gradients: Sequence[Payload]) -> Cosines:
    """<g_i, g_j> / (||g_i|| ||g_j|| + epsilon) over the tensors that a pair has in common: same name, same shape.

    NaN for a pair without any. ``gradients`` is asked for two at a time, so it may read them from files.
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
            # Sorted: a file gives its tensors back in any order, and float sums are not associative.
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
