"""Operations of one forward pass per model and configuration, as in the paper. Formulas: docs/costs.md."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from torch import nn

from asfedbridge.analysis.firing import Firing
from asfedbridge.analysis.operations import Layer, count_layers
from asfedbridge.core.method import Method
from asfedbridge.core.task import ClientInfo, Kind, Task
from asfedbridge.models.zoo import outline_backbone, outline_bridge

MAC_PJ, AC_PJ, MAC8_PJ = 4.6, 0.9, 0.23  # 45 nm, 0.9 V (Horowitz, ISSCC 2014): float32 3.7 + 0.9, addition only, int8


@dataclass(frozen=True)
class Operations:
    """Operations of one example in a forward pass. None means unknown without a trained model."""

    flops: float = 0.0  # in full precision; 2 per multiply-accumulate of convolutions and linear layers
    low_bit_macs: float = 0.0
    bitops: float = 0.0
    sops: float | None = 0.0  # accumulations caused by spikes, counted exactly
    sops_by_rate: float | None = 0.0  # the paper's M sum_t rate_t
    spiking_macs: float = 0.0  # of spike-driven layers over all steps: the SOPs if every input fired
    dense_flops: float = 0.0  # of an SNN's layers without spike inputs; not in the paper's tables
    eight_bit: bool = False

    @property
    def energy(self) -> float | None:
        """Energy in picojoules; None if operations are unknown or have no energy constant."""
        if self.sops is None or (self.low_bit_macs and not self.eight_bit):
            return None
        return (self.flops + self.dense_flops) / 2 * MAC_PJ + self.sops * AC_PJ + self.low_bit_macs * MAC8_PJ


Measured = Mapping[ClientInfo, Operations]  # by shape


def full_precision(info: ClientInfo) -> ClientInfo:
    """The client, or the ANN twin of a low-bit client, whose layers do not run on the meta device."""
    return info if info.kind in ("ann", "snn") else replace(info, kind="ann", bits=32)


def forward_cost(task: Task, info: ClientInfo) -> Operations:
    """Counts from shapes only; the spikes of an SNN are unknown.

    In a low-bit network all convolutions except the stem are low-bit. In an SNN, layers without spike inputs are dense:
    the stem (reads the image), the projection (reads means over space) and, in some families, layers that read sums.
    """
    layers = _layers(outline_backbone(task, full_precision(info)), task)
    macs = {name: float(layer.macs * layer.steps) for name, layer in layers.items()}
    dense = sum(macs[name] for name, layer in layers.items() if not layer.spiking)
    if info.kind == "snn":
        return Operations(0.0, 0.0, 0.0, None, None, sum(macs.values()) - dense, 2 * dense)
    if info.kind == "ann":
        return Operations(2 * sum(macs.values()))
    full = sum(macs[name] for name, layer in layers.items() if name == "stem" or not layer.convolution)
    low = sum(macs.values()) - full
    return Operations(2 * full, low, low * info.bits**2, eight_bit=info.bits == 8)


def measured_cost(clients: Sequence[Mapping[str, Firing]], examples: Sequence[int]) -> Operations:
    """The mean over SNN clients of one shape, from their measured spikes."""
    parts = []
    for layers, count in zip(clients, examples, strict=True):
        spiking = [layer for layer in layers.values() if layer.spiking]
        dense = sum(layer.macs * len(layer.spikes_T) for layer in layers.values() if not layer.spiking)
        parts.append(
            Operations(
                sops=sum(layer.synops for layer in spiking) / count,
                sops_by_rate=sum(layer.sops for layer in spiking),
                spiking_macs=sum(layer.macs * len(layer.spikes_T) for layer in spiking),
                dense_flops=2.0 * dense,
            )
        )
    return mean_cost(parts)


def mean_of(values: Sequence[float | None]) -> float | None:
    """The mean; None if any value is None."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None


def mean_cost(parts: Sequence[Operations]) -> Operations:
    names = [name for name in Operations.__dataclass_fields__ if name != "eight_bit"]
    means: dict[str, Any] = {name: mean_of([getattr(part, name) for part in parts]) for name in names}
    return Operations(**means, eight_bit=all(p.eight_bit or not p.low_bit_macs for p in parts))


def configuration_cost(
    task: Task, clients: Sequence[ClientInfo], bridge: nn.Module | None, measured: Measured | None = None
) -> Operations:
    """The mean over clients of one forward pass of the private model plus, if given, one of the Bridge."""
    known = {shape: (measured or {}).get(shape) or forward_cost(task, shape) for shape in {c.shape for c in clients}}
    cost = mean_cost([known[c.shape] for c in clients])
    return cost if bridge is None else replace(cost, flops=cost.flops + network_flops(task, bridge))


def network_flops(task: Task, network: nn.Module) -> float:
    return 2.0 * sum(layer.macs * layer.steps for layer in _layers(network, task).values())


def controls(model: str, width: float) -> dict[str, tuple[list[ClientInfo], bool]]:
    """The paper's controls: ten clients of one kind without a Bridge; five ANN clients and five others with one."""

    def client(kind: Kind, T: int = 1, bits: int = 32) -> ClientInfo:
        return ClientInfo(0, kind, model, width, T, bits=bits)

    ann = client("ann")
    others = {"bnn": client("bnn", bits=1)} | {f"qnn:b={b}": client("qnn", bits=b) for b in (2, 4, 8)}
    others |= {f"snn:T={T}": client("snn", T) for T in (2, 4, 8)} | {"ann": ann}
    alone = {name: ([other] * 10, False) for name, other in others.items()}
    return alone | {f"ann+{name}": ([ann] * 5 + [other] * 5, True) for name, other in others.items()}


def bridge_for(task: Task, method: Method) -> nn.Module:
    """The method's shared network, or the paper's Bridge if it has none."""
    own = method.shared_network(task)
    return outline_bridge(task, width=1.0, norm="batch") if own is None else own


@lru_cache(maxsize=64)
def _layers(network: nn.Module, task: Task) -> dict[str, Layer]:
    return count_layers(network, task)
