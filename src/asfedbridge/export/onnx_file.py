"""ONNX through torch's dynamo exporter; low-bit weights are integers behind DequantizeLinear.

The exporter's optimiser is disabled. It tries every rewrite rule at every node, and several rules scan all nodes: on a
network unrolled over time that takes minutes. onnxruntime simplifies the graph itself when it loads it.
"""

import contextlib
import io
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx_ir
import torch
from torch import Tensor

from asfedbridge.engines import files
from asfedbridge.export.loader import OPERATIONS, Program, Step, unpack_codes
from asfedbridge.export.torch_file import export_program

OPSET = 23
ZERO = torch.zeros((), dtype=torch.uint8)


def dequantise(integers: Tensor, scale: Tensor) -> Tensor:
    """One scale per tensor, or one per output channel."""
    out: Tensor = torch.onnx.ops.symbolic(
        "DequantizeLinear", (integers, scale), {"axis": 0}, dtype=torch.float32, shape=integers.shape
    )
    return out


def quantise(x: Tensor, step: Tensor, high: int) -> Tensor:
    """Clipped first, because QuantizeLinear saturates only at 255."""
    clipped = torch.minimum(x.clamp(min=0), high * step)
    codes = torch.onnx.ops.symbolic("QuantizeLinear", (clipped, step, ZERO), dtype=torch.uint8, shape=x.shape)
    out: Tensor = torch.onnx.ops.symbolic("DequantizeLinear", (codes, step, ZERO), dtype=torch.float32, shape=x.shape)
    return out


def with_integers(program: Program) -> Program:
    """The same program with ONNX's low-bit operations. Torch can export it, but not run it."""
    tensors = {name.replace("/", "."): tensor for name, tensor in program.named_buffers()}
    steps: list[Step] = []
    for step in program.steps:
        if step["op"] == "unpack":
            held, options = program.tensors_of(step), step["options"]
            shape = options["shape"]
            codes = unpack_codes(held["packed"], options["width"], torch.Size(shape).numel())
            integers = (options["gain"] * codes + options["low"]).view(shape)
            small = torch.int8 if integers.abs().max() < 128 or integers.min() == -128 else torch.int16
            names = {part: f"{step['name']}.{part}" for part in ("integers", "scale")}
            tensors.pop(step["tensors"]["packed"])
            scale = held["scale"].flatten() if held["scale"].dim() else held["scale"]
            tensors |= {names["integers"]: integers.to(small), names["scale"]: scale}
            step = {**step, "op": "dequantise", "tensors": names, "options": {}}
        steps.append(step)
    found = Program(steps, tensors, {**OPERATIONS, "dequantise": dequantise, "quantise": quantise})
    found.outputs = program.outputs
    return found


def write_onnx(program: Program, example: Tensor, path: Path, metadata: Mapping[str, str]) -> None:
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")  # the exporter's own warnings
        exported = export_program(with_integers(program), example)
        names = ["logits", *program.outputs[1:]]
        found = torch.onnx.export(
            exported, (), dynamo=True, optimize=False, opset_version=OPSET, verbose=False, output_names=names
        )
    assert found is not None
    model: Any = found.model
    for value in model.graph.initializers.values():
        _shrink(value)
    for node in model.graph:
        node.metadata_props.clear()  # source locations in torch and in this package
    for value in (*model.graph.inputs, *model.graph.outputs):
        _name_batch(value)
    model.metadata_props.update(metadata)
    files.write_atomic(path, onnx_ir.to_proto(model).SerializeToString())


def _shrink(value: Any) -> None:
    """Store integers of up to four bits as INT4, two per byte."""
    if value.dtype == onnx_ir.DataType.INT8:
        numbers, small = value.const_value.numpy(), onnx_ir.DataType.INT4
        if numbers.min() >= -8 and numbers.max() <= 7:
            value.const_value = onnx_ir.Tensor(numbers.astype(small.numpy()), dtype=small, name=value.name)
            value.dtype = small


def _name_batch(value: Any) -> None:
    value.shape = onnx_ir.Shape(["batch", *list(value.shape)[1:]])
