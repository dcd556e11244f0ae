"""The model card of an export: network, training, accuracy, cost and limitations."""

import statistics
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from asfedbridge.analysis.classification import judge
from asfedbridge.analysis.costs import AC_PJ, MAC8_PJ, MAC_PJ, Operations, forward_cost
from asfedbridge.core.errors import BadInput
from asfedbridge.core.task import ClientInfo, Task
from asfedbridge.export.energy import energy_with_memory
from asfedbridge.export.loader import Program
from asfedbridge.export.neurobench import equal_qnn, measure

FORMAT = 1
BATCH = 64
MEASURED, TIMED = 64, 10  # images for operations; single images for latency
ENERGY = (
    f"45 nm, 0.9 V (Horowitz, ISSCC 2014): {MAC_PJ} pJ per MAC, {AC_PJ} pJ per addition, {MAC8_PJ} pJ per 8-bit MAC"
)


def make_card(
    program: Program,
    info: ClientInfo,
    task: Task,
    facts: Mapping[str, Any],
    images: Tensor | None,
    labels: Tensor | None,
) -> dict[str, Any]:
    """``facts``: the caller's entries ``client``, ``input``, ``training``, ``classes`` and ``limits``."""
    card: dict[str, Any] = {"card": FORMAT, **facts}
    running = program.unpacked()
    if images is not None and labels is not None and len(images):
        card["measured"] = _quality(running, images, labels, facts["classes"])
    some = images[:MEASURED] if images is not None and len(images) else None
    card["cost"] = _cost(running, program, info, task, some)
    return card


@torch.no_grad()
def _quality(running: Program, images: Tensor, labels: Tensor, classes: list[str]) -> dict[str, Any]:
    found = judge(torch.cat([running(batch) for batch in images.split(BATCH)]), labels)
    shares = dict(zip(classes, found.per_class, strict=True))
    return {"images": len(images), "accuracy": found.accuracy, "per_class": shares, "ece": found.ece}


def _cost(running: Program, program: Program, info: ClientInfo, task: Task, images: Tensor | None) -> dict[str, Any]:
    """The cost of one image. None: unknown without images, or no energy constant is known."""
    sops, rate, latency, metrics, memory = None, None, None, None, None
    if images is not None:
        metrics, sops, rate = measure(program, images)
        latency = _time(running, images)
        if info.kind in ("ann", "snn"):  # its words have 32 bits
            memory = energy_with_memory(program, images)
    try:
        operations = forward_cost(task, info) if info.model != "bridge" else None
    except BadInput:  # a user's model that cannot be run symbolically
        operations = None
    cost: dict[str, Any] = {"energy_constants": ENERGY, "latency_ms": latency, "neurobench": metrics}
    if operations is not None:
        cost |= _operations(replace(operations, sops=sops) if info.kind == "snn" else operations)
    cost["energy_with_memory_uj"] = memory
    if info.kind == "snn":
        cost["equal_qnn"] = {**equal_qnn(info.T), "rate": rate}
    return cost


def _operations(found: Operations) -> dict[str, Any]:
    energy = found.energy
    return {
        "flops": found.flops + found.dense_flops,
        "sops": found.sops,
        "low_bit_macs": found.low_bit_macs,
        "bitops": found.bitops,
        "energy_uj": None if energy is None else energy / 1e6,
    }


@torch.no_grad()
def _time(running: Program, images: Tensor) -> float:
    """Median milliseconds for one image."""
    taken = []
    for image in images[:TIMED].split(1):
        begin = time.perf_counter()
        running(image)
        taken.append(1000 * (time.perf_counter() - begin))
    return statistics.median(taken)


def render_card(card: Mapping[str, Any]) -> str:
    """The card as Markdown."""
    lines = [f"# {card['file']['name']}", "", f"{card['client']['label']}, exported as {card['file']['format']}.", ""]
    for title, key in (("What it is", "client"), ("Input and output", "input"), ("How it was trained", "training")):
        lines += [f"## {title}", "", *_table(card[key]), ""]
    lines += ["## Accuracy", ""]
    measured = card.get("measured")
    if measured:
        rows = {
            "accuracy": measured["accuracy"],
            "expected calibration error": measured["ece"],
            **measured["per_class"],
        }
        lines += [f"In percent, on {measured['images']} images of {card['data']}.", "", *_table(rows), ""]
    else:
        lines += ["Not measured with this export: there were no labelled images.", ""]
    cost = dict(card["cost"])
    metrics = cost.pop("neurobench") or {}
    flat = {**metrics, **metrics.get("SynapticOperations", {})}
    flat.pop("SynapticOperations", None)
    qnn = cost.pop("equal_qnn", None)
    constants = cost.pop("energy_constants")
    memory = cost.pop("energy_with_memory_uj")
    lines += ["## Cost of one image", "", f"Energy of arithmetic alone: {constants}.", "", *_table(cost), ""]
    if memory:
        lines += [
            "Energy in uJ with memory access (Lemaire et al., ICONIP 2022; 32-bit words):",
            "",
            *_table(memory),
            "",
        ]
    if flat:
        lines += ["By NeuroBench's names:", "", *_table(flat), ""]
    if qnn:
        shares = [f"{100 * qnn[name]:.1f} %" for name in ("rate_arithmetic", "rate_with_memory")]
        bits = qnn["bits"]
        sentence = (
            f"{card['client']['T']} time steps carry {bits} bits. Compared with a {bits}-bit QNN, this network "
            f"needs less energy if fewer than {shares[0]} of its neurons fire in a step (arithmetic alone), or "
            f"{shares[1]} (with weights read from SRAM)."
        )
        if qnn["rate"] is not None:
            sentence += f" On these images {100 * qnn['rate']:.1f} % fire, weighted by the synapses that they reach."
        lines += [sentence, ""]
    if card.get("rewritten"):
        lines += ["## Rewritten for this format", "", *(f"- {line}" for line in card["rewritten"]), ""]
    lines += ["## Limits", "", *(f"- {line}" for line in card["limits"]), ""]
    return "\n".join(lines)


def _table(entries: Mapping[str, Any]) -> list[str]:
    rows = [f"| {_cell(name)} | {_cell(value)} |" for name, value in entries.items()]
    return ["| | |", "|---|---|", *rows]


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(_cell, value))
    return "not known" if value is None else str(value).replace("|", "\\|").replace("\n", " ")
