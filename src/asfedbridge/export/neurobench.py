"""NeuroBench's metrics (Yik et al., Nature Communications 2025) of an exported network, under NeuroBench's names.

Counts what is executed: for a low-bit client its integers, where the package neurobench would see the latent weights.
An SNN's stem reads a static image once.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from asfedbridge.export.loader import Program, Step

BATCH = 16  # images whose activations are in memory at once


class Measured(NamedTuple):
    metrics: dict[str, Any]  # by NeuroBench's names
    sops: float  # synaptic operations per image, as docs/costs.md counts them
    rate: float | None  # SOPs as a share of those if every neuron fired at every step; None: no layer reads spikes


@torch.no_grad()
def measure(program: Program, images: Tensor) -> Measured:
    """Values per image, except sparsities, which are fractions, and ``Footprint``, in bytes.

    ``MembraneUpdates`` counts membranes that differ from the previous step, and all of them in the first step.
    """
    running = program.unpacked()
    macs = acs = dense = zeros = activations = updates = sops = synapses = 0
    spikes = spiking_steps(running)
    for step, inputs, out in executed(running, images):
        if step["op"] in ("conv", "linear"):
            held = running.tensors_of(step)
            dense += _operations(step, torch.ones_like(inputs[0]), torch.ones_like(held["weight"]))
            effective = _operations(step, inputs[0], held["weight"])
            if step["inputs"][0] in spikes:
                every = torch.ones_like(held["weight"])
                sops += _operations(step, inputs[0], every)
                synapses += _operations(step, torch.ones_like(inputs[0]), every)
            if _is_spikes(inputs[0]):
                acs += effective
            else:
                macs += effective
        elif step["op"] in ("lif", "relu"):
            activations += out.numel()
            zeros += out.numel() - int(out.count_nonzero())
            updates += _membrane_updates(inputs[0], **step["options"]) if step["op"] == "lif" else 0
    count = len(images)
    metrics = {
        "Footprint": sum(tensor.nbytes for tensor in program.buffers()),
        "ConnectionSparsity": _connection_sparsity(running),
        "ActivationSparsity": zeros / activations if activations else 0.0,
        "SynapticOperations": {
            "Effective_MACs": macs / count,
            "Effective_ACs": acs / count,
            "Dense": dense / count,
        },
        "MembraneUpdates": updates / count,
    }
    return Measured(metrics, sops / count, sops / synapses if synapses else None)


def executed(program: Program, images: Tensor) -> Iterator[tuple[Step, list[Tensor], Tensor]]:
    """Every step with its inputs and its output, for one batch of images after the other."""
    program.outputs = [step["name"] for step in program.steps]
    for batch in images.split(BATCH):
        values = dict(zip(program.outputs, program(batch), strict=True))
        for step in program.steps:
            yield step, [values.get(name, batch) for name in step["inputs"]], values[step["name"]]


def spiking_steps(program: Program) -> set[str]:
    """Steps whose values are zeros and ones by the structure of the network."""
    found: set[str] = set()
    for step in program.steps:
        passes = step["op"] in ("max_pool", "subsample") and step["inputs"][0] in found
        found |= {step["name"]} if passes or step["op"] == "lif" else set()
    return found


def _is_spikes(x: Tensor) -> bool:
    """NeuroBench's rule: nothing but -1, 0 and 1."""
    return bool(((x == 0) | (x.abs() == 1)).all())


def _operations(step: Step, x: Tensor, weight: Tensor) -> int:
    """The number of products of a nonzero input and a nonzero weight."""
    x, weight = (x != 0).double(), (weight != 0).double()
    out = F.conv2d(x, weight, **step["options"]) if step["op"] == "conv" else F.linear(x, weight)
    return round(out.sum().item())


def _membrane_updates(x: Tensor, steps: int, decay: float, threshold: float) -> int:
    before = torch.zeros_like(x[: len(x) // steps])
    updates = before.numel()
    for t, current in enumerate(x.unflatten(0, (steps, -1)).unbind(0)):
        membrane = current + decay * before
        membrane = membrane * (membrane < threshold)
        updates += int((membrane != before).sum()) if t else 0
        before = membrane
    return updates


def _connection_sparsity(running: Program) -> float:
    weights = [running.tensors_of(step)["weight"] for step in running.steps if step["op"] in ("conv", "linear")]
    return sum(int((weight == 0).sum()) for weight in weights) / sum(weight.numel() for weight in weights)


# 45 nm, 0.9 V (Horowitz, ISSCC 2014), in pJ: 8-bit addition, 8-bit multiplication, reading a byte of a 32 KB SRAM.
ADD8_PJ, MULTIPLY8_PJ, BYTE_PJ = 0.03, 0.2, 20 / 8


def equal_qnn(steps: int) -> Mapping[str, float]:
    """The QNN comparable with an SNN of ``steps`` time steps, and the firing rate below which the SNN needs less
    energy.

    A spike count over T steps has T + 1 values, hence ceil(log2(T + 1)) bits. Both have 8-bit weights; a b-bit by 8-bit
    multiplication costs b / 8 of an 8-bit by 8-bit one. The QNN multiplies once per synapse, the SNN adds ``T * rate``
    times. ``rate`` is the break-even point: for arithmetic alone, and with one weight read per operation.
    """
    bits = steps.bit_length()
    product = MULTIPLY8_PJ * bits / 8 + ADD8_PJ
    return {
        "bits": bits,
        "rate_arithmetic": min(1.0, product / (steps * ADD8_PJ)),
        "rate_with_memory": min(1.0, (product + BYTE_PJ) / (steps * (ADD8_PJ + BYTE_PJ))),
    }
