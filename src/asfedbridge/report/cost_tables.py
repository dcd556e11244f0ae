"""The tables of `asfedbridge costs`."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from asfedbridge.analysis import mean_of
from asfedbridge.core import printable
from asfedbridge.paper import tables
from asfedbridge.paper.grid import Cell, CostColumns, Experiment
from asfedbridge.paper.reproduce import job_of
from asfedbridge.report.tables import Rows, Titled, decimals, render_text
from asfedbridge.runs import Amounts, ClientSummary, CostTable, MethodCost, RunCosts, paper_costs

OPERATIONS = {
    "mflops": "MFLOPs",
    "low_bit_mmacs": "low-bit MMACs",
    "mbitops": "MBitOPs",
    "msops": "MSOPs",
    "msops_by_rate": "MSOPs by rate",
    "dense_mflops": "dense MFLOPs",
    "energy_uj": "energy uJ",
}
SMALLER = {"G": ("M", 1e3), "M": ("k", 1e3), "u": ("n", 1e3), "MB": ("KB", 1024.0)}  # the next unit and its factor
UNIT = re.compile(r"\b(MB|[GMu](?=[A-Z]))")  # in the title of a column


class Column(NamedTuple):
    """Amounts of one unit, which is part of the title."""

    title: str
    amounts: Sequence[float | None]


def model_rows(table: CostTable) -> Rows:
    shown = _columns([m.operations for m in table.models])
    kinds = [{"snn": f"snn T={m.T}", "qnn": f"qnn {m.bits} bit"}.get(m.kind, m.kind) for m in table.models]
    rows = [["model", "kind", "parameters"]]
    rows += [[f"{m.model}@{m.width:g}", k, f"{m.parameters:,}"] for m, k in zip(table.models, kinds, strict=True)]
    rows.append(["Bridge", "ann", f"{table.bridge.parameters:,}"])
    of_bridge = {"mflops": table.bridge.mflops, "energy_uj": None}
    columns = [
        Column(OPERATIONS[key], [*(m.operations.get(key) for m in table.models), of_bridge.get(key, 0.0)])
        for key in shown
    ]
    return _append(rows, columns)


def configuration_rows(table: CostTable) -> Rows:
    entries = table.configurations
    rows = [["configuration", "Bridge"], *([name, "yes" if e.bridge else "no"] for name, e in entries.items())]
    shown = _columns([entry.operations for entry in entries.values()])
    return _append(rows, [Column(OPERATIONS[k], [e.operations.get(k) for e in entries.values()]) for k in shown])


def method_rows(table: CostTable) -> Rows:
    entries = list(table.methods.values())
    columns = [
        Column("up MB", [entry.up_mb for entry in entries]),
        Column("down MB", [entry.down_mb for entry in entries]),
        Column("table MB", [entry.table_mb for entry in entries]),
    ]
    for kind in dict.fromkeys(kind for entry in entries for kind in entry.training):
        titles = {"gflops": f"{kind.upper()} GFLOPs"}
        if kind == "snn":
            titles = {"gsops": "SNN GSOPs", "gflops": "+ GFLOPs", "dense_gflops": "dense GFLOPs"}
        for key, title in titles.items():
            columns.append(Column(title, [entry.training.get(kind, {}).get(key) for entry in entries]))
    return _append([["method"], *([name] for name in table.methods)], columns)


def of_clients(table: CostTable, clients: Iterable[ClientSummary]) -> CostTable:
    """The table with only the models of these clients, without the paper's controls."""
    shapes = {(c.model, c.width, c.kind, c.T, c.bits) for c in clients}
    models = tuple(m for m in table.models if (m.model, m.width, m.kind, m.T, m.bits) in shapes)
    return replace(table, models=models)


def _append(rows: Rows, columns: Sequence[Column]) -> Rows:
    """Rows with columns added, each in a unit in which its largest amount is at least 1 where there is one."""
    for title, amounts in columns:
        known = [abs(amount) for amount in amounts if amount is not None]
        factor = 1.0
        while (found := UNIT.search(title)) and found[0] in SMALLER and 0 < max(known, default=0.0) * factor < 1:
            smaller, more = SMALLER[found[0]]
            title, factor = f"{title[: found.start()]}{smaller}{title[found.end() :]}", factor * more
        cells = [title, *(decimals(None if amount is None else amount * factor) for amount in amounts)]
        rows = [[*row, cell] for row, cell in zip(rows, cells, strict=True)]
    return rows


def render_costs(table: CostTable) -> str:
    setting, size = table.setting, table.setting.image_size
    images = f"{setting.classes} classes, {setting.channels}x{size}x{size} images"
    parts = [
        f"{printable(setting.fleet)} ({images}, T={setting.T})",
        "One example forward through one model:\n\n" + render_text(model_rows(table)),
        "Mean over the clients of a configuration, with one Bridge pass where it is used:\n\n"
        + render_text(configuration_rows(table)),
        f"Largest payload of a round, and training of one example in a round of {setting.epochs} epochs:\n\n"
        + render_text(method_rows(table)),
    ]
    parts += [printable(f"{name}: {entry.refused}") for name, entry in table.methods.items() if entry.refused]
    if any(m.operations.get("msops") is None for m in table.models):
        parts.append("SOPs need trained neurons: --run RUN_DIR counts spikes on the test images of a finished run.")
    return "\n\n".join(parts)


