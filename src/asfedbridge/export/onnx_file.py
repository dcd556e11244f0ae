"""Writes a program as an ONNX file."""

from collections.abc import Mapping
from pathlib import Path

from onnx import helper
from torch import Tensor

from asfedbridge.engines import files
from asfedbridge.export.loader import Program
from asfedbridge.export.onnx_graph import build_model


def write_onnx(program: Program, example: Tensor, path: Path, metadata: Mapping[str, str]) -> None:
    """``example``: uint8 images, of which only the shape matters. ``metadata`` becomes properties of the model."""
    model = build_model(program, example)
    helper.set_model_props(model, dict(metadata))
    files.write_atomic(path, model.SerializeToString())
