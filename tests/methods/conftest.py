"""A task of 8x8 images and small clients."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from asfedbridge.core.client import Client
from asfedbridge.core.method import METHODS, Method
from asfedbridge.core.task import ClientInfo, Kind, Optimiser, Round, Task, Upload
from asfedbridge.data.loader import Shard
from asfedbridge.engines.turn import build_client, take_turn

SMALL = {"bridge_width": 0.375}


class Lab:
    """Builds methods, clients and shards of a few examples."""

    task = Task(classes=4, channels=1, image_size=8, rounds=2, epochs=1, batch_size=4, feature_dim=8)

    def info(self, kind: Kind = "ann", id: int = 0, width: float = 0.125, train_size: int = 10) -> ClientInfo:
        return ClientInfo(id, kind, "resnet18", width, 2 if kind == "snn" else 1, train_size, 4)

    def method(self, name: str, **changes: Any) -> Method:
        known = {f.name for f in fields(METHODS[name])}
        return METHODS[name](**{key: value for key, value in SMALL.items() if key in known} | changes)

    def client(self, method: Method, kind: Kind = "ann", task: Task | None = None, **changes: Any) -> Client:
        info = self.info(kind, **changes)
        draws = torch.Generator().manual_seed(info.id)
        x = torch.randint(0, 256, (info.train_size + 4, 1, 8, 8), generator=draws, dtype=torch.uint8)
        y = torch.arange(len(x)) % 4
        shard = Shard(x[4:], y[4:], x[:4], y[:4], [0.5], [0.25], "none")
        return build_client(method, task or self.task, info, shard)

    def one_batch(self, **changes: Any) -> Task:
        """The task with one batch per epoch, so that the reported loss is the one before the step."""
        return replace(self.task, batch_size=64, **changes)

    def gentle(self, **changes: Any) -> Task:
        """The task with low learning rates. With the usual ones, batches of two to four random images can make weights
        diverge by an amount that depends on the processor."""
        return replace(self.task, optimiser=Optimiser(lr_ann=1e-3, lr_snn=1e-3), **changes)

    def turn(self, method: Method, client: Client, rnd: Round | None = None) -> Upload:
        rnd = rnd or Round(0, client.task.rounds)
        down = method.server_send(method.server_init(client.task, [client.info]), client.info, rnd)
        return take_turn(method, client, down, rnd)


@pytest.fixture
def lab() -> Lab:
    return Lab()


@pytest.fixture
def to_bytes() -> Callable[[nn.Module], dict[str, bytes]]:
    """The bytes of a module's state dict, including buffers."""

    def read(module: nn.Module) -> dict[str, bytes]:
        tensors: dict[str, Tensor] = dict(module.named_parameters()) | dict(module.named_buffers())
        return {name: t.detach().contiguous().numpy().tobytes() for name, t in tensors.items()}

    return read
