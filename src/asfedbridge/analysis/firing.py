"""Counts of the spikes that enter each layer, and of the synaptic operations they cause."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.grad import conv2d_input

from asfedbridge.analysis.operations import follow_spikes, macs_of, watch
from asfedbridge.core.client import Client
from asfedbridge.kernels.dispatch import use_path
from asfedbridge.models.layers import TYPES


@dataclass
class Firing:
    """Inputs of one layer, summed over examples."""

    macs: int  # multiply-accumulates of one example and time step
    spikes_T: Tensor  # nonzero inputs at each time step
    spiking: bool  # whether the inputs are spikes, from the network's structure
    inputs: int = 0  # number of inputs per time step, including zeros
    synops: int = 0  # accumulations: one per output that a spike reaches

    def rates(self) -> list[float]:
        """The fraction of nonzero inputs at each time step."""
        return (self.spikes_T.double() / self.inputs).tolist()

    @property
    def sops(self) -> float:
        """The paper's estimate for one example, M sum_t rate_t, which ignores image edges."""
        return self.macs * sum(self.rates())


@torch.no_grad()
def firing_rates(client: Client, batches: Iterable[tuple[Tensor, Tensor]]) -> dict[str, Firing]:
    """Counts for each layer of the client's backbone, in execution order, over all examples."""
    found: dict[str, Firing] = {}
    batch = 0

    def note(name: str, layer: nn.Module, x: Tensor, out: Tensor) -> None:
        spiking = is_spikes(x)
        x, out = _fold_time(layer, x), _fold_time(layer, out)
        fires_TN = (x != 0).unflatten(0, (-1, batch)).flatten(1)
        none = torch.zeros(len(fires_TN), dtype=torch.int64)
        entry = found.setdefault(name, Firing(macs_of(layer, out), none, spiking))
        entry.spikes_T += fires_TN.sum(dim=1).cpu()
        entry.inputs += fires_TN.shape[1]
        if entry.spiking:
            entry.synops += count_synops(layer, x)

    backbone = client.backbone.eval()
    # Only on this path do blocks call their layers one by one, so that hooks run.
    with use_path("torch"), follow_spikes(backbone) as is_spikes, watch(backbone, TYPES, note):
        for x, _ in batches:
            batch = len(x)
            backbone(client.place(x))
    return found


def _fold_time(layer: nn.Module, x: Tensor) -> Tensor:
    """Convert SpikingJelly's [T, B, ...] to [T * B, ...]."""
    return x.flatten(0, x.dim() - (4 if isinstance(layer, nn.Conv2d) else 2))


def count_synops(layer: nn.Module, x: Tensor) -> int:
    """The number of pairs of a nonzero input and an output it reaches. Inputs at image edges reach fewer outputs."""
    if isinstance(layer, nn.Linear):
        return int(x.count_nonzero()) * layer.out_features
    assert isinstance(layer, nn.Conv2d)
    count_HW = (x != 0).sum(dim=(0, 1))
    reached_HW = _reached(layer, x.shape[2:]).to(count_HW.device)
    return int((count_HW * reached_HW).sum()) * (layer.out_channels // layer.groups)


def _reached(conv: nn.Conv2d, size: torch.Size) -> Tensor:
    """The number of output positions that each input position contributes to."""
    ones = torch.ones(1, 1, *conv.kernel_size, dtype=torch.float64)
    how: Any = conv.stride, conv.padding, conv.dilation
    out = F.conv2d(torch.ones(1, 1, *size, dtype=torch.float64), ones, None, *how)
    seen: Tensor = conv2d_input([1, 1, *size], ones, torch.ones_like(out), *how)
    return seen[0, 0].round().long()
