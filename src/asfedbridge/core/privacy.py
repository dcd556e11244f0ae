"""Gaussian noise that hides one client in a mean of bounded updates (McMahan et al., ICLR 2018)."""

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
Normal = Callable[[Iterable[int]], Tensor]  # draws from N(0, 1), of a shape


class Mechanism(NamedTuple):
    """How a server hides each client in what it sends: Gaussian noise on the sum of bounded updates."""

    noise: float  # its deviation, in units of clip_update
    clip_update: float  # largest L2 norm of a client's update
    source: Source
    delta: float  # of the epsilon that the summary tells


def system_normal(shape: Iterable[int]) -> Tensor:
    """Straight from the operating system's generator, by Box and Muller.

    Nothing seeds it and nothing can repeat it. (A torch generator would do with 32 bits of whatever seeds it.)
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
    """Repeatable: whoever knows the run's seed can take this noise away again."""
    generator = seeds.generator(run_seed, "privacy", *place)
    return lambda shape: torch.randn(tuple(shape), generator=generator)


def add_noise(mean: Payload, deviation: float, normal: Normal) -> Payload:
    """Every coordinate with noise of its own, in the order of names."""
    return {name: mean[name] + deviation * normal(mean[name].shape) for name in sorted(mean)}
