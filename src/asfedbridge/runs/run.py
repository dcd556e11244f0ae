"""One run from specification to summary: data, fleet, engine, rounds, records, checkpoints."""

import dataclasses
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from asfedbridge.analysis.diagnostics import Reading
from asfedbridge.core import seeds
from asfedbridge.core.errors import BadInput
from asfedbridge.core.payload import Payload
from asfedbridge.core.task import ClientInfo, Precision, Round, Task, Upload
from asfedbridge.data.dataset import take_per_class
from asfedbridge.data.event_frames import Framing
from asfedbridge.data.loader import Shard, make_shards
from asfedbridge.data.partition import hold_out, pool, probe, split
from asfedbridge.data.sources.registry import load
from asfedbridge.engines import checkpoint
from asfedbridge.engines.failures import Event, Tolerance
from asfedbridge.engines.host import Progress
from asfedbridge.engines.local import LocalEngine
from asfedbridge.engines.loop import Engine, count_at_work, federate
from asfedbridge.engines.pool import PoolEngine
from asfedbridge.engines.process import prepare_process
from asfedbridge.models.neuron import stem_channels
from asfedbridge.models.zoo import check_backbone, compile_kernels
from asfedbridge.runs.callback import Callback, CallbackList, Run
from asfedbridge.runs.callbacks.checkpointer import Checkpointer
from asfedbridge.runs.callbacks.diagnostics import Diagnose, Diagnostics
from asfedbridge.runs.callbacks.privacy_ledger import PrivacyLedger
from asfedbridge.runs.callbacks.recorder import Recorder
from asfedbridge.runs.callbacks.tensorboard import TensorBoard
from asfedbridge.runs.fleet import one_of_each, parse_fleet
from asfedbridge.runs.folder import SUMMARY, RunFolder, read_events, read_releases, read_summary
from asfedbridge.runs.privacy import load_library, summarise_privacy
from asfedbridge.runs.records import make_records, summarise
from asfedbridge.runs.spec import IN_PYTHON, ON_NODES, Spec, check_device
from asfedbridge.runs.summary import FORMAT, Summary, parse_summary

PROBE_IMAGES, PROBE_SEED = 1000, 42  # the same images whatever the run's seed


@dataclass(frozen=True)
class Setting:
    """A specification brought to life: the task, who takes part, and their data."""

    task: Task
    clients: list[ClientInfo]
    shards: list[Shard]  # empty where the data are elsewhere
    fingerprint: str  # of the data
    partition: str  # digest of the indices
    probe: Shard  # test images that all clients can be compared on
    notes: tuple[str, ...] = ()  # what a reader of the results should know

    def identity(self, spec: Spec) -> dict[str, str]:
        """What a checkpoint belongs to."""
        return {"specification": spec.digest(), "data": self.fingerprint, "partition": self.partition}


def prepare(spec: Spec, data_root: Path) -> Setting:
    """Load and split the data and check all that can be checked before training."""
    if spec.data == ON_NODES:
        raise BadInput("data=nodes: they are on the nodes of a network; begin with `asfedbridge flower init DIR`")
    if spec.data == IN_PYTHON:
        raise BadInput("data=python: they are objects of a script; run the script that made the federation")
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
    return Setting(task, clients, shards, dataset.fingerprint(), partition.digest, common, notes)


def make_task(
    spec: Spec, classes: int, channels: int, image_size: int, frames: int, fleet: Sequence[ClientInfo]
) -> Task:
    """What all participants agree on, from the specification and the shape of the data."""
    shared = {f.name for f in dataclasses.fields(Task)} & {f.name for f in dataclasses.fields(Spec)} - {"image_size"}
    own = {name: getattr(spec, name) for name in shared}
    task = Task(classes=classes, channels=channels, image_size=image_size, frames=frames, **own)
    return dataclasses.replace(task, stems_differ=len({stem_channels(task, c) for c in fleet}) > 1)


def pick_device(name: str, precision: Precision = "fp32") -> torch.device:
    """The device of a specification, or BadInput if it is not here or does not compute in this precision."""
    check_device(name)  # of a node it does not come from a specification
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


def execute(
    spec: Spec,
    out: Path,
    data_root: Path,
    callbacks: Sequence[Callback] = (),
    resume: bool = False,
    engine: str = "local",
    workers: int = 0,
    setting: Setting | None = None,
) -> Summary:
    """Play the run in ``out`` to its end, from its last checkpoint if there is one; return the summary.

    ``engine`` (local, pool) and ``workers`` (0: by its rule) say where clients work; the bits are the same. ``setting``
    takes the place of what the specification says about data. A run that has ended already is not played again, and
    its callbacks are not called.
    """
    watching = CallbackList(callbacks)
    device = pick_device(spec.device, spec.precision)
    prepare_process(spec.threads)
    if spec.method.mechanism:
        load_library()  # to miss it now, not after training
    setting = setting or prepare(spec, data_root)
    try:
        folder = RunFolder(out, spec, resume)
        finished = read_summary(folder.path)
        if finished is not None:
            if finished.data_fingerprint not in ("", setting.fingerprint):
                raise BadInput(f"out={out}: the folder holds a finished run on other data; give another out")
            return finished
        if device.type == "cpu" and any(c.kind == "snn" for c in setting.clients):
            with _told(watching, "compiling spiking kernels (on first use only)"):
                compile_kernels()  # here, once, and not in every worker
        with closing(make_engine(engine, spec, setting, folder, device, watching.epoch, workers)) as started:
            return play(spec, setting, folder, watching, started, diagnose=started.diagnose)
    except OSError as error:
        if error.filename is not None and not Path(os.fsdecode(error.filename)).absolute().is_relative_to(
            out.absolute()
        ):
            raise  # of a method, a model or a callback, not of the run folder
        raise BadInput(
            f"out={out}: cannot write ({error.strerror or error}); free or change the disk, then go on with resume=True"
        ) from error


