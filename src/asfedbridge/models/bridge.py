"""The Bridge: a small continuous network whose activations are read as firing rates at five ports.

Body (communicated): stem, four residual stages of one basic block each, bottleneck of width d, scales of the ports.
Head (private): one linear layer. At width 1.0 the body holds 3.93 MB, and body and head cost 98.3 MFLOPs on CIFAR. The
paper reports 3.93 MB and 98.09 MFLOPs but no layer sizes; the channel counts were chosen here to match.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from asfedbridge.core.pseudospike import rate
from asfedbridge.core.task import Task
from asfedbridge.models.backbone import scaled
from asfedbridge.models.neuron import Continuous
from asfedbridge.models.parts import BasicBlock, BatchNorm, make_stem

STAGES = (24, 64, 120, 220)


class Reading(NamedTuple):
    logits_BC: Tensor
    rates: tuple[Tensor, ...]  # before quantisation: four stages [B, C, H, W], then the bottleneck [B, d]


def group_norm(channels: int) -> nn.GroupNorm:
    groups = next(g for g in (8, 6, 5, 4, 3, 2, 1) if channels % g == 0)
    return nn.GroupNorm(groups, channels)


class Port(nn.Module):
    """Converts activations to firing rates with a learnable positive scale per channel, stored as its logarithm."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.empty(channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.log_scale)

    def forward(self, activation: Tensor) -> Tensor:
        return rate(activation, self.log_scale.exp())


class Body(nn.Module):
    def __init__(self, channels: int, feature_dim: int, width: float, norm: str, image_size: int) -> None:
        super().__init__()
        sizes = [scaled(size, width) for size in STAGES]
        make_norm = BatchNorm if norm == "batch" else group_norm
        self.act = act = Continuous()
        self.stem, self.pool = make_stem(channels, sizes[0], image_size)
        self.norm = make_norm(sizes[0])
        self.stages = nn.ModuleList(
            BasicBlock(inputs, outputs, 1 if number == 0 else 2, act, make_norm)
            for number, (inputs, outputs) in enumerate(zip([sizes[0], *sizes], sizes, strict=False))
        )
        self.bottleneck = nn.Linear(sizes[-1], feature_dim)
        self.ports = nn.ModuleList(Port(size) for size in [*sizes, feature_dim])

    def forward(self, x_BCHW: Tensor) -> list[Tensor]:
        """Activations at the five ports. The last one is the input of the head."""
        x = self.act.read(self.stem, self.norm, x_BCHW, self.pool)
        activations = []
        for stage in self.stages:
            x = stage(x)
            activations.append(x)
        activations.append(self.bottleneck(x.mean(dim=(2, 3))).relu())
        return activations


class Bridge(nn.Module):
    def __init__(self, task: Task, width: float = 1.0, norm: str = "batch") -> None:
        super().__init__()
        self.body = Body(task.channels, task.feature_dim, width, norm, task.image_size)
        self.head = nn.Linear(task.feature_dim, task.classes)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(x_BCHW)[-1])
        return logits

    def read(self, x_BCHW: Tensor) -> Reading:
        """Logits, computed from continuous activations, and the rates at every port."""
        activations = self.body(x_BCHW)
        rates = tuple(port(a) for port, a in zip(self.body.ports, activations, strict=True))
        return Reading(self.head(activations[-1]), rates)
