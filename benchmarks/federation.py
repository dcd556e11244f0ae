"""Synthetic federations for the scripts that time rounds: CIFAR-shaped noise, half ANN and half SNN clients."""

import hashlib
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from asfedbridge.core.payload import Payload
from asfedbridge.core.task import ClientInfo, Round, Task, Upload
from asfedbridge.data.loader import Shard
from asfedbridge.engines import checkpoint
from asfedbridge.engines.loop import AfterRound, Engine
from asfedbridge.runs.callback import CallbackList, Run
from asfedbridge.runs.callbacks.checkpointer import Checkpointer
from asfedbridge.runs.callbacks.recorder import Recorder
from asfedbridge.runs.callbacks.tensorboard import TensorBoard
from asfedbridge.runs.folder import RunFolder
from asfedbridge.runs.records import make_records
from asfedbridge.runs.setting import Setting
from asfedbridge.runs.spec import Spec
from sidebyside import Answer

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # CIFAR-10's
CLASSES = 10


def make_images(count: int, size: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, generator=generator)
    x = x.contiguous(memory_format=torch.channels_last)  # as `make_shards` stores them
    return x, torch.randint(CLASSES, (count,), generator=generator)


def make_shard(x: Tensor, y: Tensor, train: int) -> Shard:
    """The first ``train`` images are for training, the rest for testing; views, not copies."""
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
    """A digest of all bits, and the values, which show the size of a difference."""
    plain = {name: t.detach().contiguous().numpy() for name, t in sorted(tensors.items())}
    digest = hashlib.sha256(b"".join(name.encode() + value.tobytes() for name, value in plain.items())).hexdigest()
    values = np.concatenate([value.ravel().astype(np.float64) for value in plain.values()] or [np.zeros(0)])
    return {"digest": np.array(digest), "values": values}


class Recorded:
    """A run folder to which every round writes what it writes in a run: records, TensorBoard events, a checkpoint."""

    def __init__(self, spec: Spec) -> None:
        self.spec, self.folder = spec, RunFolder(Path(tempfile.mkdtemp()), spec, resume=False)
        self.states = self.folder.checkpoints / checkpoint.CLIENTS

    def watch(self, engine: Engine, task: Task, infos: Sequence[ClientInfo], shards: Sequence[Shard]) -> AfterRound:
        """Write the files of a round; called after every round."""
        run = Run(self.spec, Setting(task, list(infos), list(shards), "", "", shards[0]), self.folder.path)
        callbacks = CallbackList([])
        checkpointer = Checkpointer(self.folder, engine, {}, time.perf_counter(), self.spec.keep_checkpoints)
        callbacks.begin(run, [Recorder(self.folder), TensorBoard(), checkpointer])

        def after_round(
            rnd: Round,
            participants: Sequence[ClientInfo],
            sent: Mapping[int, int],
            ups: Mapping[int, Upload],
            state: Payload,
        ) -> None:
            run.participants, run.uploads, run.server = participants, ups, state
            callbacks.round(rnd, make_records(rnd, participants, sent, ups))

        return after_round
