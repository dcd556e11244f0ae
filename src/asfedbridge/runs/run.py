"""One run from specification to summary: data, fleet, engine, rounds, records, checkpoints."""

import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import torch

from asfedbridge.analysis.diagnostics import Reading
from asfedbridge.core.errors import BadInput
from asfedbridge.core.payload import Payload
from asfedbridge.core.task import ClientInfo, Round, Upload
from asfedbridge.engines import checkpoint
from asfedbridge.engines.failures import Event, Tolerance
from asfedbridge.engines.local import LocalEngine
from asfedbridge.engines.loop import Engine, count_at_work, federate
from asfedbridge.engines.pool import PoolEngine
from asfedbridge.engines.process import prepare_process
from asfedbridge.models.zoo import compile_kernels
from asfedbridge.runs.callback import Callback, CallbackList, Run
from asfedbridge.runs.callbacks.checkpointer import Checkpointer
from asfedbridge.runs.callbacks.diagnostics import Diagnose, Diagnostics
from asfedbridge.runs.callbacks.privacy_ledger import PrivacyLedger
from asfedbridge.runs.callbacks.recorder import Recorder
from asfedbridge.runs.callbacks.tensorboard import TensorBoard
from asfedbridge.runs.client_writer import make_writer
from asfedbridge.runs.folder import SUMMARY, RunFolder, read_summary
from asfedbridge.runs.privacy import load_library, summarise_privacy
from asfedbridge.runs.record_files import read_events, read_releases
from asfedbridge.runs.records import make_records, summarise
from asfedbridge.runs.setting import Setting, pick_device, prepare
from asfedbridge.runs.spec import IN_PYTHON, ON_NODES, Spec
from asfedbridge.runs.summary import Summary, describe_spec, parse_summary


def execute(
    spec: Spec,
    out: Path,
    data_root: Path,
    callbacks: Sequence[Callback] = (),
    *,
    resume: bool = False,
    engine: str = "local",
    workers: int = 0,
    setting: Setting | None = None,
    from_round: int | None = None,
) -> Summary:
    """Execute the run in ``out`` to its end, from its last checkpoint if there is one; return the summary.

    ``engine`` (local, pool) and ``workers`` (0: the default) determine where clients run and do not change the results.
    ``setting`` replaces the data of the specification. A finished run is not repeated and its callbacks are not called,
    unless ``from_round`` names a checkpoint to go back to.
    """
    watching = CallbackList(callbacks)
    device = pick_device(spec.device, spec.precision)
    prepare_process(spec.threads)
    if spec.method.mechanism:
        load_library()  # a missing package must show now, not after training
    setting = setting or prepare(spec, data_root)
    with disk_faults(out), RunFolder(out, spec, resume) as folder:
        finished = read_summary(folder.path)
        if finished is not None and finished.data_fingerprint not in ("", setting.fingerprint):
            raise BadInput(f"out={out}: the folder contains a finished run on other data; give another out")
        if finished is not None and from_round is None:
            return finished
        if device.type == "cpu" and any(c.kind == "snn" for c in setting.clients):
            # Once here, instead of in every worker.
            compile_kernels(lambda: watching.wait("compiling spiking kernels (on first use only)"))
        with closing(make_engine(engine, spec, setting, folder, device, watching, workers)) as started:
            return play(spec, setting, folder, watching, started, diagnose=started.diagnose, from_round=from_round)


@contextmanager
def disk_faults(out: Path) -> Iterator[None]:
    """Convert errors of a full or failing disk in the run folder to one line."""
    try:
        yield
    except (ConnectionError, TimeoutError):
        raise  # network errors
    except OSError as error:
        if error.filename is not None and not Path(os.fsdecode(error.filename)).absolute().is_relative_to(
            out.absolute()
        ):
            raise  # an error of a method, model or callback, not of the run folder
        raise BadInput(
            f"out={out}: cannot write ({error.strerror or error}); free or change the disk, then continue with "
            f"resume=True"
        ) from error


def make_engine(
    name: str,
    spec: Spec,
    setting: Setting,
    folder: RunFolder,
    device: torch.device,
    callbacks: CallbackList,
    workers: int,
) -> LocalEngine | PoolEngine:
    at_work = count_at_work(len(setting.clients), spec.participation)
    states = folder.checkpoints / checkpoint.CLIENTS
    who = (spec.method, setting.task, setting.clients, setting.shards)
    reader = Reading(setting.probe) if spec.diagnose_every else None
    options: dict[str, Any] = {"device": device, "progress": callbacks.epoch, "at_work": at_work, "folder": states}
    options |= {"turns": callbacks.turn, "reader": reader, "keep": make_writer(spec, setting.classes, folder.clients)}
    if name == "pool":
        return PoolEngine(*who, **options, workers=workers, threads=spec.threads, tell=callbacks.wait)
    return LocalEngine(*who, **options)


