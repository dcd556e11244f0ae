"""LIF computed by SpikingJelly, which has CUDA kernels (Triton, CuPy)."""

import torch
from torch import Tensor

from asfedbridge.core.task import Neuron


def fits(neuron: Neuron) -> bool:
    """SpikingJelly takes a time constant tau > 1, where decay = 1 - 1 / tau."""
    return 0 < neuron.decay < 1


def lif_spikingjelly(input_T: Tensor, neuron: Neuron) -> Tensor:
    from spikingjelly.activation_based import functional, surrogate

    sharp = neuron.sharpness
    function = {
        "triangle": lambda: surrogate.PiecewiseQuadratic(alpha=1 / sharp),
        "rectangle": lambda: surrogate.Rect(alpha=1 / (2 * sharp)),
        "sigmoid": lambda: surrogate.Sigmoid(alpha=sharp),
        "atan": lambda: surrogate.ATan(alpha=sharp),
    }[neuron.surrogate]()
    spikes: Tensor = functional.lif_multi_step(
        input_T,
        torch.zeros_like(input_T[0]),
        1 / (1 - neuron.decay),
        False,  # the input is not divided by tau
        neuron.threshold,
        0.0,
        function,
        neuron.detach_reset,
        False,
    )[0]
    return spikes
