"""The run folder: spec.toml, env.json, rounds.jsonl, summary.json, checkpoint/, tensorboard/ and, where asked for,
snapshots/ and diagnostics.jsonl."""

import hashlib
import json
import os
import platform
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy
import torch

import asfedbridge
from asfedbridge.core import plugins
from asfedbridge.core.errors import BadInput
from asfedbridge.engines.files import append_through, take_lock, write_atomic
from asfedbridge.runs.json_table import read_table
from asfedbridge.runs.records import EventRecord, Record, RoundRecord, parse_event, parse_record
from asfedbridge.runs.spec import Spec, from_table, restored
from asfedbridge.runs.summary import Summary, parse_summary
from asfedbridge.runs.toml import read_toml, write_toml

SPEC, ENV, ROUNDS, SUMMARY, LOCK = "spec.toml", "env.json", "rounds.jsonl", "summary.json", ".lock"
CHECKPOINT, SNAPSHOTS = "checkpoint", "snapshots"
BEGINNING = {LOCK, f"{SPEC}.partial"}  # all there is when a run is killed before it has begun
RELEASES = "releases.jsonl"  # of a private run
DIAGNOSTICS = "diagnostics.jsonl"  # of a run with diagnose_every
CUT_OFF = re.compile(rb"(\[(\d+, )*(\d+,?)?)?")  # what a crash can leave of a release

R = TypeVar("R")


class RunFolder:
    """One run's folder, held by one process at a time."""

    def __init__(self, path: Path, spec: Spec, resume: bool) -> None:
        self.path = path
        self.spec = spec
        if path.exists() and not path.is_dir():
            raise BadInput(f"out={path}: is not a folder; give another out")
        old = read_spec(path, base=spec)
        if old is None and path.is_dir() and any(p.name not in BEGINNING for p in path.iterdir()):
            raise BadInput(f"out={path}: the folder holds other files; give a new or empty one")
        if old is not None and not resume:
            raise BadInput(f"out={path}: the folder holds another run; add resume=True to go on, or give another out")
        if old is not None and old.digest() != spec.digest():
            raise BadInput(f"out={path}: the folder holds another run ({differences(old, spec)}); give another out")
        path.mkdir(parents=True, exist_ok=True)
        self._lock = self._take_lock()
        if old is None:
            write_atomic(path / SPEC, write_toml(spec).encode())
        if not (path / ENV).exists():
            write_atomic(path / ENV, json.dumps(environment(spec), indent=2).encode())

    @property
    def checkpoints(self) -> Path:
        return self.path / CHECKPOINT

    @property
    def snapshots(self) -> Path:
        return self.path / SNAPSHOTS

    def begin(self, next_round: int, sha256: str = "") -> list[RoundRecord]:
        """Drop records of rounds that will be played again; return those of the other rounds, without events.

        ``sha256`` is that of the records that stay, as a checkpoint remembers it.
        """
        numbered = [(n, r) for n, r in enumerate(_read_lines(self.path / ROUNDS), 1) if r["round"] < next_round]
        kept = [r for _, r in numbered]
        if sha256 and hashlib.sha256(_lines(kept)).hexdigest() != sha256:
            raise BadInput(
                f"{self.path / ROUNDS}: is not what it was after round {next_round - 1}; "
                f"restore it, or start again in another out"
            )
        records = _parse_rounds(self.path / ROUNDS, numbered)
        write_atomic(self.path / ROUNDS, _lines(kept))
        return records

    def records_sha256(self) -> str:
        """Of all records so far: what `begin` asks for."""
        return hashlib.sha256((self.path / ROUNDS).read_bytes()).hexdigest()

    def add_records(self, records: Sequence[Record]) -> None:
        """Of a round, or of events."""
        append_through(self.path / ROUNDS, _lines(records))

    def begin_diagnostics(self, done: Sequence[int]) -> list[Record]:
        """Cut the diagnostics back to the rounds that are ``done``; every one of them must be there."""
        file = self.path / DIAGNOSTICS
        kept = [line for line in _read_lines(file) if line["round"] in done]
        if [line["round"] for line in kept] != list(done):
            raise BadInput(
                f"{file}: does not hold the diagnosed rounds up to the checkpoint; "
                f"restore it, or start again in another out"
            )
        write_atomic(file, _lines(kept))
        return kept

    def add_diagnosis(self, line: Record) -> None:
        append_through(self.path / DIAGNOSTICS, _lines([line]))

    def add_release(self, clients: Sequence[int]) -> None:
        """Note whose updates are in an aggregate that is about to be sent out with noise.

        Never cut back: what is played again after a crash is sent out again, with other noise, and counts again.
        """
        # On a line of its own, whatever a crash left there.
        append_through(self.path / RELEASES, b"\n" + json.dumps(clients).encode() + b"\n")

    def hand_over(self) -> None:
        """Let another process have the folder."""
        self._lock.close()

    def write_summary(self, summary: Summary) -> None:
        write_atomic(self.path / SUMMARY, json.dumps(summary.to_json(), indent=2).encode())

    def _take_lock(self) -> IO[str]:
        lock = take_lock(self.path / LOCK)
        if lock is None:
            raise BadInput(f"out={self.path}: another process is running in this folder; wait or stop it")
        return lock


