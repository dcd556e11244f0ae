"""Measured payload sizes at full width with 100 classes, compared with the paper's cost table."""

import dataclasses

import numpy as np
import pytest
import torch

import asfedbridge.methods  # noqa: F401  registers every method
from asfedbridge.core import compression, payload
from asfedbridge.core.method import METHODS
from asfedbridge.core.task import ClientInfo, Round, Task
from asfedbridge.data.dataset import Dataset
from asfedbridge.data.loader import Shard, make_shards
from asfedbridge.data.partitioners import iid
from asfedbridge.engines.local import LocalEngine
from asfedbridge.engines.loop import Downloads, play_round

PAPER = {  # MB up; FedTGP exchanges prototypes, its generator (0.60 MB) stays on the server
    "fedavg": "43.20",
    "fedprox": "43.20",
    "fedfree": "18.00",
    "fedproto": "0.10",
    "fedtgp": "0.10",
    "fml": "3.93",
    "mh-pflid": "3.93",
    "as-fedbridge": "3.93",
}
FLEET = [ClientInfo(0, "ann", "resnet18"), ClientInfo(1, "snn", "resnet18", T=2)]


@pytest.fixture(scope="module")
def shards() -> list[Shard]:
    """One image of each class for each client."""
    rng = np.random.default_rng(0)
    y = torch.arange(100).repeat(2)
    x = torch.from_numpy(rng.integers(0, 256, (200, 3, 16, 16), dtype=np.uint8))
    names = tuple(map(str, range(100)))
    dataset = Dataset("made up", x, y, x[:4], y[:4], names, (0.5,) * 3, (0.25,) * 3, "none")
    split = iid(y.numpy(), y[:4].numpy(), 2, seed=0)
    by_class = dataclasses.replace(split, train=(np.arange(100), np.arange(100, 200)))
    return make_shards(dataset, by_class)


@pytest.mark.parametrize("name", sorted(PAPER))
def test_a_round_at_full_width(shards: list[Shard], name: str) -> None:
    task = Task(classes=100, channels=3, image_size=16, rounds=2, epochs=1, batch_size=50)
    clients = [dataclasses.replace(c, train_size=100, test_size=2) for c in FLEET]
    changes = {"server_steps": 1} if name == "fedfree" else {"server_epochs": 1} if name == "fedtgp" else {}
    method = METHODS[name](**changes)
    engine = LocalEngine(method, task, clients, shards)
    state = method.server_init(task, clients)
    state, _, ups = play_round(method, task, engine, state, Round(0, 2), clients)
    for client in clients:
        sent = payload.size_in_bytes(ups[client.id].payload)
        most = method.largest_upload(task, client)
        assert f"{most / payload.MB:.2f}" == PAPER[name]
        assert 0 < sent <= most
        assert sent == most or name == "fedfree"  # the selected layers depend on training
    downs = Downloads(method, state, Round(1, 2), clients)
    received = [payload.size_in_bytes(downs[c.id]) / payload.MB for c in clients]
    if name == "fedfree":
        assert all(size <= 9.01 for size in received)
    else:
        assert [f"{size:.2f}" for size in received] == [PAPER[name]] * 2


# MB up by codec: half, and a quarter with a scale for each tensor.
COMPRESSED = {
    "as-fedbridge": ("3.93", "1.96", "0.98"),
    "fedavg": ("43.20", "21.60", "10.80"),
    "fedfree": ("18.00", "9.00", "4.50"),
}


@pytest.mark.parametrize("name", sorted(COMPRESSED))
def test_compressed_payloads_at_full_width(name: str) -> None:
    """Declared sizes are those of real encoded tensors, here without memory."""
    for codec, megabytes in zip(compression.DTYPES, COMPRESSED[name], strict=True):
        task = Task(classes=100, channels=3, image_size=32, compress=codec)
        for client in FLEET:
            most = METHODS[name]().largest_upload(task, client)
            assert f"{most / payload.MB:.2f}" == megabytes
            if name != "fedfree":  # sends only part of the declared tensors
                shapes = METHODS[name]().uploads(task, client)
                with torch.device("meta"):
                    like = {key: torch.empty(shape, dtype=compression.DTYPES[codec]) for key, shape in shapes.items()}
                scales = {compression.SCALES: torch.empty(len(shapes))} if codec == "int8" else {}
                assert payload.size_in_bytes(like | scales) == most
                assert METHODS[name]().largest_download(task, client) == most
