"""Reads everything that a report shows about a run from its folder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from asfedbridge.core import METHODS, BadInput, ClientInfo, is_there, read_bytes
from asfedbridge.paper.lookup import find_cell
from asfedbridge.report.curves import Curves, trace
from asfedbridge.report.settings import METHOD, Fields, name_changes, read_fields
from asfedbridge.report.tables import find_files, find_runs, name_data, name_split
from asfedbridge.runs import (
    ENV,
    SPEC,
    SUMMARY,
    Analysis,
    CostTable,
    EventRecord,
    RoundAnalysis,
    RoundRecord,
    RunEvaluation,
    Spec,
    Summary,
    describe_spec,
    parse_summary,
    read_analysis,
    read_cost_table,
    read_course,
    read_evaluation,
    read_events,
    read_rounds,
    read_spec,
    read_table,
    summarise,
)

COSTS = "costs.json"  # asfedbridge costs --run DIR --json > DIR/costs.json
Table = dict[str, Any]
# These do not describe the setting of a run, or have their own column.
HIDDEN_FIELDS = (
    *("seed", "data", "partition", "alpha", "holdout", "method.name"),
    *("checkpoint_every", "keep_checkpoints", "snapshot_every", "diagnose_every", "client_files"),
)


@dataclass(frozen=True)
class Run:
    folder: Path
    summary: Summary
    specification: str  # as TOML
    fields: Fields  # of the specification
    environment: Table
    curves: Curves
    events: Sequence[EventRecord]  # failures of clients behind a network
    analysis: Analysis | None
    course: Sequence[RoundAnalysis]  # diagnosed rounds or, without them, analysed snapshots
    costs: CostTable | None
    evaluation: RunEvaluation | None
    reported: Mapping[str, float]  # the paper's values for this cell
    cell: str  # its place in the paper's tables
    finished: bool = True

    @property
    def stopped(self) -> bool:
        """Whether the run ended before its last round, for example by early stopping."""
        return self.finished and self.summary.stopped_early is not None

    @property
    def split(self) -> str:
        return name_split(self.summary)

    @property
    def data(self) -> str:
        return name_data(self.summary)


def gather(
    folders: Sequence[Path], reported: Mapping[Path, Mapping[str, float]] | None = None, required: bool = True
) -> list[Run]:
    """Every finished run in these folders and below. ``reported``: the paper's values by run folder, if known."""
    found = find_runs(folders, required).items()
    return [_read(folder, summary, read_rounds(folder), (reported or {}).get(folder)) for folder, summary in found]


def gather_unfinished(folders: Sequence[Path]) -> tuple[list[Run], int]:
    """All unfinished runs, with their results so far, and the number of runs that cannot be shown."""
    specs = {file.parent: None for folder in folders for file in find_files(folder, SPEC)}
    begun = [folder for folder in specs if not is_there(folder / SUMMARY)]
    runs = []
    for folder in begun:
        try:
            spec = read_spec(folder)
        except BadInput:
            continue  # the method or model comes from a plugin or another version
        if spec is not None:
            records = read_rounds(folder)
            runs.append(replace(_read(folder, summarise_so_far(spec, records), records, None), finished=False))
    return runs, len(begun) - len(runs)


def summarise_so_far(spec: Spec, records: Sequence[RoundRecord]) -> Summary:
    """The summary of an unfinished run, from its records; ``stopped_early`` contains the rounds so far."""
    clients = {r.client: ClientInfo(r.client, r["kind"], r.get("model", ""), r.get("width", 1.0)) for r in records}
    played = min(spec.rounds, 1 + max((r.round for r in records), default=-1))
    about = describe_spec(spec) | {"stopped_early": {"rounds": played, "reason": ""}, "wall_seconds": 0.0}
    return parse_summary(summarise(spec.method, [clients[i] for i in sorted(clients)], records, about))


def describe_settings(runs: Sequence[Run]) -> list[str]:
    """For each run, the fields in which it differs from the others on its data.

    The fields of a method are compared only with the other runs of that method.
    """
    texts: list[list[str]] = [[] for _ in runs]
    for of_method in (False, True):
        peers: dict[tuple[str, str], list[int]] = {}
        for i, run in enumerate(runs):
            peers.setdefault((run.summary.data, run.summary.method if of_method else ""), []).append(i)
        for places in peers.values():
            tables = [_described(runs[i].fields, of_method) for i in places]
            for i, change in zip(places, name_changes(tables), strict=True):
                texts[i] += [change] if change else []
    return [", ".join(words) for words in texts]


def _described(fields: Fields, of_method: bool) -> Fields:
    return {k: v for k, v in fields.items() if k not in HIDDEN_FIELDS and k.startswith(METHOD) == of_method}


def _read(folder: Path, summary: Summary, records: Sequence[RoundRecord], reported: Mapping[str, float] | None) -> Run:
    file, fix = folder / SPEC, "restore it or name other folders"
    text = read_bytes(file, fix=fix).decode("utf-8", "replace") if is_there(file) else ""
    fields = read_fields(folder)
    try:
        columns = METHODS[summary.method].columns() if summary.method in METHODS else ()
        curves = trace(records, summary.point, summary.played, columns)
    except BadInput:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(f"{folder}: damaged run folder ({error}); remove it or name other folders") from None
    if unknown := curves.clients.keys() - {c.id for c in summary.clients}:
        raise BadInput(f"{folder}: client {min(unknown)} is in rounds.jsonl but not in summary.json; restore the files")
    place = None
    try:
        spec = read_spec(folder)
        place = find_cell(spec) if spec else None
    except BadInput:
        pass  # a user's own model, or a field of another version: not a cell of the paper
    cell = f"{place.experiment}: {place.cell.row}, {place.cell.title}; this run: {place.scale} scale" if place else ""
    found = reported if reported is not None else place.cell.reported if place else {}
    analysis = read_analysis(folder)
    course = read_course(folder) or (analysis.by_round if analysis else ())
    environment, costs = read_table(folder / ENV, "remove it or make it again") or {}, read_cost_table(folder / COSTS)
    return Run(
        folder,
        summary,
        text,
        fields,
        environment,
        curves,
        read_events(folder),
        analysis,
        course,
        costs,
        read_evaluation(folder),
        found,
        cell,
    )
