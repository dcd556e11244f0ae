"""ResNet-18 for small images (He et al., CVPR 2016): 3x3 stem, no max-pool, four stages of two basic blocks.

With the spiking activation this is Spiking ResNet-18 with the same trainable tensors.
"""

from torch import nn

from asfedbridge.models.backbone import Backbone, scaled
from asfedbridge.models.neuron import Continuous, Spiking
from asfedbridge.models.parts import BasicBlock
from asfedbridge.models.registry import register_family

STAGES = (64, 128, 256, 512)


@register_family("resnet18", "ResNet-18 for small images; as an SNN the spike comes after the addition")
class ResNet18(Backbone):
    def __init__(
        self,
        act: Spiking | Continuous,
        channels: int,
        classes: int,
        width: float = 1.0,
        feature_dim: int = 256,
        projector: str = "linear",
    ) -> None:
        sizes = [scaled(size, width) for size in STAGES]
        stages: list[nn.Module] = []
        for number, (inputs, outputs) in enumerate(zip([sizes[0], *sizes], sizes, strict=False)):
            first = BasicBlock(inputs, outputs, 1 if number == 0 else 2, act)
            stages.append(nn.Sequential(first, BasicBlock(outputs, outputs, 1, act)))
        super().__init__(act, channels, classes, sizes[0], stages, sizes[-1], feature_dim, projector)
