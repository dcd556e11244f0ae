"""Selects the implementation ("path") of spiking layers. All paths compute the same function.

- ``numba``: this package's CPU kernels (``norm_lif``, ``sparse_conv``), compiled on first use and cached on disk.
- ``spikingjelly``: SpikingJelly's multi-step LIF on CUDA (Triton or CuPy), if installed.
- ``torch``: tensor operations only; works on every device.

The environment variable ``ASFEDBRIDGE_NEURON`` forces a path, for example ``ASFEDBRIDGE_NEURON=torch``.
"""

import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

import torch
from torch import Tensor

from asfedbridge.core.errors import BadInput, nearest

PATHS = {
    "numba": "CPU, float32: fused norm + LIF, sparse 3x3 convolution",
    "spikingjelly": "CUDA: SpikingJelly's multi-step LIF (Triton or CuPy)",
    "torch": "any device: LIF as one autograd node of tensor operations",
}
VARIABLE = "ASFEDBRIDGE_NEURON"
_chosen: ContextVar[str | None] = ContextVar("path", default=None)


@cache
def installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def available_paths(device: str = "cpu") -> list[str]:
    """Paths that work on this device type, fastest first."""
    best = {"cpu": "numba", "cuda": "spikingjelly"}.get(device)
    return [best, "torch"] if best is not None and installed(best) else ["torch"]


@contextmanager
def use_path(name: str) -> Iterator[None]:
    """Forces a path inside the ``with`` block and overrides the environment variable. Hooks and operation counters need
    ``torch``: the other paths bypass some layers."""
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
    """The path for a tensor. Under autocast it is ``torch``, because the other paths support one precision only."""
    name = forced_path() or available_paths(x.device.type)[0]
    device = x.device.type
    runs = x.dtype == torch.float32 and device == "cpu" if name == "numba" else device != "meta"
    return name if runs and not torch.is_autocast_enabled(device) else "torch"


@contextmanager
def noticing_compilation(on_compile: Callable[[], None]) -> Iterator[None]:
    """Inside the ``with`` block, ``on_compile`` is called when numba first compiles something.

    A kernel that is loaded from the disk cache is not compiled.
    """
    from numba.core.event import Event, Listener, install_listener

    class FirstCompilation(Listener):
        seen = False

        def on_start(self, event: Event) -> None:
            if not self.seen:
                self.seen = True
                on_compile()

        def on_end(self, event: Event) -> None:
            pass

    with install_listener("numba:compile", FirstCompilation()):
        yield


def describe() -> dict[str, str]:
    """Maps each path to its description and its status on this machine."""
    cuda = torch.cuda.is_available()
    used = {forced_path() or available_paths(device)[0] for device in ("cpu", *["cuda"] * cuda)}

    def state(name: str) -> str:
        if name in used:
            return "in use"
        if name != "torch" and not installed(name):
            return "not installed"
        return "no CUDA device here" if name == "spikingjelly" and not cuda else "available"

    return {name: f"{about} ({state(name)})" for name, about in PATHS.items()}
