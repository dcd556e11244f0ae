"""Trains an SNN client as its ANN twin: the same tensors, with ReLU instead of spiking neurons."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from torch import nn

from asfedbridge.core.client import Client
from asfedbridge.models.neuron import Continuous, Spiking


@contextmanager
def as_twin(client: Client) -> Iterator[None]:
    """Inside the ``with`` block, the client is an ANN client with one time step. It keeps its weights, BatchNorm
    statistics and momentum, before and after."""
    info, places = client.info, _spiking(client.backbone)
    twin = Continuous()
    for module, name, _ in places:
        setattr(module, name, twin)
    client.info = replace(info, kind="ann", T=1)
    try:
        yield
    finally:
        client.info = info
        for module, name, neuron in places:
            setattr(module, name, neuron)


def _spiking(network: nn.Module) -> list[tuple[nn.Module, str, Spiking]]:
    """All spiking activations as (parent module, attribute name, activation)."""
    found = ((module, name, child) for module in network.modules() for name, child in module.named_children())
    return [(module, name, child) for module, name, child in found if isinstance(child, Spiking)]
