"""Evaluates the clients of a run on one data set, or each of them on the test images of every client."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from asfedbridge.core.errors import BadInput
from asfedbridge.core.reading import is_there
from asfedbridge.data.dataset import Dataset
from asfedbridge.data.inputs import Reader
from asfedbridge.engines.files import write_atomic
from asfedbridge.engines.process import prepare_process
from asfedbridge.runs.client_builder import Models
from asfedbridge.runs.folder import SPEC, read_spec
from asfedbridge.runs.json_table import JsonTable, read_table
from asfedbridge.runs.labelled import load_source, reader_for
from asfedbridge.runs.result import Result, load
from asfedbridge.runs.search import find_client, find_clients
from asfedbridge.runs.setting import Setting, prepare
from asfedbridge.runs.trained import TrainedClient, open_client

EVALUATION_FILE, FORMAT = "evaluation.json", 1
Tell = Callable[[str], None]


@dataclass(frozen=True)
class ClientEvaluation:
    """The results of one client: on the given data or, by default, on its own test images."""

    id: int
    kind: str
    model: str
    accuracy: float
    ece: float
    latency_ms: float
    spikes: float | None
    sops: float | None
    images: int
    per_class: Mapping[str, float | None]  # accuracy in percent, by class name; None: no image of this class
    confusion: tuple[tuple[int, ...], ...] = ()  # images by label (row) and prediction (column)


@dataclass(frozen=True)
class RunEvaluation:
    """The results of ``asfedbridge evaluate``."""

    data: str
    fused: bool
    clients: tuple[ClientEvaluation, ...]
    matrix: tuple[tuple[float | None, ...], ...]  # accuracy of a client (row) on the test images of a client (column)
    shards: tuple[int, ...]  # client ids of the columns
    entries: Mapping[str, Any]  # the content of the file
    file: Path | None = None  # where it was written


def evaluate_run(
    path: Path,
    tell: Tell,
    *,
    data: str | None = None,
    client: int | None = None,
    fused: bool = False,
    checkpoint: bool = False,
    data_root: Path,
    models: Models | None = None,
    trust: bool = False,
) -> RunEvaluation:
    """Evaluate the clients of a run folder, of a node's state folder or of a client file.

    Without ``data``, the clients of a run are evaluated on the test images of all its clients. The evaluation of a
    whole run is written to ``evaluation.json`` in its folder.
    """
    run = load(path, checkpoint=checkpoint, models=models, trust=trust, data_root=data_root) if _is_run(path) else None
    if run is None and data is None:
        raise BadInput(f"{path}: is not a run folder, so it has no test images; give data=SOURCE")
    setting = _read_data(path, run, data_root) if run is not None and data is None else None
    found: list[dict[str, Any]] = []
    matrix: list[list[float]] = []
    loaded: dict[Reader, Dataset] = {}  # by input format, which all clients of a run usually share
    for trained in _open_clients(path, run, client, models, trust):
        card = trained.card
        if setting is None:
            reader = replace(reader_for(card), data="")
            if reader not in loaded:
                loaded[reader] = load_source(reader, str(data), data_root)
            tell(f"{card.label} ...")
            judged = trained.evaluate(loaded[reader], fused)
        else:
            tell(f"{card.label} ...")
            (own,) = (s for c, s in zip(setting.clients, setting.shards, strict=True) if c.id == card.id)
            judged = trained.judge(own.x_test, own.y_test, fused)
            matrix.append([trained.accuracy_on(shard.x_test, shard.y_test) for shard in setting.shards])
        found.append({"id": card.id, "kind": card.kind, "model": card.model, **judged.to_json()})
    shards = [info.id for info in setting.clients] if setting else []
    name = "own test images" if data is None else data
    entries = {"format": FORMAT, "data": name, "fused": fused, "clients": found, "matrix": matrix, "shards": shards}
    evaluation = parse_evaluation(entries, path / EVALUATION_FILE)
    if run is None or client is not None:
        return evaluation
    write_atomic(path / EVALUATION_FILE, json.dumps(entries, indent=1).encode())
    return replace(evaluation, file=path / EVALUATION_FILE)


def _is_run(path: Path) -> bool:
    return path.is_dir() and is_there(path / SPEC)


def _open_clients(
    path: Path, run: Result | None, client: int | None, models: Models | None, trust: bool
) -> Iterator[TrainedClient]:
    if run is None:
        one = client is not None or not path.is_dir()
        for card in [find_client(path, client)] if one else find_clients(path) or [find_client(path)]:
            yield open_client(card, models, trust)
        return
    chosen = [known.id for known in run.clients if client in (None, known.id)]
    if not chosen:
        raise BadInput(f"client={client}: {path} has no such client; it has 0 to {len(run.clients) - 1}")
    yield from map(run.opener, chosen)


def _read_data(path: Path, run: Result, data_root: Path) -> Setting:
    """The data that the run was trained on, with the same partition."""
    spec = read_spec(path)
    assert spec
    prepare_process(spec.threads)  # as in training, for the same bits
    setting = prepare(spec, data_root)
    if run.summary.get("data_fingerprint") not in (None, "", setting.fingerprint):
        raise BadInput(
            f"data={spec.data}: differs from the data that the run was trained on; restore it, or give data=SOURCE"
        )
    return setting


def read_evaluation(folder: Path) -> RunEvaluation | None:
    """The evaluation stored in a run folder; None if there is none."""
    found = read_table(folder / EVALUATION_FILE)
    return None if found is None else parse_evaluation(found, folder / EVALUATION_FILE)


def parse_evaluation(entries: Mapping[str, Any], file: Path) -> RunEvaluation:
    table = JsonTable(entries, file, "the evaluation of a run")
    table.check_format(FORMAT)
    clients = tuple(_parse_client(entry) for entry in table.tables("clients"))
    rows = JsonTable({str(n): row for n, row in enumerate(table.items("matrix"))}, file, table.what, "matrix.")
    matrix = tuple(rows.series(name) for name in rows.entries)
    shards = table.items("shards")
    if not all(type(shard) is int for shard in shards):
        raise table.wrong("shards", "a list of whole numbers")
    if any(len(row) != len(shards) for row in matrix) or len(matrix) not in (0, len(clients)):
        raise table.wrong("matrix", "a row for each client, a column for each shard")
    return RunEvaluation(table.text("data"), table.flag("fused"), clients, matrix, tuple(shards), entries)


def _parse_client(entry: JsonTable) -> ClientEvaluation:
    classes = entry.table("per_class", {})
    return ClientEvaluation(
        id=entry.whole("id"),
        kind=entry.text("kind"),
        model=entry.text("model"),
        accuracy=entry.number("accuracy"),
        ece=entry.number("ece"),
        latency_ms=entry.number("latency_ms"),
        spikes=entry.optional_number("spikes"),
        sops=entry.optional_number("sops"),
        images=entry.whole("images"),
        per_class={name: classes.optional_number(name) for name in classes.entries},
        confusion=_parse_confusion(entry),
    )


def _parse_confusion(entry: JsonTable) -> tuple[tuple[int, ...], ...]:
    rows = entry.items("confusion", [])
    if not all(isinstance(row, list) and len(row) == len(rows) for row in rows):
        raise entry.wrong("confusion", "a square matrix")
    if not all(type(count) is int and 0 <= count < 2**63 for row in rows for count in row):
        raise entry.wrong("confusion", "a matrix of whole numbers, 0 or more")
    return tuple(map(tuple, rows))
