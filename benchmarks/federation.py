"""Synthetic federations for the scripts that time rounds: CIFAR-shaped noise, half ANN, half SNN clients."""

import hashlib
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from asfedbridge.core.task import ClientInfo, Task
from asfedbridge.data.loader import Shard
from sidebyside import Answer

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # CIFAR-10's
CLASSES = 10


def make_images(count: int, size: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, generator=generator)
    x = x.contiguous(memory_format=torch.channels_last)  # as `make_shards` stores them
    return x, torch.randint(CLASSES, (count,), generator=generator)


def make_shard(x: Tensor, y: Tensor, train: int) -> Shard:
    """The first ``train`` images to learn from, the rest to be tested on; views, not copies."""
    return Shard(x[:train], y[:train], x[train:], y[train:], MEAN, STD, "crop+flip")


def make_infos(count: int, width: float, T: int, train: int, test: int) -> list[ClientInfo]:
    """ANN and SNN clients in equal numbers, the ANNs first."""
    return [
        ClientInfo(i, "ann", "resnet18", width, 1, train, test)
        if i < count // 2
        else ClientInfo(i, "snn", "resnet18", width, T, train, test)
        for i in range(count)
    ]


def make_task(size: int, rounds: int, epochs: int, batch_size: int) -> Task:
    return Task(
        classes=CLASSES, channels=3, image_size=size, rounds=rounds, epochs=epochs, batch_size=batch_size, seed=0
    )


def fingerprint(tensors: Mapping[str, Tensor]) -> Answer:
    """A digest that any changed bit changes, and the values, which tell how large a change was."""
    plain = {name: t.detach().contiguous().numpy() for name, t in sorted(tensors.items())}
    digest = hashlib.sha256(b"".join(name.encode() + value.tobytes() for name, value in plain.items())).hexdigest()
    values = np.concatenate([value.ravel().astype(np.float64) for value in plain.values()] or [np.zeros(0)])
    return {"digest": np.array(digest), "values": values}
