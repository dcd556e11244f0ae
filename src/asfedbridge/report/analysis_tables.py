"""Tables that analyses add to an experiment: block means, the same by round, and histograms of firing rates."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from asfedbridge.analysis import CROSS, correlate
from asfedbridge.core import Point
from asfedbridge.paper.grid import Cell, Experiment
from asfedbridge.paper.reproduce import job_of
from asfedbridge.report.analyses import HEADS
from asfedbridge.report.tables import Rows, Titled, decimals
from asfedbridge.runs import Analysis, ClientRates, RoundAnalysis

POINTS: tuple[Point, ...] = ("received", "trained")
T = TypeVar("T")


def measure_tables(
    experiment: Experiment,
    cells: Sequence[Cell],
    seeds: Sequence[int],
    out: Path,
    known: Mapping[Path, Analysis],
    client: int | None = None,
) -> list[Titled]:
    """The tables for ``experiment.analysis``, column by column.

    ``client``: the client whose firing rates are shown beside the mean.
    """
    tables = []
    for column, runs in _by_column(cells, seeds, out, known).items():
        if experiment.analysis != "rates":
            tables.append(Titled(f"{column}, {experiment.analysis}", _blocks(runs, experiment.analysis)))
            continue
        for row, found in runs.items():
            every = [entry for run in found for entry in run.rates]
            own = [entry for entry in every if entry.client == client]
            for whose, entries in (("mean over SNN clients", every), (f"client {client}", own)):
                if entries:
                    title = f"{column}, {row}: shares of firing rates, {whose}"
                    tables.append(Titled(title, _histograms(entries)))
    return tables


def course_tables(
    cells: Sequence[Cell], seeds: Sequence[int], out: Path, known: Mapping[Path, Sequence[RoundAnalysis]]
) -> list[Titled]:
    """One table of diagnosed rounds for each column."""
    courses = _by_column(cells, seeds, out, known)
    return [Titled(f"{column}, round by round", _course(runs)) for column, runs in courses.items()]


def _by_column(
    cells: Sequence[Cell], seeds: Sequence[int], out: Path, known: Mapping[Path, T]
) -> dict[str, dict[str, list[T]]]:
    """The entries of ``known`` by column and row; runs without an entry are left out."""
    found: dict[str, dict[str, list[T]]] = {}
    for cell in cells:
        for seed in seeds:
            folder = job_of(cell, seed, out).folder
            if folder in known:
                found.setdefault(cell.title, {}).setdefault(cell.row, []).append(known[folder])
    return found


def _blocks(runs: Mapping[str, Sequence[Analysis]], measure: str) -> Rows:
    """Block means and accuracy of each row; the last row correlates them over rows."""
    names = list(dict.fromkeys(n for found in runs.values() for run in found for n in run.measures[measure].blocks))
    rows = [["", "accuracy", "point", *(f"{_title(name)} pairs" for name in names), "n"]]
    means: dict[str, list[float | None]] = {name: [] for name in ["accuracy", *names]}
    for row, found in runs.items():
        values = {"accuracy": _mean([run.reported for run in found])}
        values |= {name: _mean([run.measures[measure].mean(name) for run in found]) for name in names}
        for name, value in values.items():
            means[name].append(value)
        cells = [decimals(values["accuracy"], 2), found[0].point, *(decimals(values[n], 4) for n in names)]
        rows.append([row, *cells, str(len(found))])
    with_accuracy = [correlate(means[name], means["accuracy"]).r for name in names]
    rows.append(["r with accuracy", "-", "-", *(decimals(r, 2) for r in with_accuracy), str(len(runs))])
    return rows


def _course(runs: Mapping[str, Sequence[Sequence[RoundAnalysis]]]) -> Rows:
    """One line for each row and diagnosed round, averaged over seeds.

    ``trained`` is the accuracy of the compared clients, ``accuracy`` that of their aggregate.
    """
    names = {n for found in runs.values() for run in found for entry in run for n in entry.measures["cka"].blocks}
    blocks = sorted(names, key=lambda name: (name == CROSS, name))
    rows = [["", "round", "accuracy", "trained", *(f"{HEADS[m]} {_title(b)}" for m in HEADS for b in blocks)]]
    for row, found in runs.items():
        for entries in zip(*found, strict=True):
            cells = [decimals(_mean([e.accuracy.get(p, {}).get("all") for e in entries]), 2) for p in POINTS]
            for measure in HEADS:
                for block in blocks:
                    cells.append(decimals(_mean([entry.measures[measure].mean(block) for entry in entries]), 4))
            rows.append([row, str(entries[0].round), *cells])
    return rows


def _histograms(clients: Sequence[ClientRates]) -> Rows:
    """Mean shares over SNN clients of one or more runs, for each stage of the SNN and the Bridge's port beside it."""
    levels = [f"{level:g}" if level is not None else "other" for level in clients[0].levels]
    rows = [["", "whose", *levels]]
    for place in clients[0].shares["snn"]:
        for whose in ("bridge", "snn"):
            shares = [found[place] for client in clients if place in (found := client.shares.get(whose, {}))]
            if shares:
                means = [statistics.fmean(column) for column in zip(*shares, strict=True)]
                rows.append([place, whose, *(f"{mean:.3f}" for mean in means)])
    return rows


def _title(block: str) -> str:
    return block if block == CROSS else block.upper()


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return statistics.fmean(known) if known else None
