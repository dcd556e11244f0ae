"""The tables of `asfedbridge costs`."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from asfedbridge.analysis import mean_of
from asfedbridge.paper import tables
from asfedbridge.paper.experiments import Cell, CostColumns, Experiment
from asfedbridge.paper.reproduce import job_of
from asfedbridge.report.tables import Rows, Titled, decimals, render_text
from asfedbridge.runs import Amounts, CostTable, MethodCost, RunCosts, paper_costs

OPERATIONS = {
    "mflops": "MFLOPs",
    "low_bit_mmacs": "low-bit MMACs",
    "mbitops": "MBitOPs",
    "msops": "MSOPs",
    "msops_by_rate": "MSOPs by rate",
    "dense_mflops": "dense MFLOPs",
    "energy_uj": "energy uJ",
}


def model_rows(table: CostTable) -> Rows:
    shown = _columns([m.operations for m in table.models])
    rows = [["model", "kind", "parameters", *(OPERATIONS[key] for key in shown)]]
    for m in table.models:
        kind = {"snn": f"snn T={m.T}", "qnn": f"qnn {m.bits} bit"}.get(m.kind, m.kind)
        amounts = [decimals(m.operations.get(key)) for key in shown]
        rows.append([f"{m.model}@{m.width:g}", kind, f"{m.parameters:,}", *amounts])
    bridge = table.bridge
    amounts = [decimals(bridge.mflops if key == "mflops" else 0.0) for key in shown if key != "energy_uj"]
    rows.append(["Bridge", "ann", f"{bridge.parameters:,}", *amounts, *["-"] * ("energy_uj" in shown)])
    return rows


def configuration_rows(table: CostTable) -> Rows:
    shown = _columns([entry.operations for entry in table.configurations.values()])
    rows = [["configuration", "Bridge", *(OPERATIONS[key] for key in shown)]]
    for name, entry in table.configurations.items():
        rows.append([name, "yes" if entry.bridge else "no", *(decimals(entry.operations.get(key)) for key in shown)])
    return rows


def method_rows(table: CostTable) -> Rows:
    kinds = list(dict.fromkeys(kind for entry in table.methods.values() for kind in entry.training))
    head = {kind: [f"{kind.upper()} GFLOPs"] for kind in kinds} | {"snn": ["SNN GSOPs", "+ GFLOPs", "dense GFLOPs"]}
    keys = {kind: ["gflops"] for kind in kinds} | {"snn": ["gsops", "gflops", "dense_gflops"]}
    rows = [["method", "up MB", "down MB", "table MB", *(word for kind in kinds for word in head[kind])]]
    for name, entry in table.methods.items():
        cells = [decimals(amount) for amount in (entry.up_mb, entry.down_mb, entry.table_mb)]
        for kind in kinds:
            cost = entry.training.get(kind, {})
            cells += [decimals(cost.get(key)) for key in keys[kind]]
        rows.append([name, *cells])
    return rows


def render_costs(table: CostTable) -> str:
    setting, size = table.setting, table.setting.image_size
    images = f"{setting.classes} classes, {setting.channels}x{size}x{size} images"
    parts = [
        f"{setting.fleet} ({images}, T={setting.T})",
        "One example forward through one model:\n\n" + render_text(model_rows(table)),
        "Mean over the clients of a configuration, with one Bridge pass where it is used:\n\n"
        + render_text(configuration_rows(table)),
        f"Largest payload of a round, and training of one example in a round of {setting.epochs} epochs:\n\n"
        + render_text(method_rows(table)),
    ]
    parts += [f"{name}: {entry.refused}" for name, entry in table.methods.items() if entry.refused]
    if any(m.operations.get("msops") is None for m in table.models):
        parts.append("SOPs need trained neurons: --run RUN_DIR counts spikes on the test images of a finished run.")
    return "\n\n".join(parts)


def _columns(entries: Sequence[Amounts]) -> list[str]:
    """Without those that say nothing here."""
    always = ("mflops", "mbitops", "msops")
    return [key for key in OPERATIONS if any(key in always or entry.get(key) for entry in entries)]


# Columns of the paper's cost tables, and where our values are; the last has no counterpart in the paper.
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
    """Costs of the paper's own setting, then of the runs, column by column; the paper's values beside.

    ``known`` has the costs of a run by its folder, or why there are none.
    """
    assert experiment.costs is not None
    tables = []
    if experiment.name == experiment.costs:
        tables.append(Titled("The paper's setting, counted without training", _counted(experiment.costs)))
    for column in dict.fromkeys(cell.column for cell in cells):
        rows = [_head(experiment.costs)]
        for cell in (c for c in cells if c.column == column):
            folders = {seed: job_of(cell, seed, out).folder for seed in seeds}
            found = {seed: known.get(folder, "no finished run") for seed, folder in folders.items()}
            rows.append(_cost_row(experiment.costs, cell.row, found, cell.costs))
        tables.append(Titled(f"{column}: costs of one example, measured on the trained clients of these runs", rows))
    return tables


def _head(table: CostColumns) -> list[str]:
    *compared, ours = COLUMNS[table]
    return ["", *(word for name in compared for word in (name, "paper")), ours, "n", "note"]


def _cost_row(
    table: CostColumns, name: str, found: Mapping[int, RunCosts | str], reported: Sequence[float]
) -> list[str]:
    """Means over seeds; the note says why there is no value, or why a seed is not in the mean."""
    runs = [run for run in found.values() if not isinstance(run, str)]
    notes = [f"seed {seed}: {why}" for seed, why in found.items() if isinstance(why, str)]
    cells = [_amount(mean_of([of(run) for run in runs]) if runs else None) for of in COLUMNS[table].values()]
    if runs and "-" in cells:
        notes.append("the fleet lacks a kind, or its SNN clients have no test images to count spikes on")
    theirs = [decimals(value) for value in reported] or ["-"] * len(cells[:-1])  # a method of the user's own has none
    pairs = [word for pair in zip(cells[:-1], theirs, strict=True) for word in pair]
    return [name, *pairs, cells[-1], str(len(runs)), "; ".join(notes)]


def _amount(value: float | None) -> str:
    """With two decimals, or three digits of a small network's small numbers."""
    return f"{value:.3g}" if value is not None and 0 < value < 1 else decimals(value)


def _counted(table: CostColumns) -> Rows:
    """By shapes alone."""
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
