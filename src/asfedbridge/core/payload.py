"""Payloads: named tensors, flat, detached, on the CPU. The only thing that crosses the boundary of a client."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from asfedbridge.core.errors import Diverged

Payload = dict[str, Tensor]
Shapes = dict[str, tuple[int, ...]]  # what a method declares it will send; every payload is float32
MB = 2**20


class GuardError(RuntimeError):
    """A payload is not what the method declared: a programming error or an attack, never a user's typo."""


def _shared(module: nn.Module, buffers: bool) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = dict(module.named_parameters())
    if buffers:
        tensors |= {name: b for name, b in module.named_buffers() if b.is_floating_point()}
    return tensors


def select(module: nn.Module, buffers: bool = False) -> Payload:
    """Copies of a module's trainable tensors, and of its floating-point buffers when asked (BN statistics)."""
    return clone(_shared(module, buffers))


def shapes(module: nn.Module, buffers: bool = False) -> Shapes:
    """The shapes ``select`` would give; works on a module without memory (device "meta")."""
    return {name: tuple(t.shape) for name, t in _shared(module, buffers).items()}


@torch.no_grad()
def load(module: nn.Module, payload: Payload) -> None:
    """Copy a payload into the module's tensors of the same names; a name or shape that does not fit raises."""
    own = dict(module.named_parameters()) | dict(module.named_buffers())
    for name, tensor in payload.items():
        if name not in own:
            raise GuardError(f"payload holds '{name}', which {type(module).__name__} does not have")
        if own[name].shape != tensor.shape:
            raise GuardError(f"payload's '{name}' has shape {tuple(tensor.shape)}, not {tuple(own[name].shape)}")
        own[name].copy_(tensor)


def clone(tensors: Mapping[str, Tensor]) -> Payload:
    """Copies on the CPU, each laid out plainly: memory format must not follow a tensor over the boundary."""
    return {name: t.detach().cpu().clone(memory_format=torch.contiguous_format) for name, t in tensors.items()}


def weighted_mean(payloads: Sequence[Payload], weights: Sequence[float]) -> Payload:
    """sum_i w_i / sum(w) * payload_i, added up in the order given: float sums are not associative."""
    total = float(sum(weights))
    mean = {name: t * (weights[0] / total) for name, t in payloads[0].items()}
    for payload, weight in zip(payloads[1:], weights[1:], strict=True):
        for name, t in payload.items():
            mean[name].add_(t, alpha=weight / total)
    return mean


def size_in_bytes(payload: Payload) -> int:
    return sum(t.numel() * t.element_size() for t in payload.values())


def check(payload: Payload, declared: Mapping[str, tuple[int, ...]], what: str, partial: bool = False) -> None:
    """Let a payload pass only if it is exactly what was declared, or, if ``partial``, some of it.

    ``what`` says whose it is, for the message.
    """
    for name, tensor in payload.items():
        if name not in declared:
            raise GuardError(f"{what}: tensor '{name}' is private, it was not declared and must not leave")
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
