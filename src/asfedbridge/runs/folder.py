"""The run folder: spec.toml, env.json, rounds.jsonl, summary.json, checkpoint/, clients/, tensorboard/ and, if enabled,
snapshots/ and diagnostics.jsonl."""

import hashlib
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Self

import numpy
import torch

import asfedbridge
from asfedbridge.core import plugins
from asfedbridge.core.errors import BadInput
from asfedbridge.core.method import METHODS
from asfedbridge.core.reading import read_bytes
from asfedbridge.engines.files import (
    append_through,
    is_there,
    make_folder,
    remove_file,
    sync_folder,
    take_lock,
    write_atomic,
)
from asfedbridge.methods import DEFAULT
from asfedbridge.runs.client_file import remove_clients
from asfedbridge.runs.json_table import read_table
from asfedbridge.runs.record_files import DIAGNOSTICS, RELEASES, ROUNDS, join_lines, max_bytes, parse_rounds, read_lines
from asfedbridge.runs.records import Record, RoundRecord
from asfedbridge.runs.spec import Spec, from_table
from asfedbridge.runs.summary import Summary, parse_summary
from asfedbridge.runs.toml import read_toml, write_toml

SPEC, ENV, SUMMARY, LOCK = "spec.toml", "env.json", "summary.json", ".lock"
CHECKPOINT, SNAPSHOTS, CLIENTS = "checkpoint", "snapshots", "clients"
LOCK_PAUSE = 0.1  # seconds between attempts to lock
NODES = "nodes"  # for a run over Flower on one machine: one folder of private states per client
BEGINNING = {LOCK, f"{SPEC}.partial"}  # the only files if a run is killed while it starts


class RunFolder:
    """The folder of a run, locked by one process at a time. ``patience``: seconds to wait for another process."""

    def __init__(self, path: Path, spec: Spec, resume: bool, patience: float = 0.0) -> None:
        self.path = path
        self.spec = spec
        if path.exists() and not path.is_dir():
            raise BadInput(f"out={path}: is not a folder; give another out")
        old = read_spec(path)
        if old is None and path.is_dir() and any(p.name not in BEGINNING for p in path.iterdir()):
            raise BadInput(f"out={path}: the folder contains other files; give a new or empty one")
        if old is not None and not resume:
            raise BadInput(
                f"out={path}: the folder contains another run; add resume=True to continue it, or give another out"
            )
        if old is not None and old.digest() != spec.digest():
            raise BadInput(f"out={path}: the folder contains another run ({differences(old, spec)}); give another out")
        if not path.is_dir():
            make_folder(path)
        self._lock = self._take_lock(patience)
        self._unflushed: set[str] = set()
        try:
            if old is None:
                write_atomic(path / SPEC, write_toml(spec).encode())
            if not is_there(path / ENV):
                write_atomic(path / ENV, json.dumps(environment(spec), indent=2).encode())
        except BaseException:
            self.hand_over()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.hand_over()

    @property
    def checkpoints(self) -> Path:
        return self.path / CHECKPOINT

    @property
    def snapshots(self) -> Path:
        return self.path / SNAPSHOTS

    @property
    def clients(self) -> Path:
        """The folder of client files, which are written when the run ends."""
        return self.path / CLIENTS

    def note_start(self, next_round: int) -> None:
        """Record the environment of this process, on which the results depend from this round on."""
        here = environment(self.spec)
        known = read_table(self.path / ENV, "delete it") or here
        starts = known.get("starts")
        now = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "next_round": next_round}
        start = now | {"machine": platform.node()} | {key: value for key, value in here.items() if key != "spec"}
        known["starts"] = [*(starts if isinstance(starts, list) else []), start]
        write_atomic(self.path / ENV, json.dumps(known, indent=2).encode())

    def reopen(self) -> None:
        """Mark a run that goes back to an earlier round as unfinished: remove its summary and its client files."""
        remove_file(self.path / SUMMARY)
        sync_folder(self.path)
        remove_clients(self.clients)

    def begin(self, next_round: int, sha256: str = "") -> list[RoundRecord]:
        """Drop the records of rounds that will be repeated; return the others, without events.

        ``sha256``: the checksum of the remaining records, from the checkpoint.
        """
        # Later lines may be damaged by a power cut; the checksum shows that no earlier line is missing.
        lines = read_lines(self.path / ROUNDS, rest=bool(sha256) or not next_round)
        numbered = [(n, r) for n, r in enumerate(lines, 1) if r["round"] < next_round]
        kept = [r for _, r in numbered]
        if sha256 and hashlib.sha256(join_lines(kept)).hexdigest() != sha256:
            raise BadInput(
                f"{self.path / ROUNDS}: has changed since round {next_round - 1}; "
                f"restore it, or start again in another out"
            )
        records = parse_rounds(self.path / ROUNDS, numbered)
        write_atomic(self.path / ROUNDS, join_lines(kept))
        return records

    def records_sha256(self) -> str:
        """The checksum of all records so far, for ``begin``."""
        return hashlib.sha256(read_bytes(self.path / ROUNDS, max_bytes())).hexdigest()

    def add_records(self, records: Sequence[Record]) -> None:
        """Append records of a round, or events. They are durable once a checkpoint or the summary refers to them."""
        self._append(ROUNDS, records)

    def begin_diagnostics(self, done: Sequence[int]) -> list[Record]:
        """Remove the diagnostics of all rounds except ``done``, none of which may be missing."""
        file = self.path / DIAGNOSTICS
        kept = [line for line in read_lines(file, rest=True) if line["round"] in done]
        if [line["round"] for line in kept] != list(done):
            raise BadInput(
                f"{file}: lacks diagnosed rounds up to the checkpoint; restore it, or start again in another out"
            )
        write_atomic(file, join_lines(kept))
        return kept

    def add_diagnosis(self, line: Record) -> None:
        self._append(DIAGNOSTICS, [line])

    def unflushed(self) -> list[Path]:
        """Files that have not been flushed to disk; the next checkpoint flushes them."""
        return [self.path / name for name in sorted(self._unflushed)]

    def add_release(self, clients: Sequence[int]) -> None:
        """Record whose updates are in a noisy aggregate that is about to be sent.

        The file is never truncated: a round repeated after a crash releases another noisy aggregate, which counts too.
        """
        # Starts a new line, because a crash may have left an incomplete one.
        append_through(self.path / RELEASES, b"\n" + json.dumps(clients).encode() + b"\n")

    def hand_over(self) -> None:
        """Release the lock, so that another process can use the folder."""
        self._lock.close()

    def write_summary(self, summary: Summary) -> None:
        write_atomic(self.path / SUMMARY, json.dumps(summary.to_json(), indent=2).encode(), self.unflushed())

    def _append(self, name: str, lines: Sequence[Record]) -> None:
        append_through(self.path / name, join_lines(lines), flush=False)
        self._unflushed.add(name)

    def _take_lock(self, patience: float) -> IO[str]:
        deadline = time.monotonic() + patience
        while (lock := take_lock(self.path / LOCK)) is None:
            if time.monotonic() >= deadline:
                raise BadInput(f"out={self.path}: another process is using this folder; wait for it or stop it")
            time.sleep(LOCK_PAUSE)
        return lock


