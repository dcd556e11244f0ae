"""What analyses add to the table of an experiment: block means, their course over rounds, histograms of rates."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asfedbridge.analysis.pairs import correlate
from asfedbridge.experiments.catalogue import Cell, Experiment
from asfedbridge.experiments.reproduce import job_of
from asfedbridge.report.tables import Rows, Titled, decimals

Analyses = Mapping[Path, Mapping[str, Any]]  # analysis.json by run folder
MEASURES = ("cka", "mmd", "gradients")


def measure_tables(
    experiment: Experiment, cells: Sequence[Cell], seeds: Sequence[int], out: Path, known: Analyses
) -> list[Titled]:
    """What the experiment's analysis asks for, column by column."""
    tables = []
    for column in dict.fromkeys(cell.column for cell in cells):
        runs = {
            cell.row: [known[job.folder] for seed in seeds if (job := job_of(cell, seed, out)).folder in known]
            for cell in cells
            if cell.column == column
        }
        runs = {row: found for row, found in runs.items() if found}
        if not runs:
            continue
        if experiment.analysis == "by_round":
            tables.append(Titled(f"{column}, round by round", _course(runs)))
        elif experiment.analysis == "rates":
            tables += [
                Titled(f"{column}, {row}: shares of firing rates", _histograms(found)) for row, found in runs.items()
            ]
        else:
            tables.append(Titled(f"{column}, {experiment.analysis}", _blocks(runs, experiment.analysis)))
    return tables


def _blocks(runs: Mapping[str, Sequence[Mapping[str, Any]]], measure: str) -> Rows:
    """Means over pairs within a kind and across, with the accuracy they go with; the last row correlates them."""
    names = list(dict.fromkeys(name for found in runs.values() for run in found for name in run[measure]["blocks"]))
    rows = [["", "accuracy", *(f"{_title(name)} pairs" for name in names), "n"]]
    means: dict[str, list[float | None]] = {name: [] for name in ["accuracy", *names]}
    for row, found in runs.items():
        values = {"accuracy": _mean([run["reported"] for run in found])}
        values |= {n: _mean([run[measure]["blocks"].get(n, {}).get("mean") for run in found]) for n in names}
        for name, value in values.items():
            means[name].append(value)
        cells = [decimals(values["accuracy"], 2), *(decimals(values[n], 4) for n in names)]
        rows.append([row, *cells, str(len(found))])
    with_accuracy = [correlate(means[name], means["accuracy"]).r for name in names]
    rows.append(["r with accuracy", "-", *(decimals(r, 2) for r in with_accuracy), str(len(runs))])
    return rows


def _course(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> Rows:
    """A line for every snapshot of every row; seeds are averaged."""
    rows = [["", "round", "accuracy", *(f"{measure} {block}" for measure in MEASURES for block in ("alike", "cross"))]]
    for row, found in runs.items():
        for entries in zip(*(run["by_round"] for run in found), strict=False):
            accuracy = _mean([entry["accuracy"]["received"].get("all") for entry in entries])
            cells = [decimals(accuracy, 2)]
            for measure in MEASURES:
                for cross in (False, True):
                    values = [_block(entry[measure]["blocks"], cross) for entry in entries]
                    cells.append(decimals(_mean(values), 4))
            rows.append([row, str(entries[0]["round"]), *cells])
    return rows


def _block(blocks: Mapping[str, Mapping[str, Any]], cross: bool) -> float | None:
    """The mean over pairs of different kinds, or over all pairs of one kind."""
    chosen = [b for name, b in blocks.items() if (name == "cross") == cross and b["mean"] is not None and b["pairs"]]
    pairs = sum(b["pairs"] for b in chosen)
    return sum(b["mean"] * b["pairs"] for b in chosen) / pairs if pairs else None


def _histograms(found: Sequence[Mapping[str, Any]]) -> Rows:
    """Means over SNN clients and runs: every place of the SNN, and the Bridge's port beside it."""
    clients = [client for run in found for client in run["rates"]]
    levels = [f"{level:g}" if level is not None else "other" for level in clients[0]["levels"]] if clients else []
    rows = [["", "whose", *levels]]
    for place in clients[0]["snn"] if clients else ():
        for whose in ("bridge", "snn"):
            shares = [client[whose][place] for client in clients if place in client.get(whose, {})]
            if shares:
                means = [statistics.fmean(column) for column in zip(*shares, strict=True)]
                rows.append([place, whose, *(f"{mean:.3f}" for mean in means)])
    return rows


def _title(block: str) -> str:
    return block if block == "cross" else block.upper()


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return statistics.fmean(known) if known else None
