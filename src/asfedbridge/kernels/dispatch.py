"""Which code computes spiking layers here: chosen automatically, the same mathematics on every path.

- ``numba``: kernels of our own for the CPU (``kernels``, ``fused``, ``events``), compiled on first use, then cached.
- ``spikingjelly``: on CUDA, SpikingJelly's multi-step LIF with its Triton or CuPy backend, where it is installed.
- ``torch``: tensor operations only; works everywhere.

``ASFEDBRIDGE_NEURON=torch`` (or another name) in the environment forces a path.
"""

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

import torch
from torch import Tensor

from asfedbridge.core.errors import BadInput, nearest

PATHS = {
    "numba": "CPU, float32: fused norm + LIF, event-driven 3x3 convolution",
    "spikingjelly": "CUDA: SpikingJelly's multi-step LIF (Triton or CuPy)",
    "torch": "any device: LIF as one autograd node of tensor operations",
}
VARIABLE = "ASFEDBRIDGE_NEURON"
_chosen: ContextVar[str | None] = ContextVar("path", default=None)


@cache
def installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def available_paths(device: str = "cpu") -> list[str]:
    """Paths that work on this kind of device, best first."""
    best = {"cpu": "numba", "cuda": "spikingjelly"}.get(device)
    return [best, "torch"] if best is not None and installed(best) else ["torch"]


@contextmanager
def use_path(name: str) -> Iterator[None]:
    """Force a path inside, whatever the environment says: counters and hooks see every layer on ``torch`` alone."""
    token = _chosen.set(name)
    try:
        yield
    finally:
        _chosen.reset(token)


def forced_path() -> str | None:
    name = _chosen.get() or os.environ.get(VARIABLE) or None
    if name is not None and name not in PATHS:
        raise BadInput(f"{VARIABLE}={name} in the environment: unknown path{nearest(name, PATHS)}")
    if name is not None and name != "torch" and not installed(name):
        raise BadInput(f"{VARIABLE}={name} in the environment: {name} is not installed; pip install {name}")
    return name


def path_of(x: Tensor) -> str:
    """The path for a tensor. Under autocast it is ``torch``: the others have kernels of one precision."""
    name = forced_path() or available_paths(x.device.type)[0]
    device = x.device.type
    runs = x.dtype == torch.float32 and device == "cpu" if name == "numba" else device != "meta"
    return name if runs and not torch.is_autocast_enabled(device) else "torch"


def describe() -> dict[str, str]:
    """Each path with what it does and whether it is the one in use here."""
    cuda = torch.cuda.is_available()
    used = {forced_path() or available_paths(device)[0] for device in ("cpu", *["cuda"] * cuda)}

    def state(name: str) -> str:
        if name in used:
            return "in use"
        if name != "torch" and not installed(name):
            return "not installed"
        return "no CUDA device here" if name == "spikingjelly" and not cuda else "available"

    return {name: f"{about} ({state(name)})" for name, about in PATHS.items()}