def _columns(entries: Sequence[Amounts]) -> list[str]:
    """The keys to show: FLOPs, SOPs, and those with an amount other than zero: BitOPs only with low-bit networks."""
    always = ("mflops", "msops")
    return [key for key in OPERATIONS if any(key in always or entry.get(key) for entry in entries)]


# Columns of the paper's cost tables and our values for them; the last column is not in the paper.
COLUMNS: Mapping[CostColumns, Mapping[str, Callable[[RunCosts], float | None]]] = {
    "computation": {
        "MFLOPs": lambda run: run.forward.get("mflops"),
        "MBitOPs": lambda run: run.forward.get("mbitops"),
        "MSOPs": lambda run: run.forward.get("msops_by_rate"),
        "SNN dense MFLOPs": lambda run: run.forward.get("dense_mflops"),
    },
    "communication": {
        "payload MB": lambda run: run.method.table_mb,
        "ANN GFLOPs": lambda run: run.method.training.get("ann", {}).get("gflops"),
        "SNN GSOPs": lambda run: run.method.training.get("snn", {}).get("gsops_by_rate"),
        "SNN + GFLOPs": lambda run: run.method.training.get("snn", {}).get("gflops"),
        "SNN dense GFLOPs": lambda run: run.method.training.get("snn", {}).get("dense_gflops"),
    },
}
UNTRAINED = {
    "computation": "SOPs need trained neurons: asfedbridge reproduce lowbit",
    "communication": "SOPs need trained neurons: see the runs",
}


def experiment_costs(
    experiment: Experiment,
    cells: Sequence[Cell],
    seeds: Sequence[int],
    out: Path,
    known: Mapping[Path, RunCosts | str],
) -> list[Titled]:
    """Costs of the paper's setting, then of the runs of each column, beside the paper's values.

    Smoke runs have no values of the paper beside them, and then its setting is left out too.
    ``known`` maps a run folder to its costs, or to the reason why there are none.
    """
    assert experiment.costs is not None
    tables = []
    beside = not cells or any(cell.costs for cell in cells)
    if experiment.name == experiment.costs and beside:
        tables.append(Titled("The paper's setting, counted without training", _counted(experiment.costs)))
    for column, title in {cell.column: cell.title for cell in cells}.items():
        rows = [_head(experiment.costs, beside)]
        for cell in (c for c in cells if c.column == column):
            folders = {seed: job_of(cell, seed, out).folder for seed in seeds}
            found = {seed: known.get(folder, "no finished run") for seed, folder in folders.items()}
            rows.append(_cost_row(experiment.costs, cell.row, found, cell.costs if beside else None))
        tables.append(Titled(f"{title}: costs of one example, measured on the trained clients of these runs", rows))
    return tables


def _head(table: CostColumns, beside: bool = True) -> list[str]:
    """``beside``: each column is followed by one with the paper's values."""
    *compared, ours = COLUMNS[table]
    return ["", *(word for name in compared for word in (name, "paper")[: 1 + beside]), ours, "n", "note"]


def _cost_row(
    table: CostColumns, name: str, found: Mapping[int, RunCosts | str], reported: Sequence[float] | None
) -> list[str]:
    """Means over seeds; the note says why a value or a seed is missing. ``reported``: None for a table without them."""
    runs = [run for run in found.values() if not isinstance(run, str)]
    notes = [f"seed {seed}: {why}" for seed, why in found.items() if isinstance(why, str)]
    cells = [_amount(mean_of([of(run) for run in runs]) if runs else None) for of in COLUMNS[table].values()]
    if runs and "-" in cells:
        notes.append("the fleet lacks a kind, or its SNN clients have no test images to count spikes on")
    if reported is None:
        return [name, *cells, str(len(runs)), "; ".join(notes)]
    theirs = [decimals(value) for value in reported] or ["-"] * len(cells[:-1])  # none for a user's own method
    pairs = [word for pair in zip(cells[:-1], theirs, strict=True) for word in pair]
    return [name, *pairs, cells[-1], str(len(runs)), "; ".join(notes)]


def _amount(value: float | None) -> str:
    """Two decimals; three significant digits below 1, as for small networks."""
    return f"{value:.3g}" if value is not None and 0 < value < 1 else decimals(value)


def _counted(table: CostColumns) -> Rows:
    """Costs that follow from layer shapes, without trained networks."""
    costs, rows = paper_costs(), [_head(table)]
    if table == "communication":
        reported: Mapping[str, Sequence[float]] = tables.COMMUNICATION
        found = {name: RunCosts({}, costs.methods[name], {}) for name in reported}
    else:
        reported = tables.COMPUTATION
        found = {name: RunCosts(costs.configurations[name].operations, MethodCost(), {}) for name in reported}
    for name, values in reported.items():
        *cells, _, note = _cost_row(table, name, {0: found[name]}, values)
        rows.append([*cells, "0", UNTRAINED[table] if note else ""])
    return rows
