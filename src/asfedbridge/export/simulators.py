"""Runs a NIR file in other simulators, one example at a time: some flatten the batch dimension too."""

import contextlib
import copy
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import nir
import torch
from torch import Tensor

from asfedbridge.export.loader import Program
from asfedbridge.export.nir_file import as_frames
from asfedbridge.export.nir_graph import DT
from asfedbridge.export.outcome import Outcome, compare

Run = Callable[[Any, Tensor], Tensor]  # graph, frames [N, T, C, H, W] -> logits [N, classes]


class Simulator(NamedTuple):
    run: Run
    dtype: torch.dtype  # float64: in float32, another order of summation may move a membrane across the threshold


def run_spikingjelly(graph: Any, frames_NTCHW: Tensor) -> Tensor:
    from spikingjelly.activation_based.nir_exchange import import_from_nir

    return _run(import_from_nir(graph, dt=DT, dtype=frames_NTCHW.dtype), frames_NTCHW)


def run_snntorch(graph: Any, frames_NTCHW: Tensor) -> Tensor:
    import snntorch
    from snntorch.import_nir import import_from_nir

    with contextlib.redirect_stdout(io.StringIO()):  # it prints every neuron's constants
        network = import_from_nir(graph).to(frames_NTCHW.dtype)

    def reset() -> None:
        for layer in network.modules():
            if isinstance(layer, snntorch.Leaky):
                layer.reset_mem()  # its layers keep the membranes

    return _run(network, frames_NTCHW, reset)


def run_norse(graph: Any, frames_NTCHW: Tensor) -> Tensor:
    import norse.torch

    return _run(norse.torch.from_nir(graph, dt=DT), frames_NTCHW)


def _run(network: Any, frames_NTCHW: Tensor, reset: Callable[[], None] = lambda: None) -> Tensor:
    logits = []
    for frames_TCHW in frames_NTCHW:
        reset()
        state, outputs = None, []
        for frame_CHW in frames_TCHW:
            out, state = network(frame_CHW.unsqueeze(0), state)  # without a state the network starts from rest
            outputs.append(out.flatten())
        logits.append(torch.stack(outputs).mean(0))
    return torch.stack(logits)


SIMULATORS: Mapping[str, Simulator] = {
    "spikingjelly": Simulator(run_spikingjelly, torch.float64),
    "snntorch": Simulator(run_snntorch, torch.float32),  # its spikes are always float32
    "norse": Simulator(run_norse, torch.float32),
}


def unfit(name: str, graph: Any) -> str:
    """Why a simulator's importer is known to fail on this graph."""
    targets = [target for _, target in graph.edges]
    if name == "norse" and len(targets) != len(set(targets)):
        return "not run: its importer executes shortcuts after the output (norse 1.1.0)"
    return ""


@torch.no_grad()
def verify(path: Path, program: Program, images: Tensor) -> dict[str, Outcome]:
    """By simulator: the largest difference between the logits of the file and of the program, on uint8 images."""
    found = {}
    for name, simulator in SIMULATORS.items():
        graph = nir.read(path)
        if note := unfit(name, graph):
            found[name] = Outcome(None, note)
            continue
        precise = copy.deepcopy(program).to(simulator.dtype)
        try:
            logits = simulator.run(graph, as_frames(precise, images).to(simulator.dtype))
        except ImportError as error:
            found[name] = Outcome(None, f"not run: {error}")
        else:
            found[name] = compare(logits, precise(images))
    return found
