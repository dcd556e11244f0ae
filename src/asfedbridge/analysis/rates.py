"""Histograms of firing rates: stages and feature of an SNN, and the Bridge's ports."""

from typing import Any

import torch
from torch import Tensor, nn

from asfedbridge.core.client import Client
from asfedbridge.core.pseudospike import quantise
from asfedbridge.models.bridge import Bridge

BATCH = 64
TOLERANCE = 1e-3  # fraction of 1/T; rates have rounding errors


class Histogram:
    """Counts of the rates 0, 1/T, ..., 1, and of all other values."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.counts = torch.zeros(steps + 2, dtype=torch.int64)

    def add(self, rates: Tensor) -> None:
        scaled = rates.detach().flatten() * self.steps
        level = scaled.round()
        known = ((scaled - level).abs() < TOLERANCE) & (level >= 0) & (level <= self.steps)
        place = torch.where(known, level, self.steps + 1.0).long()
        self.counts += torch.bincount(place, minlength=self.steps + 2).cpu()

    def shares(self) -> list[float]:
        """The fraction of each rate, then of other values (from stages that do not emit spikes). The sum is 1."""
        return (self.counts.double() / self.counts.sum()).tolist()


@torch.inference_mode()
def rate_histograms(client: Client, bridge: Bridge | None) -> dict[str, dict[str, list[float]]]:
    """Histograms over all test examples of the client and all coordinates, for "stage 1", "stage 2", ..., "output".

    ``snn``: rates over the T steps; the output is the feature. ``bridge``: rates of the ports, quantised as in
    injection; the output is the bottleneck.
    """
    steps = client.info.T
    found: dict[str, dict[str, Histogram]] = {who: {} for who in ("bridge", "snn") if bridge or who == "snn"}

    def add(who: str, place: str, rates: Tensor) -> None:
        found[who].setdefault(place, Histogram(steps)).add(rates)

    def watch(place: str) -> Any:
        return lambda stage, inputs, out: add("snn", place, out.unflatten(0, (steps, -1)).mean(dim=0))

    stages = getattr(client.backbone, "stages", nn.ModuleList())  # user-defined models may have none
    hooks = [s.register_forward_hook(watch(f"stage {number}")) for number, s in enumerate(stages, start=1)]
    for module in client.modules.values():
        module.eval()
    try:
        for x, _ in client.shard.test_batches(BATCH):
            x = client.place(x)
            add("snn", "output", client.backbone(x).feature)
            if bridge:
                *ports, bottleneck = bridge.read(x).rates
                for number, rate in enumerate(ports, start=1):
                    add("bridge", f"stage {number}", quantise(rate, steps))
                add("bridge", "output", quantise(bottleneck, steps))
    finally:
        for hook in hooks:
            hook.remove()
    return {who: {place: h.shares() for place, h in places.items()} for who, places in found.items()}
