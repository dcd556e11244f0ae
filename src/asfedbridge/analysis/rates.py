"""How firing rates are distributed: an SNN's stages and feature, and the Bridge's ports beside them."""

from typing import Any

import torch
from torch import Tensor, nn

from asfedbridge.core.client import Client
from asfedbridge.core.pseudospike import quantise
from asfedbridge.models.bridge import Bridge

BATCH = 64
NEAR = 1e-3  # of a step: rates are sums of floats


class Histogram:
    """Counts of the rates 0, 1/T, ..., 1, and of values that are none of them."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.counts = torch.zeros(steps + 2, dtype=torch.int64)

    def add(self, rates: Tensor) -> None:
        scaled = rates.detach().flatten() * self.steps
        level = scaled.round()
        known = ((scaled - level).abs() < NEAR) & (level >= 0) & (level <= self.steps)
        place = torch.where(known, level, self.steps + 1.0).long()
        self.counts += torch.bincount(place, minlength=self.steps + 2).cpu()

    def shares(self) -> list[float]:
        """Of every rate, then of other values (a stage that does not speak in spikes has them); they add up to 1."""
        return (self.counts.double() / self.counts.sum()).tolist()


@torch.inference_mode()
def rate_histograms(client: Client, bridge: Bridge | None) -> dict[str, dict[str, list[float]]]:
    """Over all examples of the client's own test shard and all coordinates, by place: stage 1, 2, ..., output.

    ``snn``: rates over the T steps; the output is the feature. ``bridge``: the ports' rates as injection quantises
    them; the output is the bottleneck.
    """
    steps = client.info.T
    found: dict[str, dict[str, Histogram]] = {who: {} for who in ("bridge", "snn") if bridge or who == "snn"}

    def add(who: str, place: str, rates: Tensor) -> None:
        found[who].setdefault(place, Histogram(steps)).add(rates)

    def watch(place: str) -> Any:
        return lambda stage, inputs, out: add("snn", place, out.unflatten(0, (steps, -1)).mean(dim=0))

    stages = getattr(client.backbone, "stages", nn.ModuleList())  # a model of somebody else may have none
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
