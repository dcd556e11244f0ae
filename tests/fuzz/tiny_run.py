"""A run of milliseconds: two clients with networks of their own, int8 payloads, snapshots."""

from typing import Any

import numpy
from torch import nn

import asfedbridge as afb
from asfedbridge.runs.setting import Setting
from asfedbridge.runs.spec import Spec


class Network(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Conv2d(1, 2, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(18, 3), nn.ReLU(), nn.Linear(3, 2))


def make_run(**settings: Any) -> tuple[Spec, Setting]:
    draw = numpy.random.default_rng(7)

    def examples() -> Any:
        return draw.integers(0, 255, (6, 1, 8, 8), dtype=numpy.uint8), draw.integers(0, 2, 6)

    clients = [afb.Participant(Network, examples(), test=examples()) for _ in range(2)]
    fixed = {"epochs": 1, "batch_size": 8, "threads": 1, "compress": "int8"}
    return afb.Federation("fedavg", clients).prepare(**fixed, **{"snapshot_every": 2, **settings})
