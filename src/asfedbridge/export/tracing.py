"""Turns a trained network into a list of plain steps, which ``loader.Program`` runs and all formats are written from.

The network is traced symbolically (torch.fx) down to its convolutions, norms and neurons. This works for registered
models too, if their ``forward`` does not branch on values. Tensors keep their trained values; only low-bit weights
become packed integers.
"""

import copy
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from asfedbridge.core.errors import BadInput, describe_error
from asfedbridge.core.task import Output
from asfedbridge.export.loader import Program, Step
from asfedbridge.export.packing import LOW_BIT, pack, weight_codes
from asfedbridge.models.lowbit import BinaryConv, LsqConv
from asfedbridge.models.neuron import Spiking


class Frames(nn.Module):
    """Moves time from the channels to the batch. Never executed: it is a leaf of the trace."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps


class TracedSpiking(Spiking):
    """A spiking activation without fused kernels, which would hide the neighbouring layers from the trace."""

    def __init__(self, act: Spiking) -> None:
        super().__init__(act.steps, act.neuron, act.frames)
        self.unfold = Frames(act.steps)

    def after(self, norm: nn.Module, x: Tensor, residual: Tensor | None = None) -> Tensor:
        out: Tensor = self(norm(x) if residual is None else norm(x) + residual)
        return out

    def read(self, stem: nn.Module, norm: nn.Module, x_BCHW: Tensor, pool: nn.Module | None = None) -> Tensor:
        out: Tensor = self(self.currents(stem, norm, x_BCHW, pool))
        return out

    def currents(self, stem: nn.Module, norm: nn.Module, x_BCHW: Tensor, pool: nn.Module | None = None) -> Tensor:
        x = norm(stem(self.unfold(x_BCHW) if self.frames else x_BCHW))
        x = x if pool is None else pool(x)
        return x if self.frames else torch.cat([x] * self.steps)

    def convolve(self, conv: nn.Conv2d, spikes: Tensor) -> Tensor:
        out: Tensor = conv(spikes)
        return out

    def fork(self, conv: nn.Conv2d, side: nn.Sequential, spikes: Tensor) -> tuple[Tensor, Tensor]:
        return conv(spikes), side(spikes)


class Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, tuple(MODULES))


@torch.no_grad()
def trace(network: nn.Module, mean: Sequence[float], std: Sequence[float], label: str = "the network") -> Program:
    """The network with its normalisation: uint8 images [N, C, H, W] in, logits [N, classes] out."""
    network = copy.deepcopy(network).eval()
    for module in list(network.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, Spiking):
                setattr(module, name, TracedSpiking(child))
    try:
        graph = Tracer().trace(network)
    except Exception as error:
        raise BadInput(f"{label} cannot be exported: torch.fx cannot trace it: {describe_error(error)}") from error
    recorder = Recorder(network, label)
    recorder.normalise(mean, std)
    for node in graph.nodes:
        recorder.record(node)
    return Program(recorder.steps, recorder.tensors).eval()


class Recorder:
    """Turns the nodes of a trace into steps, one after the other."""

    def __init__(self, network: nn.Module, label: str) -> None:
        self.network, self.label = network, label
        self.steps: list[Step] = []
        self.tensors: dict[str, Tensor] = {}
        self.names: dict[fx.Node, str] = {}  # node -> name of the step that computes it

    def add(
        self,
        name: str,
        op: str,
        inputs: Sequence[str],
        options: dict[str, Any] | None = None,
        tensors: Mapping[str, Tensor | None] | None = None,
    ) -> str:
        """Append a step; its tensors are stored under its name."""
        held = {part: tensor for part, tensor in (tensors or {}).items() if tensor is not None}
        names = {part: f"{name}.{part}" for part in held}
        for part, tensor in held.items():
            self.tensors[names[part]] = tensor.detach().clone(memory_format=torch.contiguous_format)
        self.steps.append({"name": name, "op": op, "inputs": list(inputs), "tensors": names, "options": options or {}})
        return name

    def normalise(self, mean: Sequence[float], std: Sequence[float]) -> None:
        """(x / 255 - mean) / std as one multiply-add, with the data loader's rounding."""
        centre, spread = (torch.tensor(values, dtype=torch.float64).view(1, -1, 1, 1) for values in (mean, std))
        scale, shift = (1 / (255 * spread)).float(), (-centre / spread).float()
        self.add("normalised", "normalise", ["images"], tensors={"scale": scale, "shift": shift})

    def record(self, node: fx.Node) -> None:
        if node.op == "placeholder":
            self.names[node] = "normalised"
        elif node.op == "output":
            self.finish(self.names[node.all_input_nodes[0]])
        elif node.op == "call_module":
            module = self.network.get_submodule(str(node.target))
            add = next(add for kind, add in MODULES.items() if isinstance(module, kind))
            self.names[node] = add(self, node.name, module, [self.names[n] for n in node.all_input_nodes])
        else:
            self.names[node] = self.call(node)

    def call(self, node: fx.Node) -> str:
        """A step for an operation that is not a layer."""
        args, inputs = node.args, [self.names[n] for n in node.all_input_nodes]
        match node.target:
            case "relu" | torch.relu | nn.functional.relu:
                return self.add(node.name, "relu", inputs)
            case operator.add | torch.add if len(args) == 2 and all(isinstance(arg, fx.Node) for arg in args):
                return self.add(node.name, "add", [self.names[arg] for arg in args if isinstance(arg, fx.Node)])
            case "mean" if node.kwargs.get("dim", args[1:]) in ((2, 3), [2, 3], ((2, 3),)):
                return self.add(node.name, "mean", inputs)
            case "unflatten" if args[1] == 0:
                return inputs[0]  # the first dimension of an ``Output`` is time: ``finish`` averages over it
            case target if target is Output:
                return inputs[0]  # the logits
            case torch.cat if len(inputs) == 1 and isinstance(args[0], list | tuple):
                return self.add(node.name, "repeat", inputs, {"steps": len(args[0])})
            case operator.getitem if stride := _stride(args[1]):
                return self.add(node.name, "subsample", inputs, {"stride": stride})
        raise BadInput(f"{self.label} cannot be exported: '{node.format_node()}' in its forward is not supported")

    def finish(self, name: str) -> None:
        steps = next((layer.steps for layer in self.network.modules() if isinstance(layer, Spiking)), 1)
        self.add("logits", "average", [name], {"steps": steps})

    def conv(self, name: str, conv: Any, inputs: list[str]) -> str:
        if conv.padding_mode != "zeros" or isinstance(conv.padding, str) or set(conv.dilation) != {1}:
            raise BadInput(f"{self.label} cannot be exported: the padding or dilation of {name} is not supported")
        options = {"stride": list(conv.stride), "padding": list(conv.padding), "groups": conv.groups}
        if isinstance(conv, LOW_BIT):
            inputs = [self.quantise(f"{name}_input", conv, inputs), self.pack(f"{name}_weight", conv)]
            return self.add(name, "conv", inputs, options, {"bias": conv.bias})
        return self.add(name, "conv", inputs, options, {"weight": conv.weight, "bias": conv.bias})

    def quantise(self, name: str, conv: Any, inputs: list[str]) -> str:
        """The quantised input of a low-bit convolution."""
        if isinstance(conv, BinaryConv):
            return self.add(name, "sign", inputs)
        if isinstance(conv, LsqConv):
            step = conv.of_input.step_size
            if not (step > 0 and conv.of_weight.step_size > 0):
                raise BadInput(
                    f"{self.label} cannot be exported: its quantisation step sizes are not initialised; train it first"
                )
            return self.add(name, "quantise", inputs, {"high": conv.of_input.high}, {"step": step})
        return self.add(name, "quantise_unit", inputs, {"levels": conv.levels})

    def pack(self, name: str, conv: nn.Conv2d) -> str:
        found = weight_codes(conv)
        options = {"width": found.width, "gain": found.gain, "low": found.low, "shape": list(conv.weight.shape)}
        tensors = {"packed": pack(found.codes, found.width), "scale": found.scale}
        return self.add(name, "unpack", [], options, tensors)

    def linear(self, name: str, layer: Any, inputs: list[str]) -> str:
        return self.add(name, "linear", inputs, tensors={"weight": layer.weight, "bias": layer.bias})

    def batch_norm(self, name: str, norm: Any, inputs: list[str]) -> str:
        parts = {"running_mean": norm.running_mean, "running_var": norm.running_var}
        return self.add(
            name, "batch_norm", inputs, {"eps": norm.eps}, {**parts, "weight": norm.weight, "bias": norm.bias}
        )

    def group_norm(self, name: str, norm: Any, inputs: list[str]) -> str:
        options = {"num_groups": norm.num_groups, "eps": norm.eps}
        return self.add(name, "group_norm", inputs, options, {"weight": norm.weight, "bias": norm.bias})

    def max_pool(self, name: str, pool: Any, inputs: list[str]) -> str:
        sizes = {"kernel_size": pool.kernel_size, "stride": pool.stride, "padding": pool.padding}
        return self.add(name, "max_pool", inputs, {**sizes, "ceil_mode": pool.ceil_mode})

    def neuron(self, name: str, act: Any, inputs: list[str]) -> str:
        options = {"steps": act.steps, "decay": act.neuron.decay, "threshold": act.neuron.threshold}
        return self.add(name, "lif", inputs, options)

    def frames(self, name: str, layer: Any, inputs: list[str]) -> str:
        return self.add(name, "frames", inputs, {"steps": layer.steps})


MODULES: dict[type[nn.Module], Callable[[Recorder, str, nn.Module, list[str]], str]] = {
    nn.Conv2d: Recorder.conv,
    nn.Linear: Recorder.linear,
    nn.BatchNorm2d: Recorder.batch_norm,
    nn.GroupNorm: Recorder.group_norm,
    nn.MaxPool2d: Recorder.max_pool,
    Spiking: Recorder.neuron,
    Frames: Recorder.frames,
}


def _stride(index: object) -> int:
    """The s of an index x[:, :, ::s, ::s]; 0 for other indices."""
    whole = slice(None, None, None)
    match index:
        case (a, b, slice(start=None, stop=None, step=int(s)) as rows, columns) if a == b == whole and rows == columns:
            return s
    return 0
