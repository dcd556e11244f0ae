"""What a model weighs and what it computes, counted on the model itself."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn


def count_parameters(model: nn.Module) -> int:
    """Trainable scalars."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def count_multiply_adds(model: nn.Module, channels: int, size: int) -> dict[str, int]:
    """By name, of all convolutional and linear layers, for one image and one time step."""
    found: dict[str, int] = {}

    def watch(name: str) -> Callable[..., None]:
        def note(layer: nn.Conv2d | nn.Linear, inputs: object, output: Tensor) -> None:
            found[name] = output[:1].numel() * layer.weight[:1].numel()

        return note

    # In double precision, which none of our kernels takes: every layer is called.
    own = copy.deepcopy(model).double().to_empty(device="cpu").eval()
    for name, layer in own.named_modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.register_forward_hook(watch(name))
    with torch.no_grad():
        for tensor in (*own.parameters(), *own.buffers()):
            tensor.zero_()
        own(torch.zeros(1, channels, size, size, dtype=torch.float64))
    return found
