"""Adapts plain torch modules to backbones: a module that returns logits is wrapped so that it returns an ``Output``."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from asfedbridge.core.errors import BadInput, describe_error
from asfedbridge.core.task import ClientInfo, Output, Task

ADVICE = "return logits of one linear layer, or an Output(logits_TBC, feature_TBD)"


class Adapter(nn.Module):
    """Returns logits and feature of a module that returns logits.

    The feature is the input of the module's last linear layer, called ``last``, and has ``size`` entries. If ``size``
    differs from the task's ``feature_dim``, a linear projection that is trained with the module maps it there.
    """

    def __init__(self, module: nn.Module, last: str, size: int, task: Task, info: ClientInfo) -> None:
        super().__init__()
        self.module = module
        self.last, self.steps, self.spiking = last, info.T, info.kind == "snn"
        self.projector = None if size == task.feature_dim else nn.Linear(size, task.feature_dim)

    def forward(self, x_BCHW: Tensor) -> Output:
        inputs: list[Tensor] = []
        hook = self.module.get_submodule(self.last).register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
        try:
            logits = run_module(self.module, x_BCHW, self.steps, self.spiking)
        finally:
            hook.remove()
        each = max(1, len(inputs) // self.steps)  # calls of the layer per time step
        feature = torch.stack(inputs[each - 1 :: each]) if len(inputs) >= self.steps > 1 else inputs[-1]
        feature = _with_time(feature, self.steps, len(x_BCHW))
        return Output(
            _with_time(logits, self.steps, len(x_BCHW)),
            feature if self.projector is None else self.projector(feature),
        )


def adapt(module: nn.Module, task: Task, info: ClientInfo) -> nn.Module:
    """Returns the module itself if it returns an ``Output``, otherwise an ``Adapter`` around it.

    The module is run once on two blank images to find out.
    """
    where = f"model '{info.model}'"
    stateful = [
        type(layer).__name__
        for layer in module.modules()
        if hasattr(layer, "step_mode") and callable(getattr(layer, "reset", None))
    ]
    if info.kind != "snn" and stateful:
        raise BadInput(f"{where} has spiking layers ({stateful[0]}), but kind={info.kind}; use kind=snn")
    called: list[tuple[str, int]] = []  # linear layers in execution order, with their input sizes
    hooks = [
        layer.register_forward_pre_hook(lambda _, args, name=name: called.append((name, args[0].shape[-1])))
        for name, layer in module.named_modules()
        if isinstance(layer, nn.Linear)
    ]
    training = module.training
    module.eval()
    try:
        with torch.no_grad():
            blank = torch.zeros(2, task.channels, task.image_size, task.image_size)
            found = run_module(module, blank, info.T, info.kind == "snn")
    except Exception as error:
        shape = f"{task.channels}x{task.image_size}x{task.image_size}"
        raise BadInput(f"{where} cannot take images of {shape}: {describe_error(error)}") from error
    finally:
        for hook in hooks:
            hook.remove()
        module.train(training)
    if info.kind == "snn":
        reset_state(module)
    if isinstance(found, Output):
        return module
    if not isinstance(found, Tensor):
        raise BadInput(f"{where} returns a {type(found).__name__}; {ADVICE}")
    if not called:
        raise BadInput(f"{where} has no linear layer whose input could be its feature; {ADVICE}")
    return Adapter(module, *called[-1], task, info)


def run_module(module: nn.Module, x_BCHW: Tensor, steps: int, spiking: bool) -> Any:
    """Runs the module. A spiking module is reset first and receives the images at each of ``steps`` time steps.

    A SpikingJelly module in step mode "m" receives all time steps at once, [T, B, C, H, W]. Any other spiking module is
    called once per time step, unless it returns an ``Output`` or logits of shape [T, B, classes].
    """
    x_BCHW = x_BCHW.contiguous()  # user code often calls view(), which other memory formats do not support
    if not spiking:
        return module(x_BCHW)
    reset_state(module)
    if any(getattr(layer, "step_mode", "s") == "m" for layer in module.modules()):
        return module(x_BCHW.repeat(steps, 1, 1, 1, 1))
    first = module(x_BCHW)
    if isinstance(first, Output) or first.dim() == 3:
        return first  # the module loops over time itself
    return torch.stack([first, *(module(x_BCHW) for _ in range(steps - 1))])


def reset_state(module: nn.Module) -> None:
    """Resets the membranes: calls ``reset()`` of every layer that has it, as SpikingJelly's neurons do."""
    for layer in module.modules():
        reset = getattr(layer, "reset", None)
        if callable(reset):
            reset()


def _with_time(x: Tensor, steps: int, batch: int) -> Tensor:
    """Converts [T, B, D], [T * B, D] or [B, D] to [T, B, D]."""
    if x.dim() == 3:
        return x
    if steps > 1 and len(x) == steps * batch:
        unfolded: Tensor = x.unflatten(0, (steps, batch))
        return unfolded
    return x.expand(steps, *x.shape)


@dataclass(frozen=True, eq=False)
class ModuleMaker:
    """Makes the backbone of a participant from a module, which is copied, or from a function that returns one.

    It is pickled for worker processes: a function by reference, a module with its tensors as numpy arrays.
    Multiprocessing would send tensors through /dev/shm, which is small in containers.
    """

    source: nn.Module | Callable[[], nn.Module]

    def make_module(self) -> nn.Module:
        if isinstance(self.source, nn.Module):
            return copy.deepcopy(self.source)
        try:
            made = self.source()
        except Exception as error:
            raise BadInput(f"{self.source!r}, called without arguments: {describe_error(error)}") from error
        if not isinstance(made, nn.Module):
            raise BadInput(f"{self.source!r} returns a {type(made).__name__}; return a torch.nn.Module")
        return made

    def __call__(self, task: Task, info: ClientInfo) -> nn.Module:
        return adapt(self.make_module(), task, info)

    def __getstate__(self) -> dict[str, Any]:
        if not isinstance(self.source, nn.Module):
            return {"source": self.source}
        empty, arrays = copy.deepcopy(self.source), []
        for tensor in chain(empty.parameters(), empty.buffers()):
            arrays.append(tensor.detach().cpu().numpy())
            tensor.data = torch.empty(0, dtype=tensor.dtype)
        return {"source": empty, "arrays": arrays}

    def __setstate__(self, state: dict[str, Any]) -> None:
        source = state["source"]
        if isinstance(source, nn.Module):
            for tensor, array in zip(chain(source.parameters(), source.buffers()), state["arrays"], strict=True):
                tensor.data = torch.from_numpy(array)
        object.__setattr__(self, "source", source)
