"""How evenly the values of a tensor are spread: the entropy of their histogram."""

import torch
from torch import Tensor


def histogram_entropy(x: Tensor, bins: int, low: float, high: float) -> float:
    """Shannon entropy, in nats, of ``bins`` equal bins from ``low`` to ``high``; 0 where there is no range."""
    if low == high:
        return 0.0
    counts = torch.histc(x.flatten(), bins, low, high).double()
    share = counts[counts > 0] / counts.sum()
    return -(share * share.log()).sum().item()


def entropy_gain(new: Tensor, old: Tensor, bins: int, common: bool) -> float:
    """What ``new`` has more in entropy than ``old``: each over its own range, or both over a ``common`` one."""
    ranges = [(x.min().item(), x.max().item()) for x in (new, old)]
    if common:
        ranges = [(min(low for low, _ in ranges), max(high for _, high in ranges))] * 2
    return histogram_entropy(new, bins, *ranges[0]) - histogram_entropy(old, bins, *ranges[1])
