"""Untrained clients: an ANN and an SNN of one width and a wider SNN, or one built by a test."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from asfedbridge.core.client import Client
from asfedbridge.core.method import Method
from asfedbridge.core.task import ClientInfo, Kind, Task
from asfedbridge.data.loader import Shard
from asfedbridge.engines.turn import build_client
from asfedbridge.runs.recipes import quickstart
from asfedbridge.runs.setting import Setting, prepare
from asfedbridge.runs.spec import apply_overrides

THREE = {
    "fleet": "1*resnet18@0.125:ann,1*resnet18@0.125:snn,1*resnet18@0.25:snn:T=2",
    "T": 4,
    "train_per_class": 3,
    "test_per_class": 9,
    "feature_dim": 16,
    "partition": "iid",
    "method.bridge_width": 0.34,
    "neuron.threshold": 0.4,  # so that untrained networks fire in all layers, differently at every step
}
SPEC = apply_overrides(quickstart(), THREE)

Make = Callable[..., Client]


@pytest.fixture(scope="session")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    return prepare(SPEC, Path(tmp_path_factory.mktemp("data")))


@pytest.fixture
def clients(setting: Setting) -> list[Client]:
    pairs = zip(setting.clients, setting.shards, strict=True)
    return [build_client(SPEC.method, setting.task, info, shard) for info, shard in pairs]


@pytest.fixture
def make_client() -> Make:
    """A client with a few random images."""

    def make(
        method: Method,
        task: Task,
        kind: Kind = "ann",
        width: float = 0.25,
        T: int = 3,
        model: str = "resnet18",
        **more: Any,
    ) -> Client:
        info = ClientInfo(0, kind, model, width, T if kind == "snn" else 1, 8, 4, **more)
        draws = torch.Generator().manual_seed(3)
        shape = (12, task.channels, task.image_size, task.image_size)
        x = torch.randint(0, 256, shape, generator=draws, dtype=torch.uint8)
        y = torch.arange(12) % task.classes
        spread = [0.25] * task.channels
        return build_client(method, task, info, Shard(x[4:], y[4:], x[:4], y[:4], spread, spread, "none"))

    return make
