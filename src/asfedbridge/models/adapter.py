"""Plain torch modules as backbones: one that returns logits becomes one that returns an ``Output``."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from asfedbridge.core.errors import BadInput
from asfedbridge.core.task import ClientInfo, Output, Task

WAYS = "return logits of one linear layer, or an Output(logits_TBC, feature_TBD)"


class Adapter(nn.Module):
    """Logits and feature of a module that returns logits.

    The feature is the input of the module's last linear layer, of size ``size``. If that is not the task's
    ``feature_dim``, a linear projection, trained with the module, maps it there.
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
        each = max(1, len(inputs) // self.steps)  # calls of the layer in one time step
        feature = torch.stack(inputs[each - 1 :: each]) if len(inputs) >= self.steps > 1 else inputs[-1]
        feature = _with_time(feature, self.steps, len(x_BCHW))
        return Output(
            _with_time(logits, self.steps, len(x_BCHW)),
            feature if self.projector is None else self.projector(feature),
        )


def adapt(module: nn.Module, task: Task, info: ClientInfo) -> nn.Module:
    """A backbone for this client: the module itself if it returns an ``Output``, else an ``Adapter`` around it.

    The module is run once, on two blank images, to see which.
    """
    where = f"model '{info.model}'"
    called: list[tuple[str, int]] = []  # linear layers, in the order of their execution, with the sizes of their inputs
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
    except (RuntimeError, ValueError, IndexError) as error:
        shape = f"{task.channels}x{task.image_size}x{task.image_size}"
        raise BadInput(f"{where} cannot take images of {shape}: {str(error).splitlines()[0]}") from error
    finally:
        for hook in hooks:
            hook.remove()
        module.train(training)
    if info.kind == "snn":
        reset_state(module)
    if isinstance(found, Output):
        return module
    if not isinstance(found, Tensor):
        raise BadInput(f"{where} returns a {type(found).__name__}; {WAYS}")
    if not called:
        raise BadInput(f"{where} has no linear layer whose input could be its feature; {WAYS}")
    return Adapter(module, *called[-1], task, info)


def run_module(module: nn.Module, x_BCHW: Tensor, steps: int, spiking: bool) -> Any:
    """The module's output. A spiking one is reset and sees the images in each of ``steps`` time steps.

    A SpikingJelly module in step mode "m" gets all time steps at once, [T, B, C, H, W]. Any other spiking module is
    called once for each, unless it returns logits with time in front, [T, B, classes].
    """
    x_BCHW = x_BCHW.contiguous()  # user code often takes a view that other memory formats do not allow
    if not spiking:
        return module(x_BCHW)
    reset_state(module)
    if any(getattr(layer, "step_mode", "s") == "m" for layer in module.modules()):
        return module(x_BCHW.repeat(steps, 1, 1, 1, 1))
    first = module(x_BCHW)
    if isinstance(first, Output) or first.dim() == 3:
        return first  # it counts time itself
    return torch.stack([first, *(module(x_BCHW) for _ in range(steps - 1))])


def reset_state(module: nn.Module) -> None:
    """Forget the membranes: call ``reset()`` of every layer that has it, as SpikingJelly's neurons do."""
    for layer in module.modules():
        reset = getattr(layer, "reset", None)
        if callable(reset):
            reset()


def _with_time(x: Tensor, steps: int, batch: int) -> Tensor:
    """[T, B, D] of what has time in front, folded into the batch, or averaged away."""
    if x.dim() == 3:
        return x
    if steps > 1 and len(x) == steps * batch:
        unfolded: Tensor = x.unflatten(0, (steps, batch))
        return unfolded
    return x.expand(steps, *x.shape)


@dataclass(frozen=True, eq=False)
class ModuleMaker:
    """What makes the backbones of a participant: a module, which is copied, or a function that returns one.

    It crosses to worker processes: a function by reference, a module with its tensors as arrays, because
    multiprocessing sends tensors through /dev/shm, where containers have little room.
    """

    source: nn.Module | Callable[[], nn.Module]

    def make_module(self) -> nn.Module:
        made = copy.deepcopy(self.source) if isinstance(self.source, nn.Module) else self.source()
        if not isinstance(made, nn.Module):
            raise BadInput(f"model: {self.source!r} returns a {type(made).__name__}; return a torch.nn.Module")
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
