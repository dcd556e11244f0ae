"""Payloads: flat dictionaries of detached CPU tensors. Nothing else crosses the boundary of a client."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from asfedbridge.core.errors import Diverged, GuardError

Payload = dict[str, Tensor]
Shapes = dict[str, tuple[int, ...]]  # declared names and shapes; every payload is float32
MB = 2**20
RUNNING_VARIANCE = "running_var"  # torch's name for BatchNorm's buffer


def _shared(module: nn.Module, buffers: bool) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = dict(module.named_parameters())
    if buffers:
        tensors |= {name: b for name, b in module.named_buffers() if b.is_floating_point()}
    return tensors


def select(module: nn.Module, buffers: bool = False) -> Payload:
    """Copies of a module's parameters and, with ``buffers``, of its floating-point buffers (BatchNorm statistics)."""
    return clone(_shared(module, buffers))


def shapes(module: nn.Module, buffers: bool = False) -> Shapes:
    """The shapes of what ``select`` returns; also works on the meta device."""
    return {name: tuple(t.shape) for name, t in _shared(module, buffers).items()}


@torch.no_grad()
def load(module: nn.Module, payload: Payload) -> None:
    """Copy a payload into the module's tensors of the same names. Raises GuardError if a name or shape does not fit."""
    own = dict(module.named_parameters()) | dict(module.named_buffers())
    for name, tensor in payload.items():
        if name not in own:
            raise GuardError(f"payload holds '{name}', which {type(module).__name__} does not have")
        if own[name].shape != tensor.shape:
            raise GuardError(f"payload's '{name}' has shape {tuple(tensor.shape)}, not {tuple(own[name].shape)}")
        own[name].copy_(tensor)


def clone(tensors: Mapping[str, Tensor]) -> Payload:
    """Contiguous copies on the CPU: a payload must not depend on the memory format of its tensors."""
    return {name: t.detach().cpu().clone(memory_format=torch.contiguous_format) for name, t in tensors.items()}


def weighted_mean(payloads: Sequence[Payload], weights: Sequence[float]) -> Payload:
    """sum_i w_i / sum(w) * payload_i, added in the given order because float addition is not associative."""
    total = float(sum(weights))
    mean = {name: t * (weights[0] / total) for name, t in payloads[0].items()}
    for payload, weight in zip(payloads[1:], weights[1:], strict=True):
        for name, t in payload.items():
            mean[name].add_(t, alpha=weight / total)
    return mean


def size_in_bytes(payload: Payload) -> int:
    return sum(t.numel() * t.element_size() for t in payload.values())


def check(payload: Payload, declared: Mapping[str, tuple[int, ...]], what: str, partial: bool = False) -> None:
    """Raise unless a payload has exactly the declared tensors or, if ``partial``, a subset of them.

    ``what`` names the payload in messages.
    """
    for name, tensor in payload.items():
        if name not in declared:
            raise GuardError(f"{what}: tensor '{name}' is private: the method did not declare it")
        if tuple(tensor.shape) != tuple(declared[name]):
            raise GuardError(f"{what}: '{name}' has shape {tuple(tensor.shape)}, declared {tuple(declared[name])}")
        if tensor.dtype != torch.float32:
            raise GuardError(f"{what}: '{name}' is {tensor.dtype}, payloads are float32")
        if tensor.requires_grad or tensor.device.type != "cpu":
            raise GuardError(f"{what}: '{name}' is not a detached CPU tensor")
        if not torch.isfinite(tensor).all():
            raise Diverged(f"{what}: '{name}' holds NaN or infinity")
    missing = declared.keys() - payload.keys()
    if missing and not partial:
        raise GuardError(f"{what}: declared tensor '{min(missing)}' is missing")


def check_range(payload: Payload, ending: str, least: float = -math.inf, most: float = math.inf) -> None:
    """Raise GuardError if a tensor whose name ends with ``ending`` has values out of range."""
    for name, tensor in payload.items():
        if name.endswith(ending) and ((tensor < least) | (tensor > most)).any():
            low, high = tensor.min().item(), tensor.max().item()
            raise GuardError(f"'{name}' has values from {low:.3g} to {high:.3g}; expected {least:g} to {most:g}")
