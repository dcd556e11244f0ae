"""The JSON Lines files of a run folder: rounds.jsonl, diagnostics.jsonl and releases.jsonl."""

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from asfedbridge.core.errors import BadInput
from asfedbridge.core.reading import parse_json, read_bytes
from asfedbridge.data.memory import memory
from asfedbridge.engines.files import is_there
from asfedbridge.runs.analysis_record import RoundAnalysis, parse_round
from asfedbridge.runs.json_table import JsonTable
from asfedbridge.runs.records import EventRecord, Record, RoundRecord, accuracies_after, parse_event, parse_record

ROUNDS = "rounds.jsonl"
RELEASES = "releases.jsonl"  # of a differentially private run
DIAGNOSTICS = "diagnostics.jsonl"  # of a run with diagnose_every
CUT_OFF = re.compile(rb"(\[(\d+, )*(\d+,?)?)?\0*")  # a line left incomplete by a crash; a power cut may leave zeros

R = TypeVar("R")


def read_rounds(path: Path) -> list[RoundRecord]:
    """The records of all clients and rounds."""
    return parse_rounds(path / ROUNDS, enumerate(read_lines(path / ROUNDS), 1))


def read_events(path: Path) -> list[EventRecord]:
    """Events of clients behind a network: absent, lost, refused, returned ..."""
    numbered = enumerate(read_lines(path / ROUNDS), 1)
    return _parse_lines(path / ROUNDS, ((number, line) for number, line in numbered if "event" in line), parse_event)


def read_diagnostics(path: Path) -> list[Record]:
    """The diagnosed rounds, in order; empty for a run without ``diagnose_every``."""
    return read_lines(path / DIAGNOSTICS)


def read_course(folder: Path) -> list[RoundAnalysis]:
    """The diagnosed rounds of a run with their accuracies; BadInput names an invalid entry."""
    lines = read_diagnostics(folder)
    records = read_rounds(folder) if lines else []
    course = []
    for number, line in enumerate(lines, start=1):
        played = line["round"] + 1
        entries = {**line, "round": played, "point": "trained", "accuracy": accuracies_after(records, played)}
        table = JsonTable(entries, folder / DIAGNOSTICS, "a file of diagnosed rounds", f"line {number}: ")
        course.append(parse_round(table))
    return course


def read_releases(path: Path) -> list[list[int]]:
    """The clients of every release. An incomplete line belongs to an aggregate that was never sent and is skipped. Any
    other damage is an error, because epsilon would be underestimated."""
    file = path / RELEASES
    found: list[list[int]] = []
    for line in read_bytes(file, max_bytes()).split(b"\n") if is_there(file) else []:
        try:
            clients = parse_json(line)
        except ValueError:
            if CUT_OFF.fullmatch(line):
                continue
            clients = None
        if not isinstance(clients, list) or not all(type(client) is int and client >= 0 for client in clients):
            raise BadInput(
                f"{file}: the line {line[:40]!r} is damaged, so epsilon cannot be computed; restore the file"
            )
        found.append(clients)
    return found


def parse_rounds(file: Path, numbered: Iterable[tuple[int, Record]]) -> list[RoundRecord]:
    """The records among numbered lines, without events."""
    return _parse_lines(file, ((number, line) for number, line in numbered if "event" not in line), parse_record)


def read_lines(file: Path, rest: bool = False) -> list[Record]:
    """All records. An incomplete last line, as a crash leaves it, is skipped. Other damage raises BadInput or, with
    ``rest``, ends the list."""
    records: list[Record] = []
    *lines, _ = read_bytes(file, max_bytes()).split(b"\n") if is_there(file) else [b""]
    for number, line in enumerate(lines, start=1):
        try:
            record = parse_json(line)
        except ValueError:
            record = None
        if not isinstance(record, dict) or type(record.get("round")) is not int:
            if rest:
                break
            raise BadInput(f"{file}: line {number} is damaged; restore the file, or remove the damaged lines")
        records.append(record)
    return records


def join_lines(records: Iterable[Record]) -> bytes:
    return b"".join(json.dumps(dict(r)).encode() + b"\n" for r in records)


def max_bytes() -> int:
    """The maximum size of a file of records: in memory they take about eight times as much as on disk."""
    return memory() // 8


def _parse_lines(file: Path, numbered: Iterable[tuple[int, Record]], parse: Callable[[Record], R]) -> list[R]:
    found = []
    for number, line in numbered:
        try:
            found.append(parse(line))
        except ValueError as error:
            raise BadInput(
                f"{file}: line {number} is damaged: {error}; restore the file, or remove the damaged lines"
            ) from None
    return found
