"""Energy of an exported network including memory accesses, after Lemaire et al. (ICONIP 2022, arXiv 2210.13107).

Words have 32 bits. Every layer has separate memories for parameters, membranes and input; the input memory holds all
values of a dense layer, or a queue of spikes. The larger a memory, the more an access costs. A spike is read once; each
weight that it reaches is read and added to a membrane, which is read and written. Norms are folded and not counted.
"""

import math
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from asfedbridge.export.loader import Program, Step
from asfedbridge.export.neurobench import executed, spiking_steps

ADD_PJ, MULTIPLY_PJ = 0.1, 3.1  # 32-bit integers at 45 nm (Horowitz, ISSCC 2014)
SRAM_PJ = ((0, 0.0), (8 * 2**10, 2.5), (32 * 2**10, 5.0), (2**20, 25.0))  # bytes of memory, pJ per byte read
WORD = 4  # bytes
QUEUE = 1000  # spikes in the queue of a layer


def byte_pj(capacity: float) -> float:
    """Energy per byte of a memory of ``capacity`` bytes, interpolated in ``SRAM_PJ``; constant above its last point."""
    for (x0, y0), (x1, y1) in pairwise(SRAM_PJ):
        if capacity <= x1:
            return y0 + (y1 - y0) / (x1 - x0) * (capacity - x0)
    return SRAM_PJ[-1][1]


@dataclass
class Account:
    """Energy in picojoules, by purpose."""

    spent: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    def compute(self, what: str, additions: float = 0, macs: float = 0) -> None:
        self.spent[what] += additions * ADD_PJ + macs * (ADD_PJ + MULTIPLY_PJ)

    def access(self, what: str, words: float, capacity: float) -> None:
        """``capacity``: the size of the memory in words."""
        self.spent[what] += words * WORD * byte_pj(capacity * WORD)

    def neuron(self, spikes: Tensor) -> None:
        fired = float(spikes.count_nonzero())
        self.compute("operations", additions=fired, macs=spikes.numel())  # additions: resets; MACs: leaks
        self.access("membranes", 2 * spikes.numel(), spikes[0].numel())
        self.access("inputs_outputs", fired, QUEUE)

    def spiking_layer(self, step: Step, x: Tensor, weight: Tensor, out: Tensor, capacity: int) -> None:
        """A layer that adds a weight to a membrane for every spike."""
        kernel, options = weight.shape[2:], step["options"]
        fired, channels = float(x.count_nonzero()), len(weight) // options.get("groups", 1)
        met = fired * channels * math.prod(kernel)
        added = channels * math.prod(math.ceil(k / s) for k, s in zip(kernel, options.get("stride", []), strict=True))
        self.compute("operations", additions=fired * added)
        self.compute("addressing", additions=met, macs=2 * fired if kernel else 0)
        self.access("inputs_outputs", fired, QUEUE)
        self.access("parameters", met, capacity)
        self.access("membranes", 2 * met, out[0].numel())

    def dense_layer(self, x: Tensor, weight: Tensor, out: Tensor, capacity: int) -> None:
        kernel = weight.shape[2:]
        macs = out.numel() * math.prod(weight.shape[1:])
        places = len(x) * len(weight) * math.prod(kernel) if kernel else 0
        self.compute("operations", macs=macs)
        self.compute("addressing", additions=x.numel() + out.numel() + places)
        self.access("inputs_outputs", macs if kernel else x.numel(), x[0].numel())
        self.access("parameters", macs, capacity)


@torch.no_grad()
def energy_with_memory(program: Program, images: Tensor) -> dict[str, float]:
    """Energy of one image in microjoules: ``operations``, ``addressing``, ``inputs_outputs``, ``parameters``,
    ``membranes`` (of an SNN) and their ``total``."""
    running, account = program.unpacked(), Account()
    spiking = spiking_steps(running)
    for step, inputs, out in executed(running, images):
        if step["op"] == "lif":
            account.neuron(out)
        elif step["op"] in ("conv", "linear"):
            held = running.tensors_of(step)
            weight, bias = held["weight"], held.get("bias")
            capacity = weight.numel() + (0 if bias is None else bias.numel())
            if step["inputs"][0] in spiking:
                account.spiking_layer(step, inputs[0], weight, out, capacity)
            else:
                account.dense_layer(inputs[0], weight, out, capacity)
                if not spiking:  # in an SNN, dense layers feed neurons, which count their own output
                    account.access("inputs_outputs", out.numel(), out[0].numel())
            if bias is not None:
                account.compute("operations", additions=out.numel())
                account.access("parameters", out.numel(), capacity)
    parts = {name: spent / len(images) / 1e6 for name, spent in account.spent.items()}
    return {**parts, "total": sum(parts.values())}
