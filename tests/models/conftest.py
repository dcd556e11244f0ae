"""Small tasks and clients to build models for."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from asfedbridge.core.task import ClientInfo, Kind, Task
from asfedbridge.kernels import openmp


@pytest.fixture
def task() -> Task:
    return Task(classes=4, channels=3, image_size=8, feature_dim=16)


@pytest.fixture
def cifar100() -> Task:
    return Task(classes=100, channels=3, image_size=32)


@pytest.fixture
def info() -> Callable[..., ClientInfo]:
    def make(kind: Kind = "ann", width: float = 0.125, T: int = 2) -> ClientInfo:
        return ClientInfo(0, kind, "resnet18", width, T if kind == "snn" else 1)

    return make


@pytest.fixture
def images() -> Callable[..., Tensor]:
    def make(count: int = 2, channels: int = 3, size: int = 8, seed: int = 0) -> Tensor:
        return torch.randn(count, channels, size, size, generator=torch.Generator().manual_seed(seed))

    return make


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Sets the number of threads and lets small work run on several threads too."""
    before = torch.get_num_threads()

    def use(count: int) -> None:
        monkeypatch.setattr(openmp, "MIN_PARALLEL_SIZE", 1)
        torch.set_num_threads(count)

    yield use
    torch.set_num_threads(before)
