"""Layers shared by all families, and their initialisation from an explicit generator."""

import math
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

from asfedbridge.models.neuron import Continuous, Spiking

M = TypeVar("M", bound=nn.Module)


class BatchNorm(nn.BatchNorm2d):
    """BatchNorm that accepts a training batch with one value per channel, for which torch raises an error.

    A single value minus its mean is zero, so the result is the bias. Its variance is undefined, so the running
    statistics are not updated.
    """

    def forward(self, x: Tensor) -> Tensor:
        if self.training and x.numel() == x.shape[1]:
            return self.bias.view(1, -1, 1, 1).expand_as(x)
        return super().forward(x)


def conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)


LARGE_IMAGE = 128  # pixels; images of this size or larger get the ImageNet stem of He et al. (CVPR 2016)


def make_stem(channels: int, outputs: int, image_size: int = 0) -> tuple[nn.Conv2d, nn.MaxPool2d | None]:
    """The first convolution and the pool after its norm: 3x3 and None, or for large images 7x7 and 3x3 with stride 2.

    The pool comes before the activation. For ReLU the order does not matter. In a spiking network the activation then
    has a quarter of the pixels, and the pool processes a static image once instead of T times.
    """
    if image_size < LARGE_IMAGE:
        return conv3x3(channels, outputs), None
    return nn.Conv2d(channels, outputs, 7, 2, padding=3, bias=False), nn.MaxPool2d(3, 2, padding=1)


class Shortcut(nn.Sequential):
    """Identity, or a 1x1 convolution and a norm if the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Callable[[int], nn.Module]) -> None:
        if inputs == outputs and stride == 1:
            super().__init__()
        else:
            super().__init__(nn.Conv2d(inputs, outputs, 1, bias=False), norm(outputs))
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        # The input is sliced because the convolution must not be strided: oneDNN's weight gradient of a strided 1x1
        # convolution in channels-last layout writes out of bounds if there are few channels
        # (uxlfoundation/oneDNN#6035).
        out: Tensor = super().forward(x[:, :, :: self.stride, :: self.stride] if self.stride > 1 else x)
        return out


class Projector(nn.Linear):
    """Maps pooled activations to the shared feature. Its biases start at half the default threshold.

    The inputs of a spiking projector are firing rates averaged over space, about 0.1 to 0.2. With biases of zero its
    neurons would stay an order of magnitude below the threshold: no spikes, hardly any gradient, accuracy at chance.
    """

    start = 0.5


class BasicBlock(nn.Module):
    """act(norm conv act(norm conv x) + shortcut(x)). In an SNN, neurons spike after the addition."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        stride: int,
        act: Spiking | Continuous,
        norm: Callable[[int], nn.Module] = BatchNorm,
    ) -> None:
        super().__init__()
        self.conv1 = conv3x3(inputs, outputs, stride)
        self.norm1 = norm(outputs)
        self.conv2 = conv3x3(outputs, outputs)
        self.norm2 = norm(outputs)
        self.shortcut = Shortcut(inputs, outputs, stride, norm)
        self.act: Spiking | Continuous = act

    def forward(self, x: Tensor) -> Tensor:
        return self.trace(x)[1]

    def trace(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The input of the second convolution, and the block's output."""
        act = self.act
        straight, side = act.fork(self.conv1, self.shortcut, x)
        hidden = act.after(self.norm1, straight)
        return hidden, act.after(self.norm2, act.convolve(self.conv2, hidden), side)


@torch.no_grad()
def initialise(model: nn.Module, generator: torch.Generator) -> None:
    """Initialises convolutions with He normal (fan out), linear layers with torch's uniform, others with constants.

    ANN and SNN twins get the same tensors from the same seed, because activations draw no random numbers.
    """
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            fan_out = layer.out_channels * math.prod(layer.kernel_size) // layer.groups
            layer.weight.normal_(0.0, math.sqrt(2.0 / fan_out), generator=generator)
        elif isinstance(layer, nn.Linear):
            bound = 1 / math.sqrt(layer.in_features)
            layer.weight.uniform_(-bound, bound, generator=generator)
            if isinstance(layer, Projector):
                layer.bias.fill_(layer.start)
            elif layer.bias is not None:
                layer.bias.uniform_(-bound, bound, generator=generator)
        elif reset := getattr(layer, "reset_parameters", None):
            reset()  # norms, ports and step sizes: constants


def build(make: Callable[[], M], generator: torch.Generator) -> M:
    """Builds a model on the meta device, allocates memory and initialises it. Leaves torch's global generator alone."""
    with torch.device("meta"):
        model = make()
    model = model.to_empty(device="cpu")
    initialise(model, generator)
    # Convolutions are faster in this layout, on CPU and GPU.
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model
