"""Writes an exported client and its model card, and verifies the file in its target runtimes."""

import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from asfedbridge.core.errors import BadInput
from asfedbridge.core.task import ClientInfo, Task
from asfedbridge.engines import files
from asfedbridge.export.loader import Program
from asfedbridge.export.model_card import make_card, render_card
from asfedbridge.export.outcome import Outcome
from asfedbridge.export.torch_file import write_pt2, write_safetensors
from asfedbridge.export.tracing import trace

FORMATS = {".pt2": "torch", ".safetensors": "torch", ".onnx": "onnx", ".nir": "nir"}
NEEDED = {"onnx": ("onnx", "onnxruntime"), "nir": ("nir",)}


@dataclass(frozen=True, eq=False)
class Subject:
    """A trained network and the information for its files."""

    network: nn.Module
    info: ClientInfo
    task: Task
    mean: Sequence[float]
    std: Sequence[float]
    facts: Mapping[str, Any]  # for the card: network and training

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of an image."""
        return self.task.channels, self.task.image_size, self.task.image_size

    def trace(self) -> Program:
        return trace(self.network, self.mean, self.std, self.info.label)


@dataclass(frozen=True)
class Export:
    files: tuple[Path, ...]  # the network first, then the files next to it
    card: Mapping[str, Any]
    outcomes: Mapping[str, Outcome] = field(default_factory=dict)  # by runtime, if the file was verified


def find_format(path: Path, name: str | None = None) -> str:
    """The format of a file by its suffix; ``name``, if given, must agree."""
    known = ", ".join(f"{suffix} ({form})" for suffix, form in FORMATS.items())
    if name is not None and name not in FORMATS.values():
        raise BadInput(f"format={name}: unknown format; use torch, onnx or nir")
    if path.suffix not in FORMATS:
        raise BadInput(f"out={path}: unknown suffix; use one of {known}")
    found = FORMATS[path.suffix]
    if name is not None and name != found:
        fitting = " or ".join(suffix for suffix, form in FORMATS.items() if form == name)
        raise BadInput(f"out={path}: format={name} needs a file name ending in {fitting}")
    for package in NEEDED.get(found, ()):
        try:
            importlib.import_module(package)
        except ImportError:
            hint = "pip install 'asfedbridge[export]'"
            raise BadInput(f"out={path}: {found} needs the package {package}; {hint}") from None
    return found


def write_export(subject: Subject, path: Path, images: Tensor | None = None, labels: Tensor | None = None) -> Export:
    """Write the network in the format given by the path's suffix, and a model card next to it as JSON and Markdown.

    The card's accuracy and cost are measured on uint8 ``images`` [N, C, H, W] and their ``labels``, if given.
    """
    form = find_format(path)
    program = subject.trace()
    card = make_card(program, subject.info, subject.task, subject.facts, images, labels)
    text = json.dumps(card)
    example = torch.zeros(1, *subject.shape, dtype=torch.uint8)
    beside: list[Path] = []
    if path.suffix == ".pt2":
        write_pt2(program, example, path, {"card.json": text})
    elif form == "torch":
        beside.append(write_safetensors(program, path, {"card": text}))
    elif form == "onnx":
        from asfedbridge.export.onnx_file import write_onnx

        write_onnx(program, example, path, {"card": text})
    else:
        from asfedbridge.export.nir_file import write_nir

        card["rewritten"] = write_nir(program, subject.shape, path, subject.info.label, text)
    card["file"] = {"name": path.name, "format": form, "bytes": path.stat().st_size}
    for suffix, content in ((".json", json.dumps(card, indent=1)), (".md", render_card(card))):
        place = path.with_name(path.name + suffix)
        files.write_atomic(place, content.encode())
        beside.append(place)
    return Export((path, *beside), card)
