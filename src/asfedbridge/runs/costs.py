"""Costs of a specification or of a finished run. docs/costs.md explains every key."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from asfedbridge.analysis import costs, round_costs
from asfedbridge.analysis.costs import Operations
from asfedbridge.analysis.firing import Firing, firing_rates
from asfedbridge.core.method import METHODS, Method
from asfedbridge.core.task import ClientInfo, Task, first_of_each
from asfedbridge.data.dataset import check_image_size
from asfedbridge.engines import checkpoint
from asfedbridge.engines.process import prepare_process
from asfedbridge.engines.turn import EVALUATION_BATCH
from asfedbridge.models.zoo import check_backbone, outline_backbone
from asfedbridge.runs.analyze import open_run, read_last
from asfedbridge.runs.cost_record import (
    FORMAT,
    CostTable,
    RunCosts,
    parse_costs,
    parse_run_costs,
    read_costs,
    write_costs,
)
from asfedbridge.runs.fleet import parse_fleet
from asfedbridge.runs.folder import CHECKPOINT
from asfedbridge.runs.rebuild import rebuild
from asfedbridge.runs.recipes import paper
from asfedbridge.runs.setting import Setting, prepare
from asfedbridge.runs.spec import Spec

Table = dict[str, Any]


class Spikes(NamedTuple):
    """Measurements on the clients of one shape."""

    operations: Operations
    rates: dict[str, list[float]]  # mean over clients, by layer and time step


def shape_task(spec: Spec, classes: int, channels: int) -> tuple[Task, list[ClientInfo]]:
    """The task and clients of a specification for images of a given shape, without reading data."""
    check_image_size(spec.image_size)
    names = ("epochs", "batch_size", "feature_dim", "projector", "quantiser", "compress")
    shared = {name: getattr(spec, name) for name in names}
    task = Task(classes, channels, spec.image_size or 32, **shared)
    clients = parse_fleet(spec.fleet, spec.T)
    for client in clients:
        check_backbone(task, client)
    return task, clients


def paper_costs() -> CostTable:
    """The paper's setting: CIFAR-100, five ANN and five SNN clients of full width."""
    spec = paper()
    return cost_table(spec, *shape_task(spec, classes=100, channels=3))


def measure_run(path: Path, data_root: Path) -> tuple[Spec, Setting, dict[ClientInfo, Spikes]]:
    """Spikes of the SNN clients of a finished run on their test images, at the method's evaluation point."""
    spec, summary = open_run(path)
    prepare_process(spec.threads)
    setting = prepare(spec, data_root)
    last = read_last(path, summary.played, setting.identity(spec))
    states = path / CHECKPOINT / checkpoint.CLIENTS
    spiking = [c for c in setting.clients if c.kind == "snn" and c.test_size]
    found: dict[ClientInfo, list[tuple[dict[str, Firing], int]]] = {}
    for client in rebuild(spec, setting, spiking, last, states, spec.method.reports, closing=True):
        layers = firing_rates(client, client.shard.test_batches(EVALUATION_BATCH))
        found.setdefault(client.info.shape, []).append((layers, client.info.test_size))
    return spec, setting, {shape: _spikes(parts) for shape, parts in found.items()}


def run_costs(folder: Path, data_root: Path) -> RunCosts:
    """Costs of a finished run with the spikes of its own clients: a forward pass of its fleet, and its method.

    The result is cached in the run folder.
    """
    if (known := read_costs(folder)) is not None:
        return known
    spec, setting, spikes = measure_run(folder, data_root)
    task, clients = setting.task, setting.clients
    measured = {shape: s.operations for shape, s in spikes.items()}
    shared = spec.method.shared_network(task)
    forward = _millions(costs.configuration_cost(task, clients, shared, measured), energy=False)
    found = parse_run_costs({"format": FORMAT, "forward": forward, **_method(task, spec.method, clients, measured)})
    write_costs(folder, found)
    return found


def cost_table(
    spec: Spec,
    task: Task,
    clients: Sequence[ClientInfo],
    spikes: Mapping[ClientInfo, Spikes] | None = None,
    energy: bool = False,
) -> CostTable:
    """Costs of models, configurations and methods, in the paper's units (millions, billions, MB)."""
    spikes = spikes or {}
    measured = {shape: s.operations for shape, s in spikes.items()}
    bridge = costs.bridge_for(task, spec.method)
    configurations = costs.controls(clients[0].model, clients[0].width)
    models = first_of_each([*clients, *(c for group, _ in configurations.values() for c in group)])
    configurations["fleet"] = (list(clients), spec.method.shared_network(task) is not None)

    def of(group: Sequence[ClientInfo], shared: bool) -> Table:
        cost = costs.configuration_cost(task, group, bridge if shared else None, measured)
        return {"bridge": shared, **_millions(cost, energy)}

    table: Table = {
        "format": FORMAT,
        "setting": {
            "fleet": spec.fleet,
            "T": spec.T,
            "method": spec.method.name,
            "classes": task.classes,
            "channels": task.channels,
            "image_size": task.image_size,
            "feature_dim": task.feature_dim,
            "epochs": task.epochs,
            "batch_size": task.batch_size,
        },
        "bridge": {"mflops": costs.network_flops(task, bridge) / 1e6, "parameters": _parameters(bridge)},
        "models": [
            {key: getattr(c, key) for key in ("model", "width", "kind", "T", "bits")}
            | {"parameters": _parameters(outline_backbone(task, c))}
            | _millions(costs.configuration_cost(task, [c], None, measured), energy)
            | ({"rates": spikes[c.shape].rates} if c.shape in spikes else {})
            for c in models
        ],
        "configurations": {name: of(group, shared) for name, (group, shared) in configurations.items()},
        "methods": {m.name: _method(task, m, clients, measured if m == spec.method else {}) for m in _methods(spec)},
    }
    return parse_costs(table)


def _method(
    task: Task, method: Method, clients: Sequence[ClientInfo], measured: Mapping[ClientInfo, Operations]
) -> Table:
    """``measured`` must come from a run of this method: after another one, neurons fire at other rates."""
    if why := round_costs.refusal(task, method, clients):
        return {"refused": why}
    training = round_costs.training_cost(task, method, clients, measured)
    return {**round_costs.payload_cost(task, method, clients), "training": training}


def _methods(spec: Spec) -> list[Method]:
    """All methods. Those other than the specification's have default fields and a shared network of the same size."""
    own = spec.method
    return [own if name == own.name else cls().sized_like(own) for name, cls in sorted(METHODS.items())]


def _millions(cost: Operations, energy: bool) -> Table:
    def m(value: float | None) -> float | None:
        return None if value is None else value / 1e6

    table: Table = {
        "mflops": m(cost.flops),
        "low_bit_mmacs": m(cost.low_bit_macs),
        "mbitops": m(cost.bitops),
        "msops": m(cost.sops),
        "msops_by_rate": m(cost.sops_by_rate),
        "spiking_mmacs": m(cost.spiking_macs),
        "dense_mflops": m(cost.dense_flops),
    }
    return table | ({"energy_uj": m(cost.energy)} if energy else {})


def _spikes(parts: Sequence[tuple[Mapping[str, Firing], int]]) -> Spikes:
    layers, counts = [part for part, _ in parts], [count for _, count in parts]
    rates = {}
    for name in layers[0]:
        columns = zip(*(part[name].rates() for part in layers), strict=True)
        rates[name] = [sum(column) / len(column) for column in columns]
    return Spikes(costs.measured_cost(layers, counts), rates)


def _parameters(network: Any) -> int:
    return sum(p.numel() for p in network.parameters())