def read_spec(path: Path, base: Spec) -> Spec | None:
    """The specification of the run in this folder, if one is there.

    A field that was added after the run was made has the value that the run was made with.
    """
    file = path / SPEC
    if not file.exists():
        return None
    try:
        return from_table(restored(read_toml(file)), base)
    except BadInput as error:
        missing = [name for name in read_imports(path) if name not in plugins.FILES]
        hint = f"; the run was made with the plugin {missing[0]}; load it with load_plugin" if missing else ""
        raise BadInput(f"{error}{hint}") from None


def read_imports(path: Path) -> list[str]:
    """The plugin files that the run in this folder was made with."""
    found = read_table(path / ENV, "delete it") if (path / ENV).exists() else None
    return [name for name in (found or {}).get("imports", []) if isinstance(name, str)]


def read_summary(path: Path) -> Summary | None:
    """The summary of a finished run; None if the run has not ended. BadInput names an entry that is wrong."""
    found = read_table(path / SUMMARY, "delete it and run again with resume=True")
    return None if found is None else parse_summary(found, path / SUMMARY)


def read_rounds(path: Path) -> list[RoundRecord]:
    """What every client did in every round."""
    return _parse_rounds(path / ROUNDS, enumerate(_read_lines(path / ROUNDS), 1))


def _parse_rounds(file: Path, numbered: Iterable[tuple[int, Record]]) -> list[RoundRecord]:
    """The records among numbered lines, without events."""
    return _parse_lines(file, ((number, line) for number, line in numbered if "event" not in line), parse_record)


def read_events(path: Path) -> list[EventRecord]:
    """What happened to clients behind a network: absent, lost, refused, returned ..."""
    numbered = enumerate(_read_lines(path / ROUNDS), 1)
    return _parse_lines(path / ROUNDS, ((number, line) for number, line in numbered if "event" in line), parse_event)


def _parse_lines(file: Path, numbered: Iterable[tuple[int, Record]], parse: Callable[[Record], R]) -> list[R]:
    found = []
    for number, line in numbered:
        try:
            found.append(parse(line))
        except ValueError as error:
            raise BadInput(
                f"{file}: line {number} is damaged: {error}; restore the file, or remove what is not whole"
            ) from None
    return found


def read_diagnostics(path: Path) -> list[Record]:
    """The diagnosed rounds, in order; none of a run without ``diagnose_every``."""
    return _read_lines(path / DIAGNOSTICS)


def _read_lines(file: Path) -> list[Record]:
    """Every record. A line cut short by a crash, without its end, is passed over; other damage is said."""
    records: list[Record] = []
    *lines, _ = file.read_bytes().split(b"\n") if file.exists() else [b""]
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if not isinstance(record, dict) or type(record.get("round")) is not int:
            raise BadInput(f"{file}: line {number} is damaged; restore the file, or remove what is not whole")
        records.append(record)
    return records


def read_releases(path: Path) -> list[list[int]]:
    """The clients of every release. A line cut short by a crash was never sent out; any other must be there, or epsilon
    would be told too small."""
    file = path / RELEASES
    found: list[list[int]] = []
    for line in file.read_bytes().split(b"\n") if file.exists() else []:
        try:
            clients = json.loads(line)
        except ValueError:
            if CUT_OFF.fullmatch(line):
                continue
            clients = None
        if not isinstance(clients, list) or not all(type(client) is int and client >= 0 for client in clients):
            raise BadInput(f"{file}: {line[:40]!r} is damaged: whose updates it counted is not known; restore the file")
        found.append(clients)
    return found


def differences(old: Spec, new: Spec) -> str:
    """The first fields in which two specifications differ."""
    before, after = (set(write_toml(s).splitlines()) for s in (old, new))
    changed = sorted(after - before) or sorted(before - after)
    return ", ".join(changed[:3]) + (" ..." if len(changed) > 3 else "")


def environment(spec: Spec) -> dict[str, Any]:
    """What else the bits depend on."""
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


def _lines(records: Iterable[Record]) -> bytes:
    return b"".join(json.dumps(dict(r)).encode() + b"\n" for r in records)
