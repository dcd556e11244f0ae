"""What a report knows of a run: all that its folder holds, ready to be shown."""

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asfedbridge.core import METHODS, BadInput
from asfedbridge.paper.lookup import find_cell
from asfedbridge.report.curves import Curves, trace
from asfedbridge.report.settings import METHOD, Fields, flatten, name_changes
from asfedbridge.report.tables import find_runs, name_data, name_split
from asfedbridge.runs import (
    ENV,
    SPEC,
    SUMMARY,
    Analysis,
    CostTable,
    RoundAnalysis,
    Summary,
    quickstart,
    read_analysis,
    read_cost_table,
    read_course,
    read_rounds,
    read_spec,
)

COSTS = "costs.json"  # asfedbridge costs --run DIR --json > DIR/costs.json
Table = dict[str, Any]
# Not part of what a run is, or in a column of its own.
ASIDE = (
    *("seed", "data", "partition", "alpha", "holdout", "method.name"),
    *("checkpoint_every", "snapshot_every", "diagnose_every"),
)


@dataclass(frozen=True)
class Run:
    folder: Path
    summary: Summary
    specification: str  # as TOML
    fields: Fields  # of the specification
    environment: Table
    curves: Curves
    analysis: Analysis | None
    course: Sequence[RoundAnalysis]  # diagnosed rounds, else snapshots that were analysed
    costs: CostTable | None
    reported: Mapping[str, float]  # by the paper, for this cell
    cell: str  # its place in the paper's tables

    @property
    def split(self) -> str:
        return name_split(self.summary)

    @property
    def data(self) -> str:
        return name_data(self.summary)


def gather(folders: Sequence[Path], reported: Mapping[Path, Mapping[str, float]] | None = None) -> list[Run]:
    """Every finished run in these folders and below. ``reported``: the paper's values, where a caller knows them."""
    return [_read(folder, summary, (reported or {}).get(folder)) for folder, summary in find_runs(folders).items()]


def count_unfinished(folders: Sequence[Path]) -> int:
    specs = {file.parent for folder in folders for file in folder.rglob(SPEC)}
    return sum(not (folder / SUMMARY).exists() for folder in specs)


def describe_settings(runs: Sequence[Run]) -> list[str]:
    """For each run, what sets it apart from the others on its data; a method's fields from its other runs there."""
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
    return {k: v for k, v in fields.items() if k not in ASIDE and k.startswith(METHOD) == of_method}


def _read(folder: Path, summary: Summary, reported: Mapping[str, float] | None) -> Run:
    file = folder / SPEC
    text = file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
    try:
        fields = flatten(tomllib.loads(text))
        columns = METHODS[summary.method].columns() if summary.method in METHODS else ()
        curves = trace(read_rounds(folder), summary.point, summary.played, columns)
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as error:
        raise BadInput(f"{folder}: is not as a run leaves it ({error}); remove it or name other folders") from None
    if unknown := curves.clients.keys() - {c.id for c in summary.clients}:
        raise BadInput(f"{folder}: rounds.jsonl has client {min(unknown)}, summary.json has not; restore the files")
    place = None
    try:
        spec = read_spec(folder, quickstart())
        place = find_cell(spec) if spec else None
    except BadInput:
        pass  # a model of somebody's own, or a field of another version: no cell of the paper
    cell = f"{place.experiment}: {place.cell.row}, {place.cell.column}; this run: {place.scale} scale" if place else ""
    found = reported if reported is not None else place.cell.reported if place else {}
    analysis = read_analysis(folder)
    course = read_course(folder) or (analysis.by_round if analysis else ())
    environment, costs = _read_json(folder / ENV) or {}, read_cost_table(folder / COSTS)
    return Run(folder, summary, text, fields, environment, curves, analysis, course, costs, found, cell)


def _read_json(file: Path) -> Table | None:
    try:
        return dict(json.loads(file.read_bytes())) if file.exists() else None
    except (ValueError, TypeError):
        raise BadInput(f"{file}: is not a JSON object; remove it or make it again") from None
