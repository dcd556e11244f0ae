"""Claim: our LIF neuron trains faster on a CPU than those of other SNN libraries and gives the same results.

    python benchmarks/neuron.py [--quick] [--repeats N] [--threads N] [--json]

Compared: forward and backward of one LIF layer on [T, 64, 64, 16, 16] for T = 2, 4, 8, 16. Contenders: ours on each
kernel available on this machine, the reference loop that defines it (also with torch.compile), SpikingJelly's LIFNode
in multi-step mode (eager, and with torch.compile: version 2 no longer has a `backend` argument; its CPU path is torch
in both cases), snnTorch's Leaky and norse's LIFBoxCell, each in the loop that its documentation shows. A step clears
the gradient, resets the state, runs forward and backward. Compilation happens in the warm-up and is not timed.

Ours runs in the layout of our networks, channels-last. Every other contender tries both layouts and runs in the faster
one, which the table names.

Equal by construction: u = v / 2 + x, spike at u >= 1, hard reset that gradients pass through, triangle surrogate. The
inputs are odd multiples of 1/32, on which every library's formula is exact in float32 and u = 1 (>= here, > in norse)
cannot occur: spikes must be equal bit for bit, gradients up to float rounding.

Not compared: GPU kernels, other neurons, float16.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from peers import Triangle  # snnTorch has no triangle surrogate but accepts any function
from sidebyside import Benchmark, Case, Contender, Work, main

Forward = Callable[[Tensor], Tensor]


def currents(case: Case, channels_last: bool) -> Tensor:
    """Odd multiples of 1/32 within +-3, about normal: v / 2 + x stays exact over 16 steps."""
    T, B, C, H = case["T"], case["batch"], case["channels"], case["size"]
    x = torch.randn(T * B, C, H, H, generator=torch.Generator().manual_seed(0))
    x = ((x * 16).round() + 0.5).div(16).clamp(-3 + 1 / 32, 3 - 1 / 32)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    return x.contiguous(memory_format=layout).view(T, B, C, H, H).requires_grad_()


class Layer:
    """One neuron layer's training step on one layout."""

    def __init__(self, forward: Forward, case: Case, channels_last: bool) -> None:
        self.forward = forward
        self.x = currents(case, channels_last)
        noise = torch.randn(self.x.shape, generator=torch.Generator().manual_seed(1))
        self.upstream = torch.empty_like(self.x).copy_(noise)  # in the layout of the output, as from a next layer
        self.spikes = self.x.detach()

    def step(self) -> None:
        self.x.grad = None
        self.spikes = self.forward(self.x)
        self.spikes.backward(self.upstream)

    def answer(self) -> dict[str, Any]:
        assert self.x.grad is not None
        return {
            "spikes": self.spikes.detach().contiguous().numpy().astype("uint8"),
            "gradient": self.x.grad.contiguous().numpy(),
        }


def work(forward: Forward, case: Case, layouts: tuple[bool, ...] = (True, False)) -> Work:
    """The contender in the faster of the layouts."""
    layers = {channels_last: Layer(forward, case, channels_last) for channels_last in layouts}
    best = min(layers, key=lambda name: _seconds(layers[name].step)) if len(layers) > 1 else layouts[0]
    chosen = layers[best]
    facts = {"layout": "channels-last" if best else "contiguous"}
    return Work(chosen.step, chosen.answer, case["inner"], facts=lambda: facts)


def _seconds(step: Callable[[], object]) -> float:
    step()
    tries = []
    for _ in range(3):
        begin = time.perf_counter()
        step()
        tries.append(time.perf_counter() - begin)
    return min(tries)


def ours(case: Case) -> Work:
    from asfedbridge.core.task import Neuron
    from asfedbridge.engines.process import prepare_process
    from asfedbridge.models.neuron import lif

    prepare_process()  # as every engine does
    return work(lambda x: lif(x, Neuron()), case, layouts=(True,))


def reference(case: Case) -> Work:
    from asfedbridge.core.task import Neuron
    from asfedbridge.models.neuron import lif_reference

    return work(lambda x: lif_reference(x, Neuron()), case)


