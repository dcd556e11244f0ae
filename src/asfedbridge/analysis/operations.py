"""Operations of a network, counted on the meta device: shapes are computed, numbers are not.

Multiply-accumulates of each layer by the paper's equation, and forward and backward passes by torch's FLOP counter.
"""

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count

from asfedbridge.core.task import Task
from asfedbridge.models.attention import Attention
from asfedbridge.models.layers import TYPES
from asfedbridge.models.neuron import Spiking

NORMS = (nn.BatchNorm2d, nn.GroupNorm)
NORM_FLOPS = 2  # for each normalised value, a product and a sum; backward as often again for each of its two gradients


class Layer(NamedTuple):
    """A convolution or a linear layer under one example."""

    macs: int  # multiply-accumulates of one time step
    steps: int  # how often it runs: T behind the first neuron of an SNN
    convolution: bool
    spiking: bool  # its inputs are spikes


class Profile(NamedTuple):
    """FLOPs of one batch, executed densely; the backward pass does not include the forward pass."""

    forward: int
    backward: int
    spiking: int  # part of both: the products of layers that read spikes, and the gradients of their weights


def macs_of(layer: nn.Module, out: Tensor) -> int:
    """H W C_out C_in / g K_h K_w of a convolution, d_in d_out of a linear layer: for the first row of its output."""
    assert isinstance(layer, nn.Conv2d | nn.Linear)
    if isinstance(layer, nn.Linear):
        return out[0].numel() * layer.in_features
    return out[0].numel() * layer.in_channels // layer.groups * math.prod(layer.kernel_size)


Hook = Callable[[str, nn.Module, Tensor, Tensor], None]  # name, layer, its input, its output


@contextmanager
def watch(network: nn.Module, kinds: tuple[type[nn.Module], ...], hook: Hook) -> Iterator[None]:
    """Call ``hook`` for every layer of these kinds that runs inside."""

    def listen(name: str) -> Any:
        return lambda layer, inputs, out: hook(name, layer, inputs[0], out)

    with ExitStack() as hooks:
        for name, layer in network.named_modules():
            if isinstance(layer, kinds):
                hooks.callback(layer.register_forward_hook(listen(name)).remove)
        yield


@contextmanager
def follow_spikes(network: nn.Module) -> Iterator[Callable[[Tensor], bool]]:
    """A test for tensors that arise inside: are they spikes, whatever values they hold?

    The structure of the network decides. Neurons emit spikes, a maximum over spikes is a spike, and so is a view of
    spikes. The result of any other operation (a mean, a sum, a norm) is not, even if it happens to be all zero.
    """

    def is_spikes(x: Tensor) -> bool:
        return getattr(_origin(x), "is_spikes", False)

    def note(name: str, layer: nn.Module, x: Tensor, out: Tensor) -> None:
        if not isinstance(layer, nn.MaxPool2d) or is_spikes(x):
            _origin(out).is_spikes = True  # type: ignore[attr-defined]

    with watch(network, (*_neurons(), nn.MaxPool2d), note):
        yield is_spikes


def _origin(x: Tensor) -> Tensor:
    """The tensor that a view looks at."""
    return x if x._base is None else x._base


def _neurons() -> tuple[type[nn.Module], ...]:
    """Modules that emit spikes: ours, and SpikingJelly's where a model has imported them."""
    jelly = sys.modules.get("spikingjelly.activation_based.neuron")
    return (Spiking,) if jelly is None else (Spiking, jelly.BaseNode)


def examples(network: nn.Module, task: Task, count: int) -> tuple[Tensor, ...]:
    """Inputs of this network without values: images for a network, features for a head, two features for attention."""
    if isinstance(network, nn.Linear):
        return (torch.empty(count, network.in_features, device="meta"),)
    if isinstance(network, Attention):
        feature = torch.empty(count, task.feature_dim, device="meta")
        return feature.clone().requires_grad_().clone(), feature  # the first comes out of the private model
    return (torch.empty(count, task.channels, task.image_size, task.image_size, device="meta"),)


@torch.no_grad()
def count_layers(network: nn.Module, task: Task) -> dict[str, Layer]:
    """Every convolution and linear layer of a network on the meta device, in the order they run."""
    found: dict[str, Layer] = {}

    def note(name: str, layer: nn.Module, x: Tensor, out: Tensor) -> None:
        found[name] = Layer(macs_of(layer, out), len(out) // 2, isinstance(layer, nn.Conv2d), is_spikes(x))

    with follow_spikes(network) as is_spikes, watch(network, TYPES, note):
        network(*examples(network, task, 2))
    return found


def profile(network: nn.Module, task: Task, count: int) -> Profile:
    """A real forward and backward pass of a network on the meta device, over ``count`` examples in training mode.

    torch counts convolutions and matrix products; normalisation is added to them.
    """
    normalised = spiking = 0

    def note(name: str, layer: nn.Module, x: Tensor, out: Tensor) -> None:
        nonlocal normalised, spiking
        if isinstance(layer, NORMS):
            normalised += out.numel()
        elif is_spikes(x):
            spiking += 2 * macs_of(layer, out) * len(out)

    inputs = examples(network, task, count)
    with follow_spikes(network) as is_spikes, watch(network, (*NORMS, *TYPES), note), make_counter() as counter:
        out = network(*inputs)
        loss = getattr(out, "logits", out).sum()
        forward = counter.get_total_flops()
        wanted = [t for t in (*inputs, *network.parameters()) if t.requires_grad]
        torch.autograd.grad(loss, wanted, allow_unused=True)
        backward = counter.get_total_flops() - forward
    norm = NORM_FLOPS * normalised
    return Profile(forward + norm, backward + 2 * norm, spiking)


def make_counter() -> FlopCounterMode:
    """torch's counter, but for the weight gradient of a grouped convolution, which it counts once for every group."""
    rules = {torch.ops.aten.convolution_backward: _convolution_backward}
    return FlopCounterMode(display=False, custom_mapping=rules)


def _convolution_backward(
    grad_shape: Any, x_shape: Any, weight_shape: Any, *more: Any, out_shape: Any = None, **named: Any
) -> int:
    """One product as large as the forward one for each gradient that is asked for, of the input and of the weight."""
    *_, transposed, _, _, mask = more
    return int(sum(mask[:2])) * int(conv_flop_count(x_shape, weight_shape, grad_shape, transposed))
