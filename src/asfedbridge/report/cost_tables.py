"""The tables of `asfedbridge costs`, from its plain values."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asfedbridge.analysis import mean_of
from asfedbridge.paper import tables
from asfedbridge.paper.experiments import Cell, CostTable, Experiment
from asfedbridge.paper.reproduce import job_of
from asfedbridge.report.tables import Rows, Titled, decimals, render_text
from asfedbridge.runs import paper_costs

OPERATIONS = {
    "mflops": "MFLOPs",
    "low_bit_mmacs": "low-bit MMACs",
    "mbitops": "MBitOPs",
    "msops": "MSOPs",
    "msops_by_rate": "MSOPs by rate",
    "dense_mflops": "dense MFLOPs",
    "energy_uj": "energy uJ",
}


def model_rows(table: dict[str, Any]) -> Rows:
    shown = _columns(table["models"])
    rows = [["model", "kind", "parameters", *(OPERATIONS[key] for key in shown)]]
    for m in table["models"]:
        kind = {"snn": f"snn T={m['T']}", "qnn": f"qnn {m['bits']} bit"}.get(m["kind"], m["kind"])
        rows.append(
            [f"{m['model']}@{m['width']:g}", kind, f"{m['parameters']:,}", *(decimals(m[key]) for key in shown)]
        )
    bridge = table["bridge"]
    operations = [decimals(bridge["mflops"] if key == "mflops" else 0.0) for key in shown if key != "energy_uj"]
    rows.append(["Bridge", "ann", f"{bridge['parameters']:,}", *operations, *["-"] * ("energy_uj" in shown)])
    return rows


def configuration_rows(table: dict[str, Any]) -> Rows:
    shown = _columns(list(table["configurations"].values()))
    rows = [["configuration", "Bridge", *(OPERATIONS[key] for key in shown)]]
    for name, entry in table["configurations"].items():
        rows.append([name, "yes" if entry["bridge"] else "no", *(decimals(entry[key]) for key in shown)])
    return rows


def method_rows(table: dict[str, Any]) -> Rows:
    kinds = list(dict.fromkeys(kind for entry in table["methods"].values() for kind in entry.get("training", {})))
    head = {kind: [f"{kind.upper()} GFLOPs"] for kind in kinds} | {"snn": ["SNN GSOPs", "+ GFLOPs", "dense GFLOPs"]}
    keys = {kind: ["gflops"] for kind in kinds} | {"snn": ["gsops", "gflops", "dense_gflops"]}
    rows = [["method", "up MB", "down MB", "table MB", *(word for kind in kinds for word in head[kind])]]
    for name, entry in table["methods"].items():
        cells = [decimals(entry.get(key)) for key in ("up_mb", "down_mb", "table_mb")]
        for kind in kinds:
            cost = entry.get("training", {}).get(kind, {})
            cells += [decimals(cost.get(key)) for key in keys[kind]]
        rows.append([name, *cells])
    return rows


def render_costs(table: dict[str, Any]) -> str:
    setting = table["setting"]
    size = setting["image_size"]
    images = f"{setting['classes']} classes, {setting['channels']}x{size}x{size} images"
    parts = [
        f"{setting['fleet']} ({images}, T={setting['T']})",
        "One example forward through one model:\n\n" + render_text(model_rows(table)),
        "Mean over the clients of a configuration, with one Bridge pass where it is used:\n\n"
        + render_text(configuration_rows(table)),
        f"Largest payload of a round, and training of one example in a round of {setting['epochs']} epochs:\n\n"
        + render_text(method_rows(table)),
    ]
    parts += [f"{name}: {entry['refused']}" for name, entry in table["methods"].items() if "refused" in entry]
    if any(m["msops"] is None for m in table["models"]):
        parts.append("SOPs need trained neurons: --run RUN_DIR counts spikes on the test images of a finished run.")
    return "\n\n".join(parts)


def _columns(entries: list[dict[str, Any]]) -> list[str]:
    """Without those that say nothing here."""
    always = ("mflops", "mbitops", "msops")
    return [key for key in OPERATIONS if any(key in always or entry.get(key) for entry in entries)]


# Columns of the paper's cost tables, and where our values are; the last has no counterpart in the paper.
COLUMNS: Mapping[CostTable, Mapping[str, tuple[str, ...]]] = {
    "computation": {
        "MFLOPs": ("forward", "mflops"),
        "MBitOPs": ("forward", "mbitops"),
        "MSOPs": ("forward", "msops_by_rate"),
        "SNN dense MFLOPs": ("forward", "dense_mflops"),
    },
    "communication": {
        "payload MB": ("table_mb",),
        "ANN GFLOPs": ("training", "ann", "gflops"),
        "SNN GSOPs": ("training", "snn", "gsops_by_rate"),
        "SNN + GFLOPs": ("training", "snn", "gflops"),
        "SNN dense GFLOPs": ("training", "snn", "dense_gflops"),
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
    known: Mapping[Path, Mapping[str, Any] | str],
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


def _head(table: CostTable) -> list[str]:
    *compared, ours = COLUMNS[table]
    return ["", *(word for name in compared for word in (name, "paper")), ours, "n", "note"]


def _cost_row(
    table: CostTable, name: str, found: Mapping[int, Mapping[str, Any] | str], reported: Sequence[float]
) -> list[str]:
    """Means over seeds; the note says why there is no value, or why a seed is not in the mean."""
    runs = [run for run in found.values() if not isinstance(run, str)]
    notes = [f"seed {seed}: {why}" for seed, why in found.items() if isinstance(why, str)]
    cells = [_amount(mean_of([_value(run, way) for run in runs]) if runs else None) for way in COLUMNS[table].values()]
    if runs and "-" in cells:
        notes.append("the fleet lacks a kind, or its SNN clients have no test images to count spikes on")
    theirs = [decimals(value) for value in reported] or ["-"] * len(cells[:-1])  # a method of the user's own has none
    pairs = [word for pair in zip(cells[:-1], theirs, strict=True) for word in pair]
    return [name, *pairs, cells[-1], str(len(runs)), "; ".join(notes)]


def _amount(value: float | None) -> str:
    """With two decimals, or three digits of a small network's small numbers."""
    return f"{value:.3g}" if value is not None and 0 < value < 1 else decimals(value)


def _value(run: Mapping[str, Any], way: Sequence[str]) -> float | None:
    value: Any = run
    for key in way:
        value = value.get(key) if value is not None else None  # a fleet may lack a kind
    return None if value is None else float(value)


def _counted(table: CostTable) -> Rows:
    """By shapes alone."""
    costs, rows = paper_costs(), [_head(table)]
    if table == "communication":
        reported: Mapping[str, Sequence[float]] = tables.COMMUNICATION
        found = {name: costs["methods"][name] for name in reported}
    else:
        reported = tables.COMPUTATION
        found = {name: {"forward": costs["configurations"][name]} for name in reported}
    for name, values in reported.items():
        *cells, _, note = _cost_row(table, name, {0: found[name]}, values)
        rows.append([*cells, "0", UNTRAINED[table] if note else ""])
    return rows
