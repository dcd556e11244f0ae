"""ResNet-18 whose 3x3 kernels are composed of a small bank and a coefficient matrix (FLANC, Mei et al., NeurIPS 2022).

The input channels of a convolution are split into groups as wide as the bank. Every group is convolved with the same
bank, and a 1x1 convolution, the coefficient, mixes the results. The bank has the same shape at every width, so networks
of all widths can share it. The stem always has 64 channels.
There is no activation between bank and coefficient, so they are multiplied first and run as one convolution. This is
the same function, and its input remains spikes, which the sparse convolution needs.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from asfedbridge.core.task import ClientInfo, Task
from asfedbridge.models.backbone import scaled
from asfedbridge.models.neuron import Continuous, Spiking, make_activation, stem_channels
from asfedbridge.models.parts import BasicBlock, BatchNorm, build, make_stem
from asfedbridge.models.resnet import STAGES, ResNet18

BLOCKS = [(stage, block) for stage in range(len(STAGES)) for block in range(2)]
CONVOLUTIONS = [f"stages.{stage}.{block}.conv{n}" for stage, block in BLOCKS for n in (1, 2)]  # in the network's order


class BlockSizes(NamedTuple):
    inputs: int
    outputs: int
    stride: int
    bank: tuple[int, int]  # kernels, channels


def block_sizes(width: float, bank_inputs: float, bank_outputs: float) -> list[BlockSizes]:
    """Sizes of the eight blocks. Bank sizes are fractions of a block's channels at width 1."""
    sizes = []
    inputs = full = STAGES[0]
    for stage, block in BLOCKS:
        outputs = scaled(STAGES[stage], width)
        bank = scaled(STAGES[stage], bank_outputs), scaled(full, bank_inputs)
        sizes.append(BlockSizes(inputs, outputs, 2 if stage > 0 and block == 0 else 1, bank))
        inputs, full = outputs, STAGES[stage]
    return sizes


class ComposedConv(nn.Conv2d):
    def __init__(self, inputs: int, outputs: int, stride: int, bank: tuple[int, int]) -> None:
        super().__init__(inputs, outputs, 3, stride, padding=1, bias=False)
        del self.weight  # becomes a property, the product of bank and coefficient
        kernels, channels = bank
        self.bank = nn.Parameter(torch.empty(kernels, channels, 3, 3))
        self.coefficient = nn.Parameter(torch.empty(outputs, inputs // channels * kernels))

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        kernels = self.bank.shape[0]
        groups = self.coefficient.unflatten(1, (-1, kernels))
        weight = torch.einsum("ogk,kchw->ohwgc", groups, self.bank).flatten(3)
        return weight.movedim(-1, 1)  # channels-last in memory

    def reset_parameters(self) -> None:
        """Does nothing: ``build_composed`` sets the values."""


class ComposedBlock(BasicBlock):
    conv1: ComposedConv
    conv2: ComposedConv

    def __init__(self, sizes: BlockSizes, act: Spiking | Continuous) -> None:
        super().__init__(sizes.inputs, sizes.outputs, sizes.stride, act)
        self.conv1 = ComposedConv(sizes.inputs, sizes.outputs, sizes.stride, sizes.bank)
        self.conv2 = ComposedConv(sizes.outputs, sizes.outputs, 1, sizes.bank)


class ComposedResNet18(ResNet18):
    def __init__(
        self, act: Spiking | Continuous, channels: int, task: Task, width: float, sizes: list[BlockSizes]
    ) -> None:
        super().__init__(act, channels, task.classes, width, task.feature_dim, task.projector)
        self.stem, self.pool = make_stem(channels, STAGES[0], task.image_size)
        self.norm = BatchNorm(STAGES[0])
        blocks = [ComposedBlock(s, act) for s in sizes]
        self.stages = nn.ModuleList(nn.Sequential(*blocks[i : i + 2]) for i in range(0, len(blocks), 2))

    def blocks(self) -> list[ComposedBlock]:
        return [layer for layer in self.modules() if isinstance(layer, ComposedBlock)]

    def banks(self) -> list[Tensor]:
        return [conv.bank for block in self.blocks() for conv in (block.conv1, block.conv2)]

    def input_rates(self, x_BCHW: Tensor) -> Tensor:
        """The mean input of every composed convolution. For spikes this is the firing rate."""
        x = self.enter(x_BCHW)
        rates = []
        for block in self.blocks():
            hidden, out = block.trace(x)
            rates += [x.mean(), hidden.mean()]
            x = out
        return torch.stack(rates)


def make_composed(task: Task, info: ClientInfo, bank_inputs: float, bank_outputs: float) -> ComposedResNet18:
    sizes = block_sizes(info.width, bank_inputs, bank_outputs)
    return ComposedResNet18(make_activation(task, info), stem_channels(task, info), task, info.width, sizes)


def outline_composed(task: Task, info: ClientInfo, bank_inputs: float, bank_outputs: float) -> ComposedResNet18:
    with torch.device("meta"):
        return make_composed(task, info, bank_inputs, bank_outputs)


@torch.no_grad()
def build_composed(task: Task, info: ClientInfo, bank_inputs: float, bank_outputs: float) -> ComposedResNet18:
    """Builds the network with initial values that depend only on the run's seed and, if ``task.start`` is "by-kind",
    the kind. Banks are equal at every width; the two banks of a block are jointly orthogonal."""
    rest, banks, coefficients = (
        torch.Generator().manual_seed(task.start_seed(what, info.kind))
        for what in ("backbone", "banks", "coefficients")
    )
    model = build(lambda: make_composed(task, info, bank_inputs, bank_outputs), rest)
    for block in model.blocks():
        pair = torch.empty(2, *block.conv1.bank.shape)
        nn.init.orthogonal_(pair.flatten(0, 1), generator=banks)
        for conv, bank in zip((block.conv1, block.conv2), pair, strict=True):
            conv.bank.copy_(bank)
            conv.coefficient.normal_(0.0, math.sqrt(2.0 / conv.out_channels), generator=coefficients)
    return model
