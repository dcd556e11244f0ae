"""Squared maximum mean discrepancy between clients' feature distributions, with random Fourier features.

Gretton et al., JMLR 2012; Rahimi and Recht, NeurIPS 2007. The kernel is exp(-||u - v||^2 / (2 sigma^2)).
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from asfedbridge.core import seeds

FOURIER = 1024  # number of random Fourier features
SEED = 42  # of the random frequencies, the same for all runs
SUBSAMPLE = 512


def median_bandwidth(features: Sequence[Tensor]) -> float:
    """The median distance between at most 512 features, evenly spaced over the rows of all clients.

    If the median is zero (SNNs that do not fire), the median of the nonzero distances.
    """
    count = sum(map(len, features))
    chosen = torch.arange(min(SUBSAMPLE, count)) * count // min(SUBSAMPLE, count)
    parts, start = [], 0
    for x in features:
        mine = chosen[(chosen >= start) & (chosen < start + len(x))] - start
        parts.append(x[mine].double())
        start += len(x)
    pooled = torch.cat(parts)
    pooled = pooled[torch.isfinite(pooled).all(dim=1)]
    distances = torch.pdist(pooled)
    if (median := _median(distances)) > 0:
        return median
    return _median(distances[distances > 0]) or 1.0  # all features are equal: MMD is 0 for any bandwidth


def mmd_squared(features: Sequence[Tensor], bandwidth: float) -> Tensor:
    """||mu_i - mu_j||^2 for all pairs, mu the mean of z(u) = sqrt(2 / D) cos(W^T u + b) over a client's examples."""
    generator = seeds.generator(SEED, "mmd")
    frequencies = torch.randn(features[0].shape[1], FOURIER, dtype=torch.float64, generator=generator) / bandwidth
    phases = 2 * math.pi * torch.rand(FOURIER, dtype=torch.float64, generator=generator)
    scale = math.sqrt(2 / FOURIER)
    mean_ND = torch.stack([scale * (x.double() @ frequencies + phases).cos().mean(dim=0) for x in features])
    return torch.stack([(mean_ND - mean_D).square().sum(dim=1) for mean_D in mean_ND])


def _median(values: Tensor) -> float:
    return float(values.quantile(0.5)) if len(values) else 0.0
