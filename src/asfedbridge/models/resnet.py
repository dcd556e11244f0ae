"""ResNet-18 for small images (He et al., CVPR 2016): 3x3 stem, no max-pool, four stages of two basic blocks.

Global average pooling, a projection to the shared feature dimension, the activation, the classifier. With the
spiking activation this is Spiking ResNet-18 with the same trainable tensors.
"""

from torch import Tensor, nn

from asfedbridge.core.protocol import Output
from asfedbridge.models.neuron import Continuous, Spiking
from asfedbridge.models.parts import BasicBlock, BatchNorm, Projector, conv3x3

STAGES = (64, 128, 256, 512)


class ResNet18(nn.Module):
    def __init__(
        self,
        act: Spiking | Continuous,
        channels: int,
        classes: int,
        width: float = 1.0,
        feature_dim: int = 256,
        projector: str = "linear",
    ) -> None:
        super().__init__()
        sizes = [max(1, round(size * width)) for size in STAGES]
        self.act = act
        self.stem = conv3x3(channels, sizes[0])
        self.norm = BatchNorm(sizes[0])
        inputs = sizes[0]
        stages = []
        for number, outputs in enumerate(sizes):
            first = BasicBlock(inputs, outputs, 1 if number == 0 else 2, act)
            stages.append(nn.Sequential(first, BasicBlock(outputs, outputs, 1, act)))
            inputs = outputs
        self.stages = nn.ModuleList(stages)
        # With "identity" the pooled spikes themselves are the feature (the paper's case of equal dimensions).
        self.projector = Projector(inputs, feature_dim) if projector == "linear" else None
        self.classifier = nn.Linear(feature_dim, classes)

    def forward(self, x_BCHW: Tensor) -> Output:
        x = self.act.start(self.norm, self.stem(x_BCHW))  # a static image needs its stem once, not T times
        for stage in self.stages:
            x = stage(x)
        pooled = x.mean(dim=(2, 3))
        feature = pooled if self.projector is None else self.act(self.projector(pooled))
        logits = self.classifier(feature)
        steps = (self.act.steps, -1)
        return Output(logits.unflatten(0, steps), feature.unflatten(0, steps))
