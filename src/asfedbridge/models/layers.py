"""Convolutional and linear layers of a network, by name, type and depth."""

from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn

from asfedbridge.core.payload import Shapes

V = TypeVar("V")
TYPES = (nn.Conv2d, nn.Linear)


def layer_shapes(model: nn.Module) -> Shapes:
    """Shapes of the weights and biases of all convolutional and linear layers, in the network's order."""
    return {
        f"{name}.{part}": tuple(tensor.shape)
        for name, layer in model.named_modules()
        if isinstance(layer, TYPES)
        for part, tensor in layer.named_parameters()
        if part in ("weight", "bias")
    }


def by_layer(tensors: Mapping[str, V]) -> dict[str, dict[str, V]]:
    """Converts {"stem.weight": t} to {"stem": {"weight": t}}."""
    layers: dict[str, dict[str, V]] = {}
    for name, value in tensors.items():
        layer, _, part = name.rpartition(".")
        layers.setdefault(layer, {})[part] = value
    return layers


def match_by_depth(model: nn.Module, other: nn.Module) -> dict[str, str]:
    """Maps each layer to the other network's layer of the same type at the nearest relative depth; last maps to last.

    Layers of a type that the other network does not have are omitted.
    """
    pairs: dict[str, str] = {}
    for kind in TYPES:
        ours, theirs = ([name for name, m in net.named_modules() if isinstance(m, kind)] for net in (model, other))
        for number, name in enumerate(ours if theirs else [], start=1):
            place = (2 * number * len(theirs) + len(ours)) // (2 * len(ours))  # number / ours * theirs, rounded
            pairs[name] = theirs[max(place, 1) - 1]
    return pairs


def overwrite_prefix(target: Tensor, source: Tensor) -> Tensor:
    """A copy of ``target`` whose first entries, in flattened order, are replaced with those of ``source``."""
    count = min(target.numel(), source.numel())
    return torch.cat([source.flatten()[:count], target.flatten()[count:]]).view(target.shape)
