"""Runs an exported client: ``network = load("client.safetensors")``, then ``network(images).argmax(1)``.

This file needs torch and safetensors, nothing else. Images are uint8 [N, C, H, W], as the client was trained on.
A network is a list of steps, stored in the metadata of its tensors: each names an operation and the steps it reads.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor

Step = dict[str, Any]  # name, op, inputs (names of steps), tensors (by parameter of the operation), options


def lif(x: Tensor, steps: int, decay: float, threshold: float) -> Tensor:
    """Leaky integrate-and-fire over time, which is folded into the batch: fires at >= threshold, resets to zero."""
    spikes: list[Tensor] = []
    membrane: Tensor | None = None
    for current in x.unflatten(0, (steps, -1)).unbind(0):
        membrane = current if membrane is None else current + decay * membrane
        spike = (membrane >= threshold).to(x.dtype)
        membrane = membrane * (1 - spike)
        spikes.append(spike)
    return torch.cat(spikes)


def unpack_codes(packed: Tensor, width: int, count: int) -> Tensor:
    """Unpack integers of ``width`` bits each from bytes."""
    bits = (packed.unsqueeze(1) >> torch.arange(8, dtype=torch.uint8)) & 1
    return (bits.flatten()[: width * count].view(-1, width).int() << torch.arange(width)).sum(1)


def unpack(packed: Tensor, scale: Tensor, width: int, gain: int, low: int, shape: Sequence[int]) -> Tensor:
    codes = unpack_codes(packed, width, torch.Size(shape).numel())
    return (gain * codes + low).view(*shape).to(scale.dtype) * scale


OPERATIONS: Mapping[str, Callable[..., Tensor]] = {
    "normalise": lambda x, scale, shift: x.to(scale.dtype) * scale + shift,
    "frames": lambda x, steps: x.unflatten(1, (steps, -1)).transpose(0, 1).flatten(0, 1),  # fold time into the batch
    "repeat": lambda x, steps: torch.cat([x] * steps),
    "conv": F.conv2d,
    "linear": F.linear,
    "batch_norm": F.batch_norm,
    "group_norm": F.group_norm,
    "max_pool": F.max_pool2d,
    "subsample": lambda x, stride: x[:, :, ::stride, ::stride],
    "mean": lambda x: x.mean(dim=(2, 3)),
    "add": torch.add,
    "relu": torch.relu,
    "sign": lambda x: torch.where(x >= 0, 1.0, -1.0).to(x.dtype),
    "quantise": lambda x, step, high: (x / step).clamp(0, high).round() * step,
    "quantise_unit": lambda x, levels: (x.clamp(0, 1) * levels).round() / levels,
    "unpack": unpack,
    "lif": lif,
    "average": lambda x, steps: x.unflatten(0, (steps, -1)).mean(0),  # over time
}


class Program(torch.nn.Module):
    """Runs the steps in order. ``outputs`` names the steps whose values are returned, by default the last one."""

    def __init__(
        self, steps: Sequence[Step], tensors: Mapping[str, Tensor], operations: Mapping[str, Any] = OPERATIONS
    ) -> None:
        super().__init__()
        self.steps, self.operations, self.outputs = list(steps), operations, [steps[-1]["name"]]
        for name, tensor in tensors.items():
            self.register_buffer(name.replace(".", "/"), tensor)

    def tensors_of(self, step: Step) -> dict[str, Tensor]:
        return {part: self.get_buffer(name.replace(".", "/")) for part, name in step["tensors"].items()}

    def forward(self, images: Tensor) -> Any:
        values = {"images": images}
        for step in self.steps:
            inputs = [values[name] for name in step["inputs"]]
            values[step["name"]] = self.operations[step["op"]](*inputs, **self.tensors_of(step), **step["options"])
        found = [values[name] for name in self.outputs]
        return found[0] if len(found) == 1 else tuple(found)

    def unpacked(self) -> "Program":
        """The same network with low-bit weights as floats, so that they are not unpacked for every batch."""
        tensors = {name.replace("/", "."): tensor for name, tensor in self.named_buffers()}
        steps = []
        for step in self.steps:
            if step["op"] == "unpack":
                tensors[step["name"]] = self.operations["unpack"](**self.tensors_of(step), **step["options"])
                for name in step["tensors"].values():
                    tensors.pop(name)
            else:
                if step["op"] == "conv" and len(step["inputs"]) == 2:
                    x, weight = step["inputs"]
                    step = {**step, "inputs": [x], "tensors": {**step["tensors"], "weight": weight}}
                steps.append(step)
        return Program(steps, tensors, self.operations)


def load(path: Any) -> Program:
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return Program(json.loads(file.metadata()["program"]), tensors).unpacked().eval()
