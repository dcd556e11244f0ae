"""The content of ``summary.json``: the results of a finished run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asfedbridge.methods  # noqa: F401  registers every method
from asfedbridge.core.method import table_columns
from asfedbridge.runs.json_table import Entries, JsonTable
from asfedbridge.runs.spec import Spec

FORMAT = 1
Means = dict[str, float]  # by kind of client, and "all"


@dataclass(frozen=True)
class ClientSummary:
    """One client: what it is, its data, and its accuracy in percent."""

    id: int
    kind: str
    model: str
    width: float
    T: int
    bits: int
    accuracy: float | None  # None: it never took part
    train: int  # images
    test: int
    labels: tuple[int, ...] = ()  # training images of each class; empty if they are not known


@dataclass(frozen=True)
class StoppedEarly:
    """A callback ended the run after ``rounds`` rounds."""

    rounds: int
    reason: str


@dataclass(frozen=True)
class Summary(Entries):
    """The results of a run. Accuracies are in percent, at the method's evaluation point.

    Also a mapping of all entries of ``summary.json``, including those without an attribute.
    """

    method: str
    data: str
    seed: int
    rounds: int  # as specified
    engine: str
    partition: str
    alpha: float
    holdout: float  # share of the training images that clients are evaluated on; 0: the test images
    bn_buffers: str
    point: str
    accuracy: Means
    points: dict[str, Means]  # by evaluation point
    best: Means | None  # of the best round that evaluated every client
    added: dict[str, Means]  # accuracies of other predictors than the backbones, by the key of the method's column
    clients: tuple[ClientSummary, ...]
    payload_mb: float
    uplink_bytes: int
    downlink_bytes: int
    wall_seconds: float
    notes: tuple[str, ...]
    data_fingerprint: str
    partition_digest: str
    stopped_early: StoppedEarly | None
    entries: Mapping[str, Any] = field(repr=False)  # the whole file

    @property
    def played(self) -> int:
        """Rounds played: fewer than specified if the run was stopped early."""
        return self.stopped_early.rounds if self.stopped_early else self.rounds

    @property
    def course(self) -> str:
        """Rounds as text: "7 of 30" for a run that was stopped early, else "30"."""
        return f"{self.played} of {self.rounds}" if self.stopped_early else str(self.rounds)


def describe_spec(spec: Spec) -> dict[str, Any]:
    """The entries of ``summary.json`` that come from the specification."""
    return {
        "format": FORMAT,
        "method": spec.method.name,
        "data": spec.data,
        "seed": spec.seed,
        "rounds": spec.rounds,
        "partition": spec.partition,
        "alpha": spec.alpha,
        **({"holdout": spec.holdout} if spec.holdout else {}),
        "bn_buffers": spec.method.bn_buffers,
        **({"compress": spec.compress} if spec.compress != "none" else {}),
    }


def parse_summary(entries: Mapping[str, Any], file: Path = Path("summary.json")) -> Summary:
    """A summary from the content of its file; BadInput names ``file`` and the invalid entry."""
    table = JsonTable(entries, file, "the summary of a run")
    table.check_format(FORMAT)
    points = table.table("points", {})
    clients = tuple(_parse_client(entry) for entry in table.tables("clients"))
    if len({len(c.labels) for c in clients if c.labels}) > 1:
        raise table.wrong("clients", "consistent: the same number of labels in each")
    return Summary(
        method=table.text("method"),
        data=table.text("data"),
        seed=table.whole("seed"),
        rounds=table.whole("rounds"),
        engine=table.text("engine", ""),
        partition=table.text("partition"),
        alpha=table.number("alpha"),
        holdout=table.number("holdout", 0.0),
        bn_buffers=table.text("bn_buffers"),
        point=table.text("point"),
        accuracy=table.numbers("accuracy"),
        points={name: points.numbers(name) for name in points.entries},
        best=None if table.entries.get("best") is None else table.numbers("best"),
        added={key: table.numbers(key) for key in table_columns() if key in table.entries},
        clients=clients,
        payload_mb=table.number("payload_mb"),
        uplink_bytes=table.whole("uplink_bytes", 0),
        downlink_bytes=table.whole("downlink_bytes", 0),
        wall_seconds=table.number("wall_seconds"),
        notes=tuple(map(str, table.items("notes", []))),
        data_fingerprint=table.text("data_fingerprint", ""),
        partition_digest=table.text("partition_digest", ""),
        stopped_early=_parse_stop(table),
        entries=table.entries,
    )


def _parse_client(entry: JsonTable) -> ClientSummary:
    labels = entry.items("labels", [])
    if not all(type(label) is int and 0 <= label < 2**63 for label in labels):
        raise entry.wrong("labels", "a list of whole numbers, 0 or more")
    return ClientSummary(
        id=entry.whole("id"),
        kind=entry.text("kind"),
        model=entry.text("model"),
        width=entry.number("width"),
        T=entry.whole("T", 1),
        bits=entry.whole("bits", 32),
        accuracy=entry.optional_number("accuracy"),
        train=entry.whole("train"),
        test=entry.whole("test"),
        labels=tuple(labels),
    )


def _parse_stop(table: JsonTable) -> StoppedEarly | None:
    if "stopped_early" not in table.entries:
        return None
    found = table.table("stopped_early")
    return StoppedEarly(found.whole("rounds"), found.text("reason", ""))
