"""The setting of a run: the task, the clients and their data, prepared from a specification."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from asfedbridge.core import seeds
from asfedbridge.core.errors import BadInput
from asfedbridge.core.task import ClientInfo, Precision, Task
from asfedbridge.data.dataset import take_per_class
from asfedbridge.data.event_frames import Framing
from asfedbridge.data.loader import Shard, make_shards
from asfedbridge.data.partition import hold_out, pool, probe
from asfedbridge.data.partition_names import split
from asfedbridge.data.sources.registry import load
from asfedbridge.models.neuron import stem_channels
from asfedbridge.models.zoo import check_backbone
from asfedbridge.runs.fleet import one_of_each, parse_fleet
from asfedbridge.runs.spec import IN_PYTHON, ON_NODES, Spec, check_device

PROBE_IMAGES, PROBE_SEED = 1000, 42  # the same images for every seed of a run


@dataclass(frozen=True)
class Setting:
    """The task, the clients and their data."""

    task: Task
    clients: list[ClientInfo]
    shards: list[Shard]  # empty if the data are on nodes
    fingerprint: str  # of the data
    partition: str  # digest of the indices
    probe: Shard  # test images that all clients can be compared on
    notes: tuple[str, ...] = ()  # remarks for readers of the results
    classes: tuple[str, ...] = ()  # class names; empty if unknown

    def identity(self, spec: Spec) -> dict[str, str]:
        """Identifies the run that a checkpoint belongs to."""
        return {"specification": spec.digest(), "data": self.fingerprint, "partition": self.partition}


def prepare(spec: Spec, data_root: Path) -> Setting:
    """Load and partition the data; run all checks that are possible before training."""
    if spec.data == ON_NODES:
        raise BadInput("data=nodes: the data are on the nodes of a network; start with `asfedbridge flower init DIR`")
    if spec.data == IN_PYTHON:
        raise BadInput("data=python: the data are objects of a script; run the script that made the federation")
    framing = Framing(spec.T, spec.frames_by)
    dataset = load(spec.data, data_root, spec.image_size, spec.augment, spec.skip_damaged, framing)
    dataset = take_per_class(dataset, spec.train_per_class, spec.test_per_class)
    fleet = parse_fleet(spec.fleet, spec.T)
    partition = split(
        spec.partition,
        dataset.y_train.numpy(),
        dataset.y_test.numpy(),
        len(fleet),
        alpha=spec.alpha,
        seed=seeds.seed(spec.seed, "partition"),
        assigned=dataset.assigned,
    )
    if spec.holdout:
        partition = hold_out(partition, spec.holdout, seeds.seed(spec.seed, "holdout"))
        dataset = dataclasses.replace(dataset, x_test=dataset.x_train, y_test=dataset.y_train)
    if spec.method.pools_data:
        fleet = one_of_each(fleet)
        partition = pool(partition, len(fleet))
    shards = make_shards(dataset, partition, spec.augment)
    shared = probe(partition, dataset.y_test.numpy(), PROBE_IMAGES, seeds.seed(PROBE_SEED, "probe"))
    (common,) = make_shards(dataset, shared, spec.augment)
    task = make_task(spec, len(dataset.classes), dataset.channels, dataset.image_size, dataset.frames, fleet)
    clients = [
        dataclasses.replace(c, train_size=s.train_size, test_size=s.test_size)
        for c, s in zip(fleet, shards, strict=True)
    ]
    for client in clients:
        check_backbone(task, client)
    spec.method.check(task, clients)
    notes = (*dataset.notes, *spec.method.notes(task))
    return Setting(task, clients, shards, dataset.fingerprint(), partition.digest, common, notes, dataset.classes)


def make_task(
    spec: Spec, classes: int, channels: int, image_size: int, frames: int, fleet: Sequence[ClientInfo]
) -> Task:
    """The task of all participants, from the specification and the shape of the data."""
    shared = {f.name for f in dataclasses.fields(Task)} & {f.name for f in dataclasses.fields(Spec)} - {"image_size"}
    own = {name: getattr(spec, name) for name in shared}
    task = Task(classes=classes, channels=channels, image_size=image_size, frames=frames, **own)
    return dataclasses.replace(task, stems_differ=len({stem_channels(task, c) for c in fleet}) > 1)


def pick_device(name: str, precision: Precision = "fp32") -> torch.device:
    """The torch device; BadInput if it is not available or does not support this precision."""
    check_device(name)  # a node's device does not come from a validated specification
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        name = "cuda" if found else "cpu"
    device = torch.device(name)
    if device.type == "cuda" and not found:
        raise BadInput(f"device={name}: torch finds no CUDA device here; use device=cpu or device=auto")
    if (device.index or 0) >= max(found, 1):
        raise BadInput(f"device={name}: torch finds {found} CUDA devices here; use cuda:0 to cuda:{found - 1}")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise BadInput("device=mps: torch finds no Metal device here; use device=cpu or device=auto")
    if precision == "fp16" and device.type != "cuda":
        raise BadInput(f"precision=fp16 needs a CUDA device, not {device.type}; use precision=bf16")
    return device
