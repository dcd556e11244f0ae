"""Exports that need only torch: a ``.pt2`` of torch.export, or ``.safetensors`` with a loader next to it."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor
from torch.export import Dim, ExportedProgram

from asfedbridge.engines import files
from asfedbridge.export import loader
from asfedbridge.export.loader import Program


def export_program(program: Program, example: Tensor) -> ExportedProgram:
    """torch.export with a dynamic batch size. ``example``: one image, repeated because torch treats a batch of one as
    constant."""
    batch = torch.cat([example[:1]] * 2)
    exported = torch.export.export(program, (batch,), dynamic_shapes=({0: Dim("batch", min=1)},))
    for node in exported.graph.nodes:
        node.meta.pop("stack_trace", None)  # it contains paths of this machine
    return exported


def write_pt2(program: Program, example: Tensor, path: Path, metadata: Mapping[str, str]) -> None:
    """``metadata`` is read back with ``torch.export.load(path, extra_files={"card.json": ""})``."""
    torch.export.save(export_program(program, example), path, extra_files=dict(metadata))


def write_safetensors(program: Program, path: Path, metadata: Mapping[str, str]) -> Path:
    """Write the tensors, with the program in their metadata, and a copy of the loader, which does not need
    asfedbridge."""
    tensors = {name.replace("/", "."): tensor for name, tensor in program.named_buffers()}
    files.write_atomic(path, save(tensors, {**metadata, "program": json.dumps(program.steps)}))
    beside = path.with_name(f"{path.stem}_loader.py")
    files.write_atomic(beside, Path(loader.__file__).read_bytes())
    return beside
