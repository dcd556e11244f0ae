"""Gaussian noise for differentially private means of clipped updates (McMahan et al., ICLR 2018)."""

import math
import os
from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from asfedbridge.core import seeds
from asfedbridge.core.payload import Payload

Source = Literal["system", "seed"]
Normal = Callable[[Iterable[int]], Tensor]  # shape -> samples of N(0, 1)


class Mechanism(NamedTuple):
    """Settings of differential privacy: Gaussian noise on the sum of clipped updates."""

    noise: float  # standard deviation in units of clip_update
    clip_update: float  # maximum L2 norm of a client's update
    source: Source
    delta: float  # for the epsilon in the summary


def system_normal(shape: Iterable[int]) -> Tensor:
    """Noise from the operating system's random generator, by the Box-Muller transform.

    It has no seed and cannot be reproduced. (A torch generator uses only 32 bits of its seed.)
    """
    shape = tuple(shape)
    count = math.prod(shape)
    words = np.frombuffer(os.urandom(8 * (count + count % 2)), dtype="<u8")
    uniform = ((words >> 11).astype(np.float64) + 0.5) * 2.0**-53  # inside (0, 1)
    first, second = np.split(uniform, 2)
    radius, angle = np.sqrt(-2 * np.log(first)), 2 * np.pi * second
    normal = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]
    return torch.from_numpy(normal.astype(np.float32)).reshape(shape)


def seeded_normal(run_seed: int, *place: int | str) -> Normal:
    """Reproducible noise. Anyone who knows the run's seed can subtract it."""
    generator = seeds.generator(run_seed, "privacy", *place)
    return lambda shape: torch.randn(tuple(shape), generator=generator)


def add_noise(mean: Payload, deviation: float, normal: Normal) -> Payload:
    """Add independent noise to every coordinate, drawn in sorted order of names."""
    return {name: mean[name] + deviation * normal(mean[name].shape) for name in sorted(mean)}
