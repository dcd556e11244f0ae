"""A spiking network as a graph of the Neuromorphic Intermediate Representation (NIR): Conv2d, LIF, Flatten, Affine.

NIR has no norm, maximum, mean or addition that simulators agree on. These are rewritten as equivalent functions:

- a norm is folded into the convolution before it; normalisation of the input is a 1x1 convolution;
- an addition is several edges into one node; an edge from neuron to neuron goes through an identity 1x1 convolution;
- the mean over the whole map becomes part of the Affine that reads it, after a Flatten;
- a depthwise convolution is merged with the 1x1 convolution after it into one dense convolution;
- the maximum over spikes is a neuron that fires on any spike in its window. Its membrane is zero after every step: it
  either fired and was reset, or received nothing.

Neurons have r = 1, so NIR scales currents by 1 - decay; thresholds are scaled alike. NIR fires above the threshold, we
fire at it: the graph's threshold is the next smaller float32.
"""

import copy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import nir
import numpy as np
import torch
from torch import Tensor

from asfedbridge.core.errors import BadInput
from asfedbridge.export.loader import Program, Step

DT = 1e-4  # seconds; importers assume this value


@dataclass(frozen=True)
class Conv:
    """A convolution that is not a node yet: a norm or a 1x1 convolution may still be merged into it. In float64."""

    name: str
    weight: Tensor
    bias: Tensor
    stride: int = 1
    padding: int = 0
    groups: int = 1

    def dense(self) -> Tensor:
        """The weight as that of an ungrouped convolution: importers refuse groups."""
        parts = self.weight.chunk(self.groups)
        width = self.weight.shape[1]
        dense = self.weight.new_zeros(len(self.weight), width * self.groups, *self.weight.shape[2:])
        for group, part in enumerate(parts):
            dense[group * len(part) : (group + 1) * len(part), group * width : (group + 1) * width] = part
        return dense

    def scaled(self, scale: Tensor, shift: Tensor) -> "Conv":
        """Merged with an affine map of each channel after it."""
        return replace(self, weight=self.weight * scale.view(-1, 1, 1, 1), bias=self.bias * scale + shift)

    def mixed(self, after: "Conv") -> "Conv":
        """Merged with a 1x1 convolution after it."""
        mix = after.dense()[:, :, 0, 0]
        if self.groups == len(self.weight):
            weight = mix[:, :, None, None] * self.weight[:, 0]
        else:
            weight = torch.einsum("om,mikl->oikl", mix, self.dense())
        return Conv(after.name, weight, mix @ self.bias + after.bias, self.stride, self.padding)


@dataclass(frozen=True)
class Signal:
    """The value of a step: the sum of the outputs of some nodes, possibly followed by an operation that is not a node
    yet."""

    sources: tuple[str, ...]
    shape: tuple[int, ...]  # shape of their outputs
    spikes: bool = False  # zeros and ones
    stride: int = 1  # the next convolution reads every n-th row and column
    mean: bool = False  # over the map
    conv: Conv | None = None


