"""Run folders without training: real specifications and summaries of synthetic records."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asfedbridge.runs.fleet import parse_fleet
from asfedbridge.runs.folder import environment
from asfedbridge.runs.recipes import cpu
from asfedbridge.runs.records import summarise
from asfedbridge.runs.spec import Spec, apply_overrides
from asfedbridge.runs.toml import write_toml

MB = 2**20


def make_spec(method: str = "as-fedbridge", **changes: Any) -> Spec:
    return apply_overrides(cpu(method), {key.replace("__", "."): value for key, value in changes.items()})


def make_run(folder: Path, spec: Spec, level: float = 60.0, classes: int = 10) -> dict[str, Any]:
    """Writes the folder; returns the summary. Accuracies rise towards ``level``."""
    clients = parse_fleet(spec.fleet, spec.T)
    point = spec.method.reports
    records = []
    for index in range(spec.rounds + 1):
        closing = index == spec.rounds
        for c in clients:
            reach = level + 7 * math.sin(c.id + spec.seed) - (5 if c.kind == "snn" else 0)
            now = max(0.0, reach * (1 - 0.8 * math.exp(-6 * index / spec.rounds)) + math.sin(index * (c.id + 1)))
            record = {"round": index, "client": c.id, "kind": c.kind, "model": c.model, "width": c.width}
            record |= {"downlink_bytes": MB // 2, "uplink_bytes": 0 if closing else MB // 4, "received.accuracy": now}
            if spec.method.name == "as-fedbridge":
                record["received.bridge_accuracy"] = now / 2
            record |= {"seconds": 0.1 if closing else 6.0, "received.loss": 2 - now / 50}
            trained = {"trained.accuracy": now + 1, "trained.loss": 1.9 - now / 50, "local.ce": 1.8 - now / 50}
            records.append(record | ({} if closing else trained))
    about = {"method": spec.method.name, "data": spec.data, "seed": spec.seed, "rounds": spec.rounds}
    about |= {"partition": spec.partition, "alpha": spec.alpha, "bn_buffers": "local", "wall_seconds": 90.0}
    summary = summarise(spec.method, clients, records, about)
    for c in summary["clients"]:
        c["labels"] = [(c["id"] * 7 + k * 5) % 23 * ((c["id"] + k) % 3) for k in range(classes)]
    folder.mkdir(parents=True)
    (folder / "rounds.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "spec.toml").write_text(write_toml(spec))
    typed = {"command": ["/own/place/x", "run", "cpu", "seed=1"]}
    (folder / "env.json").write_text(json.dumps(environment(spec) | typed))
    assert summary["point"] == point
    return summary


def make_analysis(folder: Path, summary: dict[str, Any]) -> dict[str, Any]:
    """Writes the analysis of a run; returns its content."""
    analysis = analysis_content(summary["clients"])
    (folder / "analysis.json").write_text(json.dumps(analysis))
    return analysis


def analysis_content(described: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A synthetic analysis of the clients of a summary."""
    clients = [{key: c[key] for key in ("id", "kind", "model", "width", "T", "accuracy")} for c in described]

    def measure(low: float, high: float) -> dict[str, Any]:
        matrix: list[list[float | None]] = [
            [high if i == j else low + (high - low) * (0.8 if a["kind"] == b["kind"] else 0.3) for j, b in pairs]
            for pairs in [list(enumerate(clients))]
            for i, a in pairs
        ]
        matrix[0][-1] = matrix[-1][0] = None
        return {"matrix": matrix, "blocks": {"ann": {"mean": 0.8, "pairs": 10}, "cross": {"mean": 0.3, "pairs": 25}}}

    measures = {"cka": measure(0.0, 1.0), "mmd": measure(1.2, 0.0), "gradients": measure(-1.0, 1.0)}
    bars = {f"stage {n}": [0.7, 0.1, 0.1, 0.06, 0.04, 0.0] for n in range(1, 5)} | {"output": [1.0] + [0.0] * 5}
    levels = [0.0, 0.25, 0.5, 0.75, 1.0, None]
    rates = [{"client": 9, "T": 4, "images": 3, "levels": levels, "snn": bars, "bridge": bars}]
    by_round: list[dict[str, Any]] = [{"round": n, "accuracy": {}, "rates": [], **measures} for n in (1, 2)]
    about = {"format": 2, "method": "as-fedbridge", "data": "cifar10", "seed": 1, "rounds": 2, "specification": "00"}
    about |= {"data_fingerprint": "00", "point": "trained", "probe_images": 3, "reported": 50.0, "reproduced": True}
    return {**about, "clients": clients, **measures, "rates": rates, "by_round": by_round}