def reference_compiled(case: Case) -> Work:
    from asfedbridge.core.task import Neuron
    from asfedbridge.models.neuron import lif_reference

    return work(torch.compile(lambda x: lif_reference(x, Neuron()), dynamic=False), case)


def _lif_node() -> Any:
    from spikingjelly.activation_based import neuron, surrogate

    return neuron.LIFNode(
        tau=2.0,
        decay_input=False,
        v_threshold=1.0,
        v_reset=0.0,
        detach_reset=False,
        step_mode="m",
        surrogate_function=surrogate.PiecewiseQuadratic(alpha=1.0),
    )


def spikingjelly(case: Case, compiled: bool = False) -> Work:
    from spikingjelly.activation_based import functional

    node = _lif_node()
    call = torch.compile(node, dynamic=False) if compiled else node

    def forward(x: Tensor) -> Tensor:
        functional.reset_net(node)
        spikes: Tensor = call(x)
        return spikes

    return work(forward, case)


def spikingjelly_prepared(case: Case) -> Work:
    from asfedbridge.engines.process import prepare_process

    prepare_process()
    return spikingjelly(case)


def spikingjelly_compiled(case: Case) -> Work:
    return spikingjelly(case, compiled=True)


def snntorch(case: Case) -> Work:
    from snntorch import Leaky

    leaky = Leaky(beta=0.5, threshold=1.0, reset_mechanism="zero", reset_delay=False, spike_grad=Triangle.apply)

    def forward(x_T: Tensor) -> Tensor:
        membrane = leaky.reset_mem()
        spikes = []
        for x in x_T:
            if membrane.shape != x.shape:
                membrane = torch.zeros_like(x)
            spike, membrane = leaky(x, membrane)
            spikes.append(spike)
        return torch.stack(spikes)

    return work(forward, case)


def norse(case: Case) -> Work:
    """v + dt / tau (i - v) with dt / tau = 1/2 is v / 2 + x for i = 2 x."""
    from norse.torch import LIFBoxCell, LIFBoxParameters

    one = torch.tensor(1.0)
    cell = LIFBoxCell(LIFBoxParameters(tau_mem_inv=0.5 * one, v_th=one, method="triangle", alpha=1.0), dt=1.0)

    def forward(x_T: Tensor) -> Tensor:
        state = None
        spikes = []
        for x in x_T:
            spike, state = cell(2 * x, state)
            spikes.append(spike)
        return torch.stack(spikes)

    return work(forward, case)


def cases(args: argparse.Namespace) -> list[Case]:
    if args.quick:
        return [{"T": 4, "batch": 4, "channels": 8, "size": 8, "inner": 2}]
    return [{"T": T, "batch": 64, "channels": 64, "size": 16, "inner": max(1, 16 // T)} for T in (2, 4, 8, 16)]


def contenders(case: Case) -> list[Contender]:
    from asfedbridge.kernels.dispatch import available_paths

    compiling = "compiles for minutes; not with --quick" if case.get("quick") else ""
    return [
        *[Contender(f"ours, {path}", ours, env={"ASFEDBRIDGE_NEURON": path}) for path in available_paths()],
        Contender("reference loop", reference),
        Contender("reference loop, compiled", reference_compiled, skip=compiling),
        Contender("SpikingJelly LIFNode", spikingjelly, needs=["spikingjelly"]),
        Contender("the same, freed memory kept", spikingjelly_prepared, needs=["spikingjelly"]),
        Contender("SpikingJelly LIFNode, compiled", spikingjelly_compiled, needs=["spikingjelly"], skip=compiling),
        Contender("snnTorch Leaky", snntorch, needs=["snntorch"]),
        Contender("norse LIFBoxCell", norse, needs=["norse"]),
    ]


BENCHMARK = Benchmark(
    script=os.path.abspath(__file__),
    claim="LIF layer, forward and backward: ours against the SNN libraries",
    baseline="ours, numba",
    cases=cases,
    contenders=contenders,
    tolerance={"gradient": 1e-5},
    memory=True,
)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
