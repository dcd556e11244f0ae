"""Operation counts of networks on the meta device, where only shapes are computed.

Multiply-accumulates of single layers follow the paper's equation; whole passes are counted by torch's FLOP counter.
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
NORM_FLOPS = 2  # per normalised value: a product and a sum; in the backward pass the same for each of two gradients


class Layer(NamedTuple):
    """A convolution or linear layer, for one example."""

    macs: int  # multiply-accumulates per time step
    steps: int  # number of executions: T after the first neuron of an SNN
    convolution: bool
    spiking: bool  # its inputs are spikes


class Profile(NamedTuple):
    """Dense FLOPs of one batch. ``backward`` does not include the forward pass."""

    forward: int
    backward: int
    spiking: int  # FLOPs of products with spike inputs: in forward and, as weight gradients, in backward


def macs_of(layer: nn.Module, out: Tensor) -> int:
    """H W C_out C_in / g K_h K_w for a convolution, d_in d_out for a linear layer: one row of the output."""
    assert isinstance(layer, nn.Conv2d | nn.Linear)
    if isinstance(layer, nn.Linear):
        return out[0].numel() * layer.in_features
    return out[0].numel() * layer.in_channels // layer.groups * math.prod(layer.kernel_size)


Hook = Callable[[str, nn.Module, Tensor, Tensor], None]  # name, layer, its input, its output


@contextmanager
def watch(network: nn.Module, kinds: tuple[type[nn.Module], ...], hook: Hook) -> Iterator[None]:
    """Call ``hook`` for every layer of these types that runs inside the context."""

    def listen(name: str) -> Any:
        return lambda layer, inputs, out: hook(name, layer, inputs[0], out)

    with ExitStack() as hooks:
        for name, layer in network.named_modules():
            if isinstance(layer, kinds):
                hooks.callback(layer.register_forward_hook(listen(name)).remove)
        yield


@contextmanager
def follow_spikes(network: nn.Module) -> Iterator[Callable[[Tensor], bool]]:
    """Yields a function that tells whether a tensor computed inside the context consists of spikes.

    This depends on the network's structure, not on values. Outputs of neurons are spikes, and so are their views and
    max-pooled spikes. The result of any other operation (mean, sum, normalisation) is not, even if it is all zero.
    """

    def is_spikes(x: Tensor) -> bool:
        return getattr(_origin(x), "is_spikes", False)

    def note(name: str, layer: nn.Module, x: Tensor, out: Tensor) -> None:
        if not isinstance(layer, nn.MaxPool2d) or is_spikes(x):
            _origin(out).is_spikes = True  # type: ignore[attr-defined]

    with watch(network, (*_neurons(), nn.MaxPool2d), note):
        yield is_spikes


def _origin(x: Tensor) -> Tensor:
    """The base tensor of a view."""
    return x if x._base is None else x._base


def _neurons() -> tuple[type[nn.Module], ...]:
    """Module types that emit spikes: ours, and SpikingJelly's if it has been imported."""
    jelly = sys.modules.get("spikingjelly.activation_based.neuron")
    return (Spiking,) if jelly is None else (Spiking, jelly.BaseNode)


def examples(network: nn.Module, task: Task, count: int) -> tuple[Tensor, ...]:
    """Meta inputs of a network: features for a head, two features for attention, images for other networks."""
    if isinstance(network, nn.Linear):
        return (torch.empty(count, network.in_features, device="meta"),)
    if isinstance(network, Attention):
        feature = torch.empty(count, task.feature_dim, device="meta")
        return feature.clone().requires_grad_().clone(), feature  # the first is an output of the private model
    return (torch.empty(count, task.channels, task.image_size, task.image_size, device="meta"),)


@torch.no_grad()
def count_layers(network: nn.Module, task: Task) -> dict[str, Layer]:
    """All convolutions and linear layers of a network on the meta device, in execution order."""
    found: dict[str, Layer] = {}

    def note(name: str, layer: nn.Module, x: Tensor, out: Tensor) -> None:
        found[name] = Layer(macs_of(layer, out), len(out) // 2, isinstance(layer, nn.Conv2d), is_spikes(x))

    with follow_spikes(network) as is_spikes, watch(network, TYPES, note):
        network(*examples(network, task, 2))
    return found


def profile(network: nn.Module, task: Task, count: int) -> Profile:
    """Count a forward and backward pass of a network on the meta device, for ``count`` examples in training mode.

    torch counts convolutions and matrix products; normalisation is added.
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
    """torch's FLOP counter, corrected for grouped convolutions: it counts their weight gradient once per group."""
    rules = {torch.ops.aten.convolution_backward: _convolution_backward}
    return FlopCounterMode(display=False, custom_mapping=rules)


def _convolution_backward(
    grad_shape: Any, x_shape: Any, weight_shape: Any, *more: Any, out_shape: Any = None, **named: Any
) -> int:
    """One product of the size of the forward one for each requested gradient (input, weight)."""
    *_, transposed, _, _, mask = more
    return int(sum(mask[:2])) * int(conv_flop_count(x_shape, weight_shape, grad_shape, transposed))
