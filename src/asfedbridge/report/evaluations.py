"""Predictions and evaluations of trained clients as tables."""

import shutil
from collections.abc import Callable
from typing import TextIO

from asfedbridge.report.tables import Rows, Titled, decimals
from asfedbridge.runs import Prediction, RunEvaluation

LONG = 100  # images; progress is shown for more


def prediction_rows(found: Prediction, classes: tuple[str, ...], top: int) -> Rows:
    """A row for each image: the ``top`` most probable classes, and their probabilities in percent."""
    rows = [["image", *(word for k in range(top) for word in ((f"choice {k + 1}" if top > 1 else "class"), "%"))]]
    for name, probabilities in zip(found.inputs, found.probabilities, strict=True):
        best = (-probabilities).argsort(kind="stable")[:top]
        rows.append([name, *(cell for k in best for cell in (classes[k], f"{100 * probabilities[k]:.1f}"))])
    return rows


def evaluation_tables(found: RunEvaluation) -> list[Titled]:
    """One table of all clients and, if available, the matrix of clients on the test images of others."""
    head = ["client", "kind", "model", "images", "accuracy", "ECE", "ms/image", "spikes", "SOPs"]
    rows = [head] + [
        [
            str(c.id),
            c.kind,
            c.model,
            str(c.images),
            decimals(c.accuracy),
            decimals(c.ece),
            decimals(c.latency_ms),
            "-" if c.spikes is None else f"{c.spikes:.0f}",
            "-" if c.sops is None else f"{c.sops:.0f}",
        ]
        for c in found.clients
    ]
    what = "backbone and Bridge fused" if found.fused else "backbones"
    note = "Accuracy and ECE (expected calibration error, 15 bins) in %; spikes and synaptic operations per image."
    tables = [Titled(f"Trained clients on {found.data}: {what}", rows, note)]
    if found.matrix:
        tables.append(
            Titled(
                "Generalisation: accuracy of each client's backbone (rows) on each client's test images (columns)",
                [
                    ["client", *map(str, found.shards)],
                    *(
                        [f"{c.id} {c.kind}", *map(decimals, row)]
                        for c, row in zip(found.clients, found.matrix, strict=True)
                    ),
                ],
            )
        )
    return tables


def count_images(stream: TextIO) -> Callable[[int], None]:
    """A progress callback: silent for few images, one updated line on a terminal, else a line every thousand."""
    live, told = stream.isatty(), 0

    def show(done: int) -> None:
        nonlocal told
        if done <= LONG:
            return
        if live:
            stream.write(f"\r\x1b[2K{done} images"[: shutil.get_terminal_size().columns + 4])
        elif done // 1000 > told // 1000 or not told:
            stream.write(f"{done} images\n")
        told = done
        stream.flush()

    return show
