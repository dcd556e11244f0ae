"""MobileNet for small images (Howard et al., 2017): 3x3 depthwise and 1x1 convolutions, norm and activation after each.

The AS-FedBridge paper names MobileNet without sizes. This implementation has the thirteen blocks of Howard et al.
(Table 1) and a stem of stride 1 instead of 2, so a 32x32 image is reduced to 2x2 and an 8x8 image to one pixel. Global
pooling, projector and classifier follow, as in all families. Blocks of the same resolution form a stage.
As an SNN, a block has one layer of neurons, after its 1x1 convolution; the depthwise convolution passes on real
numbers. With neurons in place of every ReLU (27 layers without a shortcut) the network did not learn to separate four
colours in 100 steps; with 14 it does. The outputs of blocks are binary.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from asfedbridge.models.backbone import Backbone, scaled
from asfedbridge.models.neuron import Continuous, Spiking
from asfedbridge.models.parts import BatchNorm
from asfedbridge.models.registry import register_family

FIRST = 32
PLAN = ((64,), (128, 128), (256, 256), (512,) * 6, (1024, 1024))  # channels of blocks; the resolution halves each time


class Depthwise(nn.Conv2d):
    """A 3x3 convolution of each channel separately."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__(channels, channels, 3, stride, padding=1, groups=channels, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if min(x.shape[2:]) >= 3:
            return super().forward(x)
        # oneDNN has no fast weight gradient for maps smaller than the kernel: 45 ms instead of 1.4 ms at 2x2 with 1024
        # channels and 64 images. Padding before the convolution makes the map large enough.
        return F.conv2d(F.pad(x, (1, 1, 1, 1)), self.weight, stride=self.stride, groups=self.groups)


class SeparableBlock(nn.Module):
    """act(norm conv1x1 act(norm depthwise x)); an SNN omits the inner activation."""

    def __init__(self, inputs: int, outputs: int, stride: int, act: Spiking | Continuous) -> None:
        super().__init__()
        self.depthwise = Depthwise(inputs, stride)
        self.norm1 = BatchNorm(inputs)
        self.pointwise = nn.Conv2d(inputs, outputs, 1, bias=False)
        self.norm2 = BatchNorm(outputs)
        self.act: Spiking | Continuous = act

    def forward(self, x: Tensor) -> Tensor:
        act, hidden = self.act, self.depthwise(x)
        hidden = self.norm1(hidden) if isinstance(act, Spiking) else act.after(self.norm1, hidden)
        return act.after(self.norm2, self.pointwise(hidden))


@register_family("mobilenet", "MobileNet v1: thirteen depthwise separable blocks")
class MobileNet(Backbone):
    def __init__(
        self,
        act: Spiking | Continuous,
        channels: int,
        classes: int,
        width: float = 1.0,
        feature_dim: int = 256,
        projector: str = "linear",
    ) -> None:
        last = start = scaled(FIRST, width)
        stages: list[nn.Module] = []
        for number, sizes in enumerate(PLAN):
            blocks = []
            for place, size in enumerate(sizes):
                blocks.append(SeparableBlock(last, scaled(size, width), 2 if number and place == 0 else 1, act))
                last = scaled(size, width)
            stages.append(nn.Sequential(*blocks))
        super().__init__(act, channels, classes, start, stages, last, feature_dim, projector)
