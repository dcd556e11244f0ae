"""Aggregation rules: the weighted mean, and rules that limit the influence of a few Byzantine clients.

Coordinate-wise median and trimmed mean: Yin et al., ICML 2018. Multi-Krum: Blanchard et al., NeurIPS 2017.
Geometric median: Pillutla et al., IEEE Transactions on Signal Processing 70, 2022 (RFA). Clipped updates: Sun et al.,
arXiv 1911.07963.
"""

import math
import statistics
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from asfedbridge.core import payload
from asfedbridge.core.payload import Payload

Rule = Literal["mean", "median", "trimmed", "krum", "geometric"]
Weights = Literal["uniform", "size", "capped"]
MIN_DISTANCE = 1e-6  # geometric median: smaller distances are raised to this before division
MAX_STEPS = 200  # of Weiszfeld's algorithm
TOLERANCE = 1e-9  # Weiszfeld's algorithm stops when no weight changes by more than this
CHUNK = 2**18  # coordinates converted to float64 at a time, for all clients together


def weigh(sizes: Sequence[float], how: Weights, cap: float) -> list[float]:
    """Aggregation weights of clients; ``capped`` limits each to ``cap`` times the median size."""
    if how == "uniform":
        return [1.0] * len(sizes)
    limit = cap * statistics.median(sizes) if how == "capped" else math.inf
    return [min(float(size), limit) for size in sizes]


def aggregate(payloads: Sequence[Payload], weights: Sequence[float], rule: Rule = "mean", trim: float = 0.0) -> Payload:
    """Aggregate payloads with the same names. Only ``mean`` uses the weights: sizes are claims that clients make."""
    if rule == "mean":
        return payload.weighted_mean(payloads, weights)
    if rule == "geometric":
        return geometric_median(payloads)
    cut = count_cut(len(payloads), rule, trim)
    if rule == "krum":
        chosen = choose_by_krum(payloads, cut)
        return payload.weighted_mean([payloads[i] for i in chosen], [1.0] * len(chosen))
    return {name: _middle([p[name] for p in payloads], cut) for name in payloads[0]}


def count_cut(clients: int, rule: Rule, trim: float) -> int:
    """The number of clients assumed to be Byzantine: ``trim * clients`` rounded up, limited so that one or two remain.

    Trimmed mean and median remove that many values at each end, Krum that many clients. The median is the trimmed mean
    that keeps only one or two values.
    """
    limit = (clients - 1) // 2
    return limit if rule == "median" else min(limit, math.ceil(trim * clients - 1e-9))


def _middle(tensors: Sequence[Tensor], cut: int) -> Tensor:
    """The mean of each coordinate without its ``cut`` lowest and highest values, summed in ascending order."""
    kept = torch.stack(list(tensors)).sort(dim=0).values[cut : len(tensors) - cut]
    total = kept[0].clone()
    for tensor in kept[1:]:
        total += tensor
    return total / len(kept)


def squared_distances(payloads: Sequence[Payload]) -> Tensor:
    """Squared L2 distances over all tensors, in float64: [clients, clients]."""
    total = torch.zeros(len(payloads), len(payloads), dtype=torch.float64)
    for name in sorted(payloads[0]):
        flat = [p[name].flatten() for p in payloads]
        for start in range(0, len(flat[0]), CHUNK):
            part = torch.stack([t[start : start + CHUNK].double() for t in flat])
            total += torch.cdist(part, part, compute_mode="donot_use_mm_for_euclid_dist").square()
    return total


def choose_by_krum(payloads: Sequence[Payload], wrong: int) -> list[int]:
    """Sorted positions of the n - f clients (f = ``wrong``) with the lowest scores. Ties go to the lower position.

    A client's score is the sum of squared distances to its n - f - 2 nearest neighbours. The paper's guarantee needs
    n >= 2f + 3. With fewer clients at least one neighbour is used, so outliers still score high.
    """
    clients = len(payloads)
    if not wrong:
        return list(range(clients))
    others = squared_distances(payloads).fill_diagonal_(torch.inf).sort(dim=1).values
    score = others[:, : max(1, clients - wrong - 2)].sum(dim=1)
    return sorted(score.sort(stable=True).indices[: clients - wrong].tolist())


def geometric_median(payloads: Sequence[Payload]) -> Payload:
    """The point with the smallest sum of L2 distances over all tensors: smoothed Weiszfeld algorithm in float64.

    Starts from the coordinate-wise median. From the mean, one client at 1e30 would cost many steps.
    """
    cut = count_cut(len(payloads), "median", 0.0)
    centre = {name: _middle([p[name] for p in payloads], cut).double() for name in sorted(payloads[0])}
    shares = [0.0] * len(payloads)
    for _ in range(MAX_STEPS):
        pulls = [1 / max(MIN_DISTANCE, _distance(p, centre)) for p in payloads]
        before, shares = shares, [pull / math.fsum(pulls) for pull in pulls]
        centre = {name: _mix([p[name] for p in payloads], shares) for name in centre}
        if max(abs(new - old) for new, old in zip(shares, before, strict=True)) <= TOLERANCE:
            break
    return {name: centre[name].float() for name in payloads[0]}


def _mix(tensors: Sequence[Tensor], shares: Sequence[float]) -> Tensor:
    total = tensors[0].double() * shares[0]
    for tensor, share in zip(tensors[1:], shares[1:], strict=True):
        total += tensor.double() * share
    return total


def _distance(a: Payload, b: Payload) -> float:
    """The L2 distance over all tensors, in float64."""
    return math.sqrt(math.fsum((a[name].double() - b[name].double()).square().sum().item() for name in sorted(a)))


def clip_update(up: Payload, before: Payload, most: float) -> Payload:
    """Scale the update ``up - before`` so that its L2 norm over all tensors is at most ``most``."""
    squares = [(up[name] - before[name]).double().square().sum().item() for name in sorted(up)]
    norm = math.sqrt(math.fsum(squares))
    if norm <= most:
        return up
    # In float64: for values of 1e38 the factor is subnormal in float32, and the result exceeds the limit.
    return {name: before[name] + ((t - before[name]).double() * (most / norm)).float() for name, t in up.items()}
