"""Costs of a round under each method: payloads, and local training computed from the declared passes."""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import nn

from asfedbridge.analysis.costs import Measured, Operations, full_precision, mean_of
from asfedbridge.analysis.operations import Profile, profile
from asfedbridge.core.client import Client
from asfedbridge.core.errors import BadInput
from asfedbridge.core.method import Method
from asfedbridge.core.payload import MB
from asfedbridge.core.task import ClientInfo, Task, first_of_each
from asfedbridge.data.loader import Shard
from asfedbridge.models.zoo import outline_backbone

NOT_MEASURED = Operations(sops=None, sops_by_rate=None)


def payload_cost(task: Task, method: Method, clients: Sequence[ClientInfo]) -> dict[str, float]:
    """Maximum payloads of a round in MB: means over clients, and the server's total traffic."""
    ups = [method.largest_upload(task, c) / MB for c in clients]
    downs = [method.largest_download(task, c) / MB for c in clients]
    counted = [method.table_upload(task, c) / MB for c in clients]
    means = {name: sum(mb) / len(mb) for name, mb in (("up_mb", ups), ("down_mb", downs), ("table_mb", counted))}
    return means | {"server_mb": sum(ups) + sum(downs)}


def training_cost(
    task: Task, method: Method, clients: Sequence[ClientInfo], measured: Measured | None = None
) -> dict[str, dict[str, float | None]]:
    """Training costs per example and round, by kind of client: GFLOPs, for an SNN client without its backbone.

    The backbone of an SNN has its own keys. In a layer with spike inputs, two of the three products are driven by
    spikes and counted as SOPs: the forward product and the weight gradient, which accumulates output gradients wherever
    an input fired. Both need one accumulation per pair of a spike and an output it reaches. The input gradient is a
    dense product. It is part of ``dense_gflops``, with all other dense operations of the backbone.
    """
    once = {c.shape: _round_cost(task, method, c, measured or {}) for c in first_of_each(clients)}
    means: dict[str, dict[str, float | None]] = {}
    for kind in dict.fromkeys(c.kind for c in clients):
        entries = [once[c.shape] for c in clients if c.kind == kind]
        columns = {key: [entry[key] for entry in entries] for key in entries[0]}
        means[kind] = {key: mean_of(values) for key, values in columns.items()}
    return means


def _round_cost(task: Task, method: Method, info: ClientInfo, measured: Measured) -> dict[str, float | None]:
    client = outline_client(method, task, info)
    flops, cost = 0.0, dict[str, float | None]()
    for name, (forward, backward) in method.client_passes(task, info).items():
        batch = _profile(find_network(client, name), task)
        executed = (forward * batch.forward + backward * batch.backward) / task.batch_size
        if name == "backbone" and info.kind == "snn":
            driven = forward + backward  # passes with spike-driven products
            known = measured.get(info.shape, NOT_MEASURED)
            cost = {
                "gsops": _billions(known.sops, driven),
                "gsops_by_rate": _billions(known.sops_by_rate, driven),
                "dense_gflops": (executed - driven * batch.spiking / task.batch_size) / 1e9,
            }
        else:
            flops += executed
    return {"gflops": flops / 1e9} | cost


def _billions(operations: float | None, times: int) -> float | None:
    return None if operations is None else times * operations / 1e9


def refusal(task: Task, method: Method, clients: Sequence[ClientInfo]) -> str | None:
    """The reason why this method cannot run this fleet; None if it can."""
    try:
        method.check(task, clients)
    except BadInput as error:
        return str(error)
    return None


def outline_client(method: Method, task: Task, info: ClientInfo) -> Client:
    """A client with all its networks on the meta device; for a low-bit client, those of its ANN twin."""
    whole = full_precision(info)
    none = torch.empty(0, task.channels, task.image_size, task.image_size, dtype=torch.uint8)
    labels = torch.empty(0, dtype=torch.int64)
    mean = [0.5] * task.channels
    shard = Shard(none, labels, none, labels, mean, mean, "none")
    client = Client(whole, task, outline_backbone(task, whole), shard, "meta")
    method.client_init(client)
    return client


def find_network(client: Client, name: str) -> nn.Module:
    """A module of a client, or a submodule given by its dotted name."""
    module, _, part = name.partition(".")
    return client.modules[module].get_submodule(part)


@lru_cache(maxsize=64)
def _profile(network: nn.Module, task: Task) -> Profile:
    return profile(network, task, task.batch_size)
