"""The base class of all backbone families: stem, stages, pooling, projection to the shared feature, classifier."""

from torch import Tensor, nn

from asfedbridge.core.task import Output
from asfedbridge.models.neuron import Continuous, Spiking
from asfedbridge.models.parts import BatchNorm, Projector, make_stem


def scaled(size: int, width: float) -> int:
    """A channel count times the width multiplier, rounded, at least 1."""
    return max(1, round(size * width))


class Backbone(nn.Module):
    """A family supplies the stages. The activation makes the network an ANN or an SNN with the same trainable tensors.

    ``first`` is the number of channels of the stem, ``pooled`` that of the last stage.
    """

    def __init__(
        self,
        act: Spiking | Continuous,
        channels: int,
        classes: int,
        first: int,
        stages: list[nn.Module],
        pooled: int,
        feature_dim: int = 256,
        projector: str = "linear",
    ) -> None:
        super().__init__()
        self.act = act
        self.pooled = pooled
        self.stem, self.pool = make_stem(channels, first)
        self.norm = BatchNorm(first)
        self.stages = nn.ModuleList(stages)
        # With "identity" the pooled activations are the feature (the paper's case of equal dimensions).
        self.projector = Projector(pooled, feature_dim) if projector == "linear" else None
        self.classifier = nn.Linear(feature_dim, classes)

    def fit_stem(self, image_size: int) -> None:
        """Replaces the stem with the one for this image size, so that families need not handle it."""
        self.stem, self.pool = make_stem(self.stem.in_channels, self.stem.out_channels, image_size)

    def enter(self, x_BCHW: Tensor) -> Tensor:
        """The input of the first stage."""
        return self.act.read(self.stem, self.norm, x_BCHW, self.pool)

    def forward(self, x_BCHW: Tensor) -> Output:
        x = self.enter(x_BCHW)
        for stage in self.stages:
            x = stage(x)
        pooled = x.mean(dim=(2, 3))
        feature = pooled if self.projector is None else self.act(self.projector(pooled))
        logits = self.classifier(feature)
        steps = (self.act.steps, -1)
        return Output(logits.unflatten(0, steps), feature.unflatten(0, steps))
