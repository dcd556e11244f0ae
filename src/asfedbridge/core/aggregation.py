"""How the tensors of many clients become one: the mean, or rules that a few wrong clients cannot move far.

Median and trimmed mean coordinate by coordinate: Yin et al., ICML 2018. Bounded updates: Sun et al., arXiv 1911.07963.
"""

import math
from collections.abc import Sequence
from typing import Literal

import torch

from asfedbridge.core import payload
from asfedbridge.core.payload import Payload

Rule = Literal["mean", "median", "trimmed"]


def aggregate(payloads: Sequence[Payload], weights: Sequence[float], rule: Rule = "mean", trim: float = 0.0) -> Payload:
    """One payload of many of the same names. Only the mean has weights: a size is what a client says of itself."""
    if rule == "mean":
        return payload.weighted_mean(payloads, weights)
    return {name: _middle([p[name] for p in payloads], count_cut(len(payloads), rule, trim)) for name in payloads[0]}


def count_cut(clients: int, rule: Rule, trim: float) -> int:
    """How many values are left out at each end: the share, rounded up, but one or two in the middle always stay.

    The median is the trimmed mean that keeps just these.
    """
    most = (clients - 1) // 2
    return most if rule == "median" else min(most, math.ceil(trim * clients - 1e-9))


def _middle(tensors: Sequence[torch.Tensor], cut: int) -> torch.Tensor:
    """Mean of what is left when each coordinate loses its lowest and highest values; added in order of size."""
    kept = torch.stack(list(tensors)).sort(dim=0).values[cut : len(tensors) - cut]
    total = kept[0].clone()
    for tensor in kept[1:]:
        total += tensor
    return total / len(kept)


def clip_update(up: Payload, before: Payload, most: float) -> Payload:
    """``up``, moved towards ``before`` until their L2 distance, over all tensors together, is at most ``most``."""
    squares = [(up[name] - before[name]).double().square().sum().item() for name in sorted(up)]
    norm = math.sqrt(math.fsum(squares))
    if norm <= most:
        return up
    return {name: before[name] + (t - before[name]) * (most / norm) for name, t in up.items()}
