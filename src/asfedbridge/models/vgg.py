"""VGG-9 and VGG-11 for small images (Simonyan & Zisserman, ICLR 2015), with batch norm after every convolution.

The AS-FedBridge paper names both without channel counts. Here VGG-11 has the eight convolutions of Simonyan &
Zisserman's configuration A, and VGG-9 the seven of spiking-network papers (64-64, 128-128, 256-256-256), which make
nine layers with projector and classifier. Global pooling, projector and classifier replace the dense layers of 4096
units, as in all families. The first convolution is the stem. Max-pooling is the first layer of a stage instead of the
last layer of the previous one, and global pooling replaces the last max-pool.
The maximum of spikes is a spike, so the inputs of convolutions stay binary. Pooling rounds sizes up, so a map of odd
size keeps its edge, one pixel stays one pixel, and every image size works.
"""

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor, nn

from asfedbridge.models.backbone import Backbone, scaled
from asfedbridge.models.neuron import Continuous, Spiking
from asfedbridge.models.parts import BatchNorm, conv3x3
from asfedbridge.models.registry import register_family


class PlainBlock(nn.Module):
    """act(norm conv x)."""

    def __init__(self, inputs: int, outputs: int, act: Spiking | Continuous) -> None:
        super().__init__()
        self.conv = conv3x3(inputs, outputs)
        self.norm = BatchNorm(outputs)
        self.act: Spiking | Continuous = act

    def forward(self, x: Tensor) -> Tensor:
        return self.act.after(self.norm, self.act.convolve(self.conv, x))


class VGG(Backbone):
    first: ClassVar[int] = 64
    plan: ClassVar[Sequence[Sequence[int]]]  # channels of the convolutions after the stem, by resolution

    def __init__(
        self,
        act: Spiking | Continuous,
        channels: int,
        classes: int,
        width: float = 1.0,
        feature_dim: int = 256,
        projector: str = "linear",
    ) -> None:
        last = start = scaled(self.first, width)
        stages: list[nn.Module] = []
        for number, sizes in enumerate(self.plan):
            layers: list[nn.Module] = [nn.MaxPool2d(2, ceil_mode=True)] if number else []
            for size in sizes:
                layers.append(PlainBlock(last, scaled(size, width), act))
                last = scaled(size, width)
            if layers:
                stages.append(nn.Sequential(*layers))
        super().__init__(act, channels, classes, start, stages, last, feature_dim, projector)


@register_family("vgg9", "VGG-9: seven convolutions, max-pooled twice")
class VGG9(VGG):
    plan = ((64,), (128, 128), (256, 256, 256))


@register_family("vgg11", "VGG-11: the eight convolutions of configuration A, max-pooled four times")
class VGG11(VGG):
    plan = ((), (128,), (256, 256), (512, 512), (512, 512))
