"""What a round costs under each method: payloads, and local training by the passes it declares."""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import nn

from asfedbridge.analysis.costs import Measured, full_precision, mean_of
from asfedbridge.analysis.operations import Profile, profile
from asfedbridge.core.compression import encoded_bytes
from asfedbridge.core.errors import BadInput
from asfedbridge.core.payload import MB
from asfedbridge.core.protocol import Client, ClientInfo, Method, Task, first_of_each
from asfedbridge.data.loader import Shard
from asfedbridge.methods.fedtgp import FedTGP
from asfedbridge.models.zoo import outline_backbone


def uses_bridge(task: Task, method: Method, clients: Sequence[ClientInfo]) -> bool:
    return any(len(method.client_passes(task, c)) > 1 for c in first_of_each(clients))


def payload_cost(task: Task, method: Method, clients: Sequence[ClientInfo]) -> dict[str, float]:
    """Largest payloads of a round in MB: means over clients, and what passes the server."""
    ups = [method.largest_upload(task, c) / MB for c in clients]
    downs = [method.largest_download(task, c) / MB for c in clients]
    up = sum(ups) / len(ups)
    # The paper's table counts the generator of FedTGP, which stays on the server.
    table = encoded_bytes(method.generator_shapes(task), "none") / MB if isinstance(method, FedTGP) else up
    return {"up_mb": up, "down_mb": sum(downs) / len(downs), "table_mb": table, "server_mb": sum(ups) + sum(downs)}


def training_cost(
    task: Task, method: Method, clients: Sequence[ClientInfo], measured: Measured | None = None
) -> dict[str, dict[str, float | None]]:
    """By kind of client, for one example and round: FLOPs, of an SNN client those beside its backbone, and SOPs.

    Each of the two products of a spike-driven layer's backward pass has the layer's own multiply-accumulates.
    """
    once = {c.shape: _round_cost(task, method, c, measured or {}) for c in first_of_each(clients)}
    means: dict[str, dict[str, float | None]] = {}
    for kind in dict.fromkeys(c.kind for c in clients):
        entries = [once[c.shape] for c in clients if c.kind == kind]
        columns = {key: [entry[key] for entry in entries] for key in entries[0]}
        means[kind] = {key: mean_of(values) for key, values in columns.items()}
    return means


def _round_cost(task: Task, method: Method, info: ClientInfo, measured: Measured) -> dict[str, float | None]:
    passes = dict(method.client_passes(task, info))
    cost: dict[str, float | None] = {}
    if info.kind == "snn":
        forward, backward = passes.pop("backbone")
        known = measured.get(info.shape)
        cost["gsops"] = None if known is None or known.sops is None else (forward + 2 * backward) * known.sops / 1e9
    outline = outline_client(method, task, info) if passes else None
    flops = 0.0
    for name, (forward, backward) in passes.items():
        assert outline
        batch = _profile(find_network(outline, name), task)
        flops += (forward * batch.forward + backward * batch.backward) / task.batch_size
    return {"gflops": flops / 1e9} | cost


def refusal(task: Task, method: Method, clients: Sequence[ClientInfo]) -> str | None:
    """Why this method cannot run this fleet, if it cannot."""
    try:
        method.check(task, clients)
    except BadInput as error:
        return str(error)
    return None


def outline_client(method: Method, task: Task, info: ClientInfo) -> Client:
    """All networks of a client on the meta device; of a low-bit client, those of its ANN twin, as its layers run."""
    whole = full_precision(info)
    none = torch.empty(0, task.channels, task.image_size, task.image_size, dtype=torch.uint8)
    labels = torch.empty(0, dtype=torch.int64)
    mean = [0.5] * task.channels
    shard = Shard(none, labels, none, labels, mean, mean, "none")
    client = Client(whole, task, outline_backbone(task, whole), shard, "meta")
    method.client_init(client)
    return client


def find_network(client: Client, name: str) -> nn.Module:
    """A module of a client, or by its dotted name a part of one."""
    module, _, part = name.partition(".")
    return client.modules[module].get_submodule(part)


@lru_cache(maxsize=64)
def _profile(network: nn.Module, task: Task) -> Profile:
    return profile(network, task, task.batch_size)