@contextmanager
def _told(callbacks: CallbackList, what: str, after: float = 1.0) -> Iterator[None]:
    """Tell the callbacks what takes so long, if it does."""
    timer = threading.Timer(after, callbacks.wait, [what])
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def make_engine(
    name: str, spec: Spec, setting: Setting, folder: RunFolder, device: torch.device, progress: Progress, workers: int
) -> LocalEngine | PoolEngine:
    at_work = count_at_work(len(setting.clients), spec.participation)
    states = folder.checkpoints / checkpoint.CLIENTS
    who = (spec.method, setting.task, setting.clients, setting.shards)
    reader = Reading(setting.probe) if spec.diagnose_every else None
    options: dict[str, Any] = {"device": device, "progress": progress, "at_work": at_work, "folder": states}
    if name == "pool":
        return PoolEngine(*who, **options, reader=reader, workers=workers, threads=spec.threads)
    return LocalEngine(*who, **options, reader=reader)


def play(
    spec: Spec,
    setting: Setting,
    folder: RunFolder,
    callbacks: CallbackList,
    engine: Engine,
    tolerance: Tolerance | None = None,
    early: Sequence[Event] = (),
    diagnose: Diagnose | None = None,
) -> Summary:
    """The rounds that are still to be played, on any engine; with ``tolerance``, one whose clients are elsewhere.

    ``early`` events happened before the first of these rounds. ``diagnose`` is the engine's, for ``diagnose_every``.
    Afterwards the folder is free for another process, or for a resume in this one.
    """
    try:
        return _play(spec, setting, folder, callbacks, engine, tolerance, early, diagnose)
    except BaseException as error:
        callbacks.abandon(error)
        raise
    finally:
        folder.hand_over()


def _play(
    spec: Spec,
    setting: Setting,
    folder: RunFolder,
    callbacks: CallbackList,
    engine: Engine,
    tolerance: Tolerance | None,
    early: Sequence[Event],
    diagnose: Diagnose | None,
) -> Summary:
    method, task = spec.method, setting.task
    private = method.mechanism
    identity = setting.identity(spec) | ({"states": "nodes"} if tolerance else {})
    restored = checkpoint.load(folder.checkpoints, engine, identity)
    start = restored.next_round if restored else 0
    server = restored.server if restored else None
    begin = time.perf_counter() - (restored.seconds if restored else 0.0)
    run = Run(spec, setting, folder.path, start, played=start, server=server or {})
    checkpointer = Checkpointer(folder, engine, identity, begin)
    # In this order: a release counts before anything of its round is kept, and a checkpoint refers to the records.
    parts: list[Callback] = [PrivacyLedger(folder)] if private else []
    parts += [Recorder(folder, restored.records if restored else ""), TensorBoard()]
    if spec.diagnose_every and diagnose:
        parts.append(Diagnostics(folder, spec.diagnose_every, diagnose))
    callbacks.begin(run, [*parts, checkpointer])
    for event in early:
        assert tolerance
        tolerance.tell(Round(start, spec.rounds), event)

    def after_round(
        rnd: Round,
        participants: Sequence[ClientInfo],
        sent: Mapping[int, int],
        ups: Mapping[int, Upload],
        state: Payload,
    ) -> bool:
        run.participants, run.uploads, run.server = participants, ups, state
        run.played = min(rnd.index + 1, rnd.total)
        callbacks.round(rnd, make_records(rnd, participants, sent, ups))
        if not rnd.closing and (run.stopped or callbacks.failed):
            checkpointer.save(run, rnd)
            callbacks.check()
        return bool(run.stopped)

    rounds = start if start and run.stopped else None  # stopped before it was interrupted
    federate(method, task, engine, after_round, spec.participation, start, server, tolerance, rounds)
    entries = summarise(
        method,
        engine.clients(),
        run.records,
        {
            "format": FORMAT,
            "method": method.name,
            "data": spec.data,
            "seed": spec.seed,
            "rounds": spec.rounds,
            **({"stopped_early": {"rounds": run.played, "reason": run.stopped}} if run.played < spec.rounds else {}),
            **engine.describe(),
            "partition": setting.partition if spec.data in (IN_PYTHON, ON_NODES) else spec.partition,
            "alpha": spec.alpha,
            **({"holdout": spec.holdout} if spec.holdout else {}),
            **({"notes": list(setting.notes)} if setting.notes else {}),
            "bn_buffers": method.bn_buffers,
            **({"compress": spec.compress} if spec.compress != "none" else {}),
            **({"privacy": summarise_privacy(private, read_releases(folder.path))} if private else {}),
            "specification": identity["specification"],
            "data_fingerprint": identity["data"],
            "partition_digest": identity["partition"],
            **({"events": dict(Counter(e.event for e in read_events(folder.path)))} if tolerance else {}),
            "wall_seconds": time.perf_counter() - begin,
        },
    )
    for entry, shard in zip(entries["clients"], setting.shards, strict=bool(setting.shards)):
        entry["labels"] = torch.bincount(shard.y_train, minlength=task.classes).tolist()  # who holds which class
    summary = parse_summary(entries, folder.path / SUMMARY)
    folder.write_summary(summary)
    callbacks.end(summary)
    return summary
