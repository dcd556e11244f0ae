"""A program as an ONNX graph: each step becomes one or a few standard nodes; low-bit weights are integers behind
DequantizeLinear.

The graph is written directly: torch's exporter would trace the program twice, with symbolic sizes, which takes seconds
for a network unrolled over time. Only the number of images is variable, and no node needs to know it: time is folded
into the batch, and a Split into as many parts as there are time steps unfolds it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

from asfedbridge.export.loader import Program, Step, unpack_codes

OPSET = 23
IR_VERSION = 10  # the first with INT4, so that older runtimes read the file
EVERYTHING = np.iinfo(np.int64).max  # as the end of a Slice


class Builder:
    """Turns the steps of a program into nodes and their tensors into initialisers."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: dict[str, onnx.TensorProto] = {}

    def held(self, name: str, value: Any) -> str:
        """An initialiser: a tensor, numbers of int64, or one number of float32."""
        if isinstance(value, Tensor):
            array = value.numpy()
        else:
            array = np.array(value, np.float32 if isinstance(value, float) else np.int64)
        self.tensors[name] = numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
        return name

    def number(self, value: float) -> str:
        name = f"number {value!r}"
        return name if name in self.tensors else self.held(name, float(value))

    def integers(self, *values: int) -> str:
        name = f"integers {values}"
        return name if name in self.tensors else self.held(name, values)

    def small(self, name: str, codes: Tensor) -> str:
        """Integers of up to four bits as INT4, two per byte; others as INT8 or INT16."""
        low, high = int(codes.min()), int(codes.max())
        if low < -8 or high > 7:
            return self.held(name, codes.to(torch.int8 if low >= -128 and high < 128 else torch.int16))
        nibbles = np.zeros(codes.numel() + codes.numel() % 2, np.uint8)
        nibbles[: codes.numel()] = codes.flatten().numpy() & 15
        packed = nibbles[0::2] | nibbles[1::2] << 4
        self.tensors[name] = helper.make_tensor(name, TensorProto.INT4, list(codes.shape), packed.tobytes(), raw=True)
        return name

    def node(self, op: str, inputs: Sequence[str], out: str = "", count: int = 1, **attributes: Any) -> list[str]:
        """Its outputs; one is called ``out``, if given."""
        names = (
            [out or f"{op} {len(self.nodes)}"] if count == 1 else [f"{op} {len(self.nodes)}.{n}" for n in range(count)]
        )
        self.nodes.append(helper.make_node(op, inputs, names, **attributes))
        return names

    def one(self, op: str, *inputs: str, out: str = "", **attributes: Any) -> str:
        return self.node(op, inputs, out, **attributes)[0]

    def split(self, x: str, steps: int, axis: int = 0) -> list[str]:
        return [x] if steps == 1 else self.node("Split", [x], count=steps, axis=axis, num_outputs=steps)

    # One rule for each operation of a program. Tensors are passed as they are, options by name.

    def normalise(self, out: str, x: str, scale: Tensor, shift: Tensor) -> None:
        real = self.one("Cast", x, to=TensorProto.FLOAT)
        scaled = self.one("Mul", real, self.held(f"{out}.scale", scale))
        self.one("Add", scaled, self.held(f"{out}.shift", shift), out=out)

    def frames(self, out: str, x: str, steps: int) -> None:
        self.one("Concat", *self.split(x, steps, axis=1), out=out, axis=0)

    def repeat(self, out: str, x: str, steps: int) -> None:
        self.one("Concat", *[x] * steps, out=out, axis=0)

    def conv(
        self, out: str, x: str, packed: str = "", *, stride: list[int], padding: list[int], groups: int,
        weight: Tensor | None = None, bias: Tensor | None = None,
    ) -> None:  # fmt: skip
        kernel = packed if weight is None else self.held(f"{out}.weight", weight)
        inputs = [x, kernel, *([] if bias is None else [self.held(f"{out}.bias", bias)])]
        self.node("Conv", inputs, out, strides=stride, pads=[*padding, *padding], group=groups)

    def linear(self, out: str, x: str, weight: Tensor, bias: Tensor | None = None) -> None:
        product = self.one("MatMul", x, self.held(f"{out}.weight", weight.T), out=out if bias is None else "")
        if bias is not None:
            self.one("Add", product, self.held(f"{out}.bias", bias), out=out)

    def batch_norm(
        self, out: str, x: str, running_mean: Tensor, running_var: Tensor, eps: float,
        weight: Tensor | None = None, bias: Tensor | None = None,
    ) -> None:  # fmt: skip
        parts = {
            "weight": torch.ones_like(running_mean) if weight is None else weight,
            "bias": torch.zeros_like(running_mean) if bias is None else bias,
            "mean": running_mean,
            "var": running_var,
        }
        inputs = [x, *(self.held(f"{out}.{part}", tensor) for part, tensor in parts.items())]
        self.node("BatchNormalization", inputs, out, epsilon=eps)

    def group_norm(
        self, out: str, x: str, num_groups: int, eps: float, weight: Tensor | None = None, bias: Tensor | None = None
    ) -> None:
        """Each group as one channel, because runtimes have a kernel for that."""
        groups = self.one("Reshape", x, self.integers(0, num_groups, -1))
        unit = [
            self.held(f"{out}.{name}", torch.full((num_groups,), value)) for name, value in (("1", 1.0), ("0", 0.0))
        ]
        normed = self.one("InstanceNormalization", groups, *unit, epsilon=eps)
        x = self.one("Reshape", normed, self.one("Shape", x))
        for part, op, tensor in (("weight", "Mul", weight), ("bias", "Add", bias)):
            if tensor is not None:
                x = self.one(op, x, self.held(f"{out}.{part}", tensor.view(-1, 1, 1)))
        self.one("Identity", x, out=out)

    def max_pool(self, out: str, x: str, kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool) -> None:
        kernel, strides, pads = (_pair(value) for value in (kernel_size, stride, padding))
        sizes: dict[str, Any] = {
            "kernel_shape": kernel,
            "strides": strides,
            "pads": [*pads, *pads],
            "ceil_mode": int(ceil_mode),
        }
        self.node("MaxPool", [x], out, **sizes)

    def subsample(self, out: str, x: str, stride: int) -> None:
        places = ((0, 0), (EVERYTHING, EVERYTHING), (2, 3), (stride, stride))
        self.one("Slice", x, *(self.integers(*place) for place in places), out=out)

    def mean(self, out: str, x: str) -> None:
        self.one("ReduceMean", x, self.integers(2, 3), out=out, keepdims=0)

    def add(self, out: str, x: str, y: str) -> None:
        self.one("Add", x, y, out=out)

    def relu(self, out: str, x: str) -> None:
        self.one("Relu", x, out=out)

    def sign(self, out: str, x: str) -> None:
        self.one("Where", self.one("GreaterOrEqual", x, self.number(0)), self.number(1), self.number(-1), out=out)

    def quantise(self, out: str, x: str, step: Tensor, high: int) -> None:
        """Clipped first, because QuantizeLinear saturates only at 255."""
        clipped = self.one("Clip", x, self.number(0), self.held(f"{out}.high", (high * step).reshape(())))
        scale = self.held(f"{out}.step", step.reshape(()))
        zero = self.held(f"{out}.zero", torch.zeros((), dtype=torch.uint8))
        self.one("DequantizeLinear", self.one("QuantizeLinear", clipped, scale, zero), scale, zero, out=out)

    def quantise_unit(self, out: str, x: str, levels: int) -> None:
        scaled = self.one("Mul", self.one("Clip", x, self.number(0), self.number(1)), self.number(levels))
        self.one("Div", self.one("Round", scaled), self.number(levels), out=out)

    def unpack(
        self, out: str, packed: Tensor, scale: Tensor, width: int, gain: int, low: int, shape: Sequence[int]
    ) -> None:
        """One scale per tensor, or one per output channel."""
        codes = unpack_codes(packed, width, torch.Size(shape).numel())
        integers = self.small(f"{out}.integers", (gain * codes + low).view(*shape))
        scales = self.held(f"{out}.scale", scale.flatten() if scale.dim() else scale)
        self.one("DequantizeLinear", integers, scales, out=out, axis=0)

    def lif(self, out: str, x: str, steps: int, decay: float, threshold: float) -> None:
        spikes: list[str] = []
        membrane = ""
        for current in self.split(x, steps):
            if spikes:
                kept = self.one("Mul", membrane, self.one("Sub", self.number(1), spikes[-1]))
                membrane = self.one("Add", current, self.one("Mul", self.number(decay), kept))
            else:
                membrane = current
            fired = self.one("GreaterOrEqual", membrane, self.number(threshold))
            spikes.append(self.one("Cast", fired, to=TensorProto.FLOAT))
        self.one("Concat", *spikes, out=out, axis=0)

    def average(self, out: str, x: str, steps: int) -> None:
        self.one("Mean", *self.split(x, steps), out=out)


def build_model(program: Program, example: Tensor) -> onnx.ModelProto:
    """The whole network for any number of images like ``example``, with the program's outputs."""
    builder = Builder()
    for step in program.steps:
        write_step(builder, program, step)
    with torch.no_grad():
        found = program(example[:1])
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch" if len(out) == 1 else None, *out.shape[1:]])
        for name, out in zip(program.outputs, [found] if isinstance(found, Tensor) else found, strict=True)
    ]
    images = helper.make_tensor_value_info("images", TensorProto.UINT8, ["batch", *example.shape[1:]])
    graph = helper.make_graph(builder.nodes, "client", [images], outputs, list(builder.tensors.values()))
    opsets = [helper.make_opsetid("", OPSET)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="asfedbridge")


def write_step(builder: Builder, program: Program, step: Step) -> None:
    rule = getattr(builder, step["op"])
    rule(step["name"], *step["inputs"], **program.tensors_of(step), **step["options"])


def _pair(value: Any) -> list[int]:
    return [value, value] if isinstance(value, int) else list(value)
