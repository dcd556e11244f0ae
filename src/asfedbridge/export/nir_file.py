"""Writes NIR files, and prepares and verifies their inputs."""

from pathlib import Path
from typing import Any

import nir
from torch import Tensor

from asfedbridge.export.loader import Program
from asfedbridge.export.nir_graph import build_graph


def write_nir(program: Program, shape: tuple[int, int, int], path: Path, label: str, card: str) -> list[str]:
    """Write the program as a NIR graph; return the list of rewritten operations. ``shape``: the shape of an image."""
    channels, height, width = shape
    frames = next((step["options"]["steps"] for step in program.steps if step["op"] == "frames"), 1)
    found = build_graph(program, (channels // frames, height, width), label)
    found.graph.metadata = {"card": card}
    nir.write(path, found.graph)
    return found.rewritten


def as_frames(program: Program, images: Tensor) -> Tensor:
    """The input of a NIR file, [N, T, C, H, W]: a static image's pixels repeated T times, or normalised event
    frames."""
    kinds: dict[str, Any] = {step["op"]: step["options"] for step in program.steps}
    steps = kinds["average"]["steps"]
    if "frames" not in kinds:
        return images.float().unsqueeze(1).expand(-1, steps, -1, -1, -1)
    normalise = next(step for step in program.steps if step["op"] == "normalise")
    normalised: Tensor = program.operations["normalise"](images, **program.tensors_of(normalise))
    return normalised.reshape(len(images), steps, -1, *images.shape[2:])
