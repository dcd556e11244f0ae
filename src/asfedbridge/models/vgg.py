"""VGG-9 and VGG-11 for small images (Simonyan & Zisserman, ICLR 2015), with batch norm after every convolution.

AS-FedBridge names both and gives no channels. Chosen: for VGG-11 the eight convolutions of the paper's configuration A;
for VGG-9 the seven of spiking-network papers (64-64, 128-128, 256-256-256), which with projector and classifier make
nine. The dense layers of 4096 are left out: pooling over the whole map, the shared projector and the classifier stand
there, as in all our families. The first convolution is the stem; a stage begins with the pooling that the paper
ends the stage before with, and the last pooling is that over the whole map.
Pooling is by maximum, as in the paper: the maximum of spikes is a spike, and convolutions go on seeing zeros and ones.
A map of odd size keeps its edge, and one pixel stays one pixel, so that any image size goes in.
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
    plan: ClassVar[Sequence[Sequence[int]]]  # by resolution, what follows the stem

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