class Builder:
    """Turns the steps of a program into nodes; ``said`` lists what had to be rewritten."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.nodes: dict[str, Any] = {}
        self.edges: list[tuple[str, str]] = []
        self.sent: dict[str, Signal] = {}  # by node
        self.said: dict[str, None] = {}

    def node(self, name: str, node: Any, sources: tuple[str, ...], shape: tuple[int, ...]) -> Signal:
        self.nodes[name] = node
        self.edges += [(source, name) for source in sources]
        self.sent[name] = Signal((name,), shape, spikes=isinstance(node, nir.LIF))
        return self.sent[name]

    def refuse(self, why: str) -> BadInput:
        return BadInput(f"{self.label} cannot be exported to NIR: {why}; use format=onnx or format=torch")

    def written(self, signal: Signal) -> Signal:
        """The signal, with its pending convolution turned into a node."""
        if signal.mean:
            raise self.refuse("a mean over the map is read by something other than a linear layer")
        return signal if signal.conv is None else self.conv_node(signal.conv, signal)

    def conv_node(self, conv: Conv, source: Signal) -> Signal:
        if conv.name in self.sent:
            return self.sent[conv.name]
        if conv.groups > 1:
            self.said["grouped convolutions as dense ones with zeros"] = None
        weight = conv.dense()
        height, width = source.shape[1:]
        kernel, stride, padding = weight.shape[2], conv.stride * source.stride, conv.padding
        if source.stride > 1 and kernel > 1:
            raise self.refuse("rows are skipped before a convolution that is not 1x1")
        node = nir.Conv2d((height, width), _array(weight), stride, padding, 1, 1, _array(conv.bias))
        out = [(length + 2 * padding - kernel) // stride + 1 for length in (height, width)]
        return self.node(conv.name, node, source.sources, (len(weight), *out))

    def lif_node(self, name: str, source: Signal, decay: float, threshold: float) -> Signal:
        if not 0 <= decay < 1:
            raise self.refuse(f"a neuron with decay {decay:g} has no finite time constant")
        sources = tuple(self.synapse(name, one, source.shape) for one in source.sources)
        below = float(np.nextafter(np.float32(threshold * (1 - decay)), np.float32(0)))
        tau, r, v_leak, v_threshold = (np.full(source.shape, value) for value in (DT / (1 - decay), 1.0, 0.0, below))
        return self.node(name, nir.LIF(tau, r, v_leak, v_threshold, np.zeros(source.shape)), sources, source.shape)

    def synapse(self, name: str, source: str, shape: tuple[int, ...]) -> str:
        """The source itself or, if it is a neuron, an identity 1x1 convolution between it and the named neuron."""
        if not isinstance(self.nodes[source], nir.LIF):
            return source
        self.said["identity shortcuts as 1x1 convolutions"] = None
        identity = torch.eye(shape[0], dtype=torch.float64)[:, :, None, None]
        conv = Conv(f"{source}_to_{name}", identity, torch.zeros(shape[0]))
        return self.conv_node(conv, self.sent[source]).sources[0]

    # One rule for each operation of a program.

    def normalise(self, step: Step, x: Signal, scale: Tensor, shift: Tensor) -> Signal:
        if x.shape[0] != scale.numel():
            return x  # event frames: normalised by the caller
        self.said["normalisation of the input as a 1x1 convolution"] = None
        return replace(x, conv=Conv(step["name"], torch.diag(scale.flatten())[:, :, None, None], shift.flatten()))

    def frames(self, step: Step, x: Signal, steps: int) -> Signal:
        return x  # one frame in every step

    def repeat(self, step: Step, x: Signal, steps: int) -> Signal:
        return x  # the same image in every step

    def conv(
        self, step: Step, x: Signal, stride: list[int], padding: list[int], groups: int, weight: Tensor,
        bias: Tensor | None = None,
    ) -> Signal:  # fmt: skip
        if len({*stride}) > 1 or len({*padding}) > 1 or weight.shape[2] != weight.shape[3]:
            raise self.refuse(f"{step['name']} has different settings for height and width")
        zeros = torch.zeros(len(weight), dtype=weight.dtype)
        conv = Conv(step["name"], weight, zeros if bias is None else bias, stride[0], padding[0], groups)
        point = weight.shape[2] == conv.stride == 1 and not conv.padding
        if x.conv is not None and x.conv.groups > 1 and point:
            self.said["depthwise convolutions merged with the 1x1 convolutions after them"] = None
            return replace(x, conv=x.conv.mixed(conv))
        return replace(self.written(x), spikes=False, conv=conv)

    def batch_norm(
        self, step: Step, x: Signal, running_mean: Tensor, running_var: Tensor, weight: Tensor, bias: Tensor, eps: float
    ) -> Signal:
        if x.conv is None:
            raise self.refuse(f"{step['name']} is a norm without a convolution before it")
        scale = weight / (running_var + eps).sqrt()
        return replace(x, conv=x.conv.scaled(scale, bias - running_mean * scale))

    def lif(self, step: Step, x: Signal, steps: int, decay: float, threshold: float) -> Signal:
        return self.lif_node(step["name"], self.written(x), decay, threshold)

    def add(self, step: Step, x: Signal, y: Signal) -> Signal:
        x, y = self.written(x), self.written(y)
        if set(x.sources) & set(y.sources):
            raise self.refuse(f"{step['name']} adds a signal to itself")
        return Signal((*x.sources, *y.sources), x.shape)

    def subsample(self, step: Step, x: Signal, stride: int) -> Signal:
        return replace(self.written(x), stride=stride)

    def mean(self, step: Step, x: Signal) -> Signal:
        return replace(self.written(x), mean=True)

    def max_pool(self, step: Step, x: Signal, **sizes: Any) -> Signal:
        if not x.spikes or x.conv is not None:
            raise self.refuse(f"{step['name']} is a maximum of real values, for which NIR has no node")
        if (sizes["kernel_size"], sizes["stride"], sizes["padding"]) != (2, 2, 0):
            raise self.refuse(f"{step['name']} is not a 2x2 pool")
        self.said["maximum over spikes as a neuron that fires on any of them"] = None
        odd = x.shape[1] % 2  # the last window is incomplete: pad the map with zeros
        channels = x.shape[0]
        window = torch.zeros(channels, channels, 2 + odd, 2 + odd, dtype=torch.float64)
        window[range(channels), range(channels), odd:, odd:] = 1
        if odd and not sizes["ceil_mode"]:
            raise self.refuse(f"{step['name']} drops the edge of a map of odd size")
        summed = self.conv_node(Conv(f"{step['name']}_sum", window, torch.zeros(channels), 2, odd), x)
        return self.lif_node(step["name"], summed, 0.5, 0.5)

    def linear(self, step: Step, x: Signal, weight: Tensor, bias: Tensor) -> Signal:
        name = step["name"]
        if x.mean:
            pixels = x.shape[1] * x.shape[2]
            kind = {"input": np.array(x.shape)}
            x = self.node(f"{name}_flatten", nir.Flatten(kind, 0, -1), x.sources, (x.shape[0] * pixels,))
            weight = weight.repeat_interleave(pixels, dim=1) / pixels
            self.said["the mean over the map as part of an Affine after a Flatten"] = None
        return self.node(name, nir.Affine(_array(weight), _array(bias)), x.sources, (len(weight),))

    def average(self, step: Step, x: Signal, steps: int) -> Signal:
        return self.node("output", nir.Output({"output": np.array(x.shape)}), x.sources, x.shape)  # of one step


class NirGraph(NamedTuple):
    graph: Any  # nir.NIRGraph
    rewritten: list[str]


def build_graph(program: Program, shape: tuple[int, int, int], label: str = "the network") -> NirGraph:
    """The graph of one time step, with float32 weights; BadInput if NIR cannot express the network.

    ``shape``: the shape of a frame. The input is pixels from 0 to 255 for static images, but normalised frames for
    events, because each frame has its own normalisation.
    """
    builder = Builder(label)
    if not any(step["op"] == "lif" for step in program.steps):
        raise builder.refuse("it has no spiking neuron")
    precise = copy.deepcopy(program).double()
    signals = {"images": builder.node("input", nir.Input({"input": np.array(shape)}), (), shape)}
    for step in precise.steps:
        rule = getattr(builder, step["op"], None)
        if rule is None:
            raise builder.refuse(f"there is no node for '{step['op']}' ({step['name']})")
        inputs = [signals[name] for name in step["inputs"]]
        signals[step["name"]] = rule(step, *inputs, **precise.tensors_of(step), **step["options"])
    return NirGraph(nir.NIRGraph(builder.nodes, builder.edges), list(builder.said))


def _array(tensor: Tensor) -> Any:
    return tensor.float().numpy()