def read_spec(path: Path) -> Spec | None:
    """The specification of the run in this folder; None if there is no run.

    A field missing from the file has its default. If the run used another value, its checkpoint is refused.
    """
    file = path / SPEC
    if not is_there(file):
        return None
    try:
        return from_table(read_toml(file), Spec(METHODS[DEFAULT]()))
    except BadInput as error:
        missing = [name for name in read_imports(path) if name not in plugins.FILES]
        hint = f"; the run used the plugin {missing[0]}; load it with load_plugin" if missing else ""
        raise BadInput(f"{error}{hint}") from None


def read_imports(path: Path) -> list[str]:
    """The plugin files that the run in this folder used."""
    imports = (read_table(path / ENV, "delete it") or {}).get("imports")
    return [name for name in imports if isinstance(name, str)] if isinstance(imports, list) else []


def read_summary(path: Path) -> Summary | None:
    """The summary of a finished run; None if the run is not finished. BadInput names an invalid entry."""
    found = read_table(path / SUMMARY, "delete it and run again with resume=True")
    return None if found is None else parse_summary(found, path / SUMMARY)


def differences(old: Spec, new: Spec) -> str:
    """The first fields in which two specifications differ."""
    before, after = (set(write_toml(s).splitlines()) for s in (old, new))
    sides = [sorted(lines)[:3] + ["..."] * (len(lines) > 3) for lines in (before - after, after - before)]
    return f"it has {', '.join(sides[0]) or 'no such field'}; given: {', '.join(sides[1]) or 'none'}"


def environment(spec: Spec) -> dict[str, Any]:
    """Everything besides the specification that results depend on."""
    return {
        "asfedbridge": asfedbridge.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "command": sys.argv,
        "imports": list(plugins.FILES),
        "plugins": dict(plugins.PACKAGES),
        "spec": spec.digest(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()