def play(
    spec: Spec,
    setting: Setting,
    folder: RunFolder,
    callbacks: CallbackList,
    engine: Engine,
    *,
    tolerance: Tolerance | None = None,
    early: Sequence[Event] = (),
    diagnose: Diagnose | None = None,
    from_round: int | None = None,
) -> Summary:
    """Execute the remaining rounds on any engine. ``tolerance`` is for an engine whose clients are on other machines.

    ``early`` events happened before the first of these rounds. ``diagnose`` is the engine's method for
    ``diagnose_every``. ``from_round`` is the checkpoint to go back to. Afterwards the folder is unlocked.
    """
    method, task = spec.method, setting.task
    identity = setting.identity(spec) | ({"states": "nodes"} if tolerance else {})
    with _held(folder, callbacks):
        restored = _restore(spec, folder, engine, identity, from_round)
        start, server = (restored.next_round, restored.server) if restored else (0, None)
        folder.note_start(start)
        begin = time.perf_counter() - (restored.seconds if restored else 0.0)
        run = Run(spec, setting, folder.path, start, played=start, server=server or {})
        checkpointer = Checkpointer(folder, engine, identity, begin, spec.keep_checkpoints)
        # In this order: a release is recorded before anything else of its round, and a checkpoint refers to records.
        parts: list[Callback] = [PrivacyLedger(folder)] if method.mechanism else []
        parts += [Recorder(folder, restored.records if restored else ""), TensorBoard()]
        if spec.diagnose_every and diagnose:
            parts.append(Diagnostics(folder, spec.diagnose_every, diagnose))
        callbacks.begin(run, [*parts, checkpointer])
        if tolerance:
            for told in read_events(folder.path):  # those of earlier rounds
                tolerance.note(told.round, told.event, told.client)
            for record in run.records:
                tolerance.quarantine.note_delivery(record.client, record.round)
            for event in early:
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

        rounds = start if start and run.stopped else None  # a callback had stopped the run before it was interrupted
        federate(method, task, engine, after_round, spec.participation, start, server, tolerance, rounds)
        summary = _summarise(run, engine, identity, time.perf_counter() - begin)
        folder.write_summary(summary)
        callbacks.end(summary)
        return summary


@contextmanager
def _held(folder: RunFolder, callbacks: CallbackList) -> Iterator[None]:
    """Unlocks the folder afterwards; notifies the callbacks if the run fails."""
    try:
        yield
    except BaseException as error:
        callbacks.abandon(error)
        raise
    finally:
        folder.hand_over()


def _restore(
    spec: Spec, folder: RunFolder, engine: Engine, identity: Mapping[str, str], from_round: int | None
) -> checkpoint.Checkpoint | None:
    """Restores the last checkpoint, or that of ``from_round``; returns None if there is none."""
    if from_round is not None:
        chosen = checkpoint.find(folder.checkpoints, from_round)
        checkpoint.read(chosen, identity)  # raises if it is missing or damaged
        folder.reopen()
    restored = checkpoint.load(
        folder.checkpoints,
        engine,
        identity,
        from_round=from_round,
        snapshots=folder.snapshots,
        keep=spec.keep_checkpoints,
    )
    if restored and not 0 <= restored.next_round <= spec.rounds:
        raise BadInput(
            f"{folder.checkpoints}: the checkpoint is for round {restored.next_round}, but the run has {spec.rounds}; "
            f"restore it, or give another out"
        )
    return restored


def _summarise(run: Run, engine: Engine, identity: Mapping[str, str], seconds: float) -> Summary:
    spec, setting, folder = run.spec, run.setting, run.path
    private = spec.method.mechanism
    about = {
        **describe_spec(spec),
        **({"partition": setting.partition} if spec.data in (IN_PYTHON, ON_NODES) else {}),
        **({"stopped_early": {"rounds": run.played, "reason": run.stopped}} if run.played < spec.rounds else {}),
        **engine.describe(),
        **({"notes": list(setting.notes)} if setting.notes else {}),
        **({"privacy": summarise_privacy(private, read_releases(folder))} if private else {}),
        "specification": identity["specification"],
        "data_fingerprint": identity["data"],
        "partition_digest": identity["partition"],
        **({"events": dict(Counter(e.event for e in read_events(folder)))} if "states" in identity else {}),
        "wall_seconds": seconds,
    }
    entries = summarise(spec.method, engine.clients(), run.records, about)
    # The number of training images of each class.
    for entry, shard in zip(entries["clients"], setting.shards, strict=bool(setting.shards)):
        entry["labels"] = torch.bincount(shard.y_train, minlength=setting.task.classes).tolist()
    return parse_summary(entries, folder / SUMMARY)
