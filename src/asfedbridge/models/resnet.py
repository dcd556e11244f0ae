"""ResNet-18 (He et al., CVPR 2016): four stages of two basic blocks. For small images: a 3x3 stem, no max-pool.

With the spiking activation this is Spiking ResNet-18 with the same trainable tensors. The three variants differ in the
position of the neurons in a block, not in names or shapes of tensors, so a state of one loads into the others:

- ``resnet18``: neurons after the addition; the outputs of blocks are binary.
- ``resnet18-sew``: SEW-ResNet with ADD (Fang et al., NeurIPS 2021): spikes are added; the outputs are integers.
- ``resnet18-ms``: MS-ResNet (Hu et al., TNNLS 2024): neurons before each convolution; membranes are added, so the
  outputs are real numbers, and one layer of neurons precedes the pooling. As an ANN: pre-activation (He et al., ECCV
  2016).
"""

from typing import Any, ClassVar

from torch import Tensor, nn

from asfedbridge.core.errors import BadInput
from asfedbridge.models.backbone import Backbone, scaled
from asfedbridge.models.neuron import Continuous, Spiking
from asfedbridge.models.parts import BasicBlock
from asfedbridge.models.registry import register_family

STAGES = (64, 128, 256, 512)


@register_family("resnet18", "ResNet-18; as an SNN, neurons spike after the addition")
class ResNet18(Backbone):
    block: ClassVar[type[BasicBlock]] = BasicBlock

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
            first = self.block(inputs, outputs, 1 if number == 0 else 2, act)
            stages.append(nn.Sequential(first, self.block(outputs, outputs, 1, act)))
        super().__init__(act, channels, classes, sizes[0], stages, sizes[-1], feature_dim, projector)


class SEWBlock(BasicBlock):
    """act(norm conv act(norm conv x)) + x, or + act(norm conv1x1 x) if the shape changes."""

    def trace(self, x: Tensor) -> tuple[Tensor, Tensor]:
        act = self.act
        # The input is a sum of spikes, not binary, so the sparse convolution does not apply.
        hidden = act.after(self.norm1, self.conv1(x))
        out = act.after(self.norm2, act.convolve(self.conv2, hidden))
        return hidden, out + (act.between(self.shortcut(x)) if len(self.shortcut) else x)


@register_family("resnet18-sew", "SEW-ResNet-18 (ADD), same tensors: blocks add spikes; integers between stages")
class SEWResNet18(ResNet18):
    block = SEWBlock

    def __init__(self, act: Spiking | Continuous, *sizes: Any, **options: Any) -> None:
        super().__init__(act, *sizes, **options)
        if self.projector is None and isinstance(act, Spiking):
            raise BadInput("projector=identity: resnet18-sew pools sums of spikes, not rates; use projector=linear")


class MSBlock(BasicBlock):
    """norm conv act(norm conv act(x)) + shortcut(x)."""

    def trace(self, x: Tensor) -> tuple[Tensor, Tensor]:
        act = self.act
        hidden = act.after(self.norm1, act.convolve(self.conv1, act.between(x)))
        out: Tensor = self.norm2(act.convolve(self.conv2, hidden)) + self.shortcut(x)
        return hidden, out


@register_family("resnet18-ms", "MS-ResNet-18, same tensors: blocks add membranes; real numbers between stages")
class MSResNet18(ResNet18):
    block = MSBlock

    def __init__(self, act: Spiking | Continuous, *sizes: Any, **options: Any) -> None:
        super().__init__(act, *sizes, **options)
        last = self.stages[-1]
        assert isinstance(last, nn.Sequential)
        last.append(act)

    def enter(self, x_BCHW: Tensor) -> Tensor:
        return self.act.currents(self.stem, self.norm, x_BCHW, self.pool)
