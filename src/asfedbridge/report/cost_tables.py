"""The tables of `asfedbridge costs`, from its plain values."""

from typing import Any

from asfedbridge.experiments import paper
from asfedbridge.report.tables import Rows, decimals, render_text

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


def beside_paper(experiment: str, table: dict[str, Any]) -> Rows:
    """The paper's cost tables (`communication`, `computation`) with its values beside ours."""
    if experiment == "communication":
        names: tuple[str, ...] = ("payload MB", "ANN GFLOPs", "SNN GSOPs", "SNN + GFLOPs")
        reported: dict[str, tuple[float, ...]] = dict(paper.COMMUNICATION)
        ours = {name: _communication(table["methods"][name]) for name in reported}
    else:
        names = ("MFLOPs", "MBitOPs", "MSOPs")
        reported = dict(paper.COMPUTATION)
        keys = ("mflops", "mbitops", "msops")
        ours = {name: tuple(table["configurations"][name][key] for key in keys) for name in reported}
    rows = [["", *(word for name in names for word in (name, "paper"))]]
    for name, values in reported.items():
        rows.append([name, *(decimals(v) for pair in zip(ours[name], values, strict=True) for v in pair)])
    return rows


def _communication(entry: dict[str, Any]) -> tuple[float | None, ...]:
    ann, snn = (entry["training"][kind] for kind in ("ann", "snn"))
    return entry["table_mb"], ann["gflops"], snn["gsops"], snn["gflops"]
