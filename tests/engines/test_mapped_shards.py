"""Clients whose images stay on disk: the same bits in workers, which open the file themselves."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from asfedbridge.core.method import Method
from asfedbridge.core.payload import Payload
from asfedbridge.core.task import Round
from asfedbridge.data.dataset import assemble
from asfedbridge.data.loader import make_shards
from asfedbridge.data.memory_map import Mapped, open_rows
from asfedbridge.data.partitioners import iid
from asfedbridge.engines.local import LocalEngine
from asfedbridge.engines.loop import federate
from asfedbridge.engines.pool import PoolEngine
from asfedbridge.methods.fedavg import FedAvg


def test_a_pool_gives_the_bits_of_one_process(pair: Any, tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    np.save(tmp_path / "rows.npy", draws.integers(0, 256, (16, 12, 12, 3), dtype=np.uint8))
    x, y = Mapped(open_rows(tmp_path / "rows.npy")), torch.arange(16) % 2
    data = assemble("toy", (x, y), (x[:8], y[:8]), ("a", "b"), "resized-crop+flip", 0)
    shards = make_shards(replace(data, scaled_to=16), iid(y, y[:8], 2, 0))
    assert all(isinstance(s.x_train, Mapped) for s in shards)
    task = replace(pair.task, classes=2, channels=3, image_size=16, rounds=2)
    method: Method = FedAvg()
    clients = [replace(pair.clients[0], id=i, train_size=8, test_size=4) for i in range(2)]

    def play(kind: Any, **options: Any) -> tuple[Payload, list[dict[str, float]]]:
        seen: list[dict[str, float]] = []
        last: Payload = {}

        def note(rnd: Round, participants: Any, sent: Any, ups: Any, state: Payload) -> None:
            seen.extend({k: v for k, v in ups[i].metrics.items() if k != "seconds"} for i in sorted(ups))
            last.update(state)

        with closing(kind(method, task, clients, shards, **options)) as engine:
            federate(method, task, engine, note, 1.0, 0, None)
        return last, seen

    ours, ours_seen = play(LocalEngine)
    theirs, theirs_seen = play(PoolEngine, workers=2, threads=1)
    assert ours_seen == theirs_seen
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(t, theirs[name]) for name, t in ours.items())
