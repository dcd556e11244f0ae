"""Low-bit convolutions, binary (BNN) or with 2 to 8 bits (QNN), for any network made of ``nn.Conv2d``.

Weights and inputs of every convolution except the stem are quantised in ``forward``. The trained, communicated and
averaged tensors are latent weights in full precision with the names of the ANN twin. The backward pass uses the
straight-through estimator:

- Binary, as XNOR-Net (Rastegari et al., ECCV 2016) without its map of input scales: a_o sign(W_o) convolved with
  sign(x), where a_o = mean |W_o| for each output channel and sign(0) = +1. Gradients pass where |v| <= 1. XNOR-Net also
  multiplies the weight gradient by a_o. That suits Adam, which ignores gradient scales, but with SGD at the ANN's
  learning rate it slows latent weights down by a factor of 10 to 50. Latent weights are clamped to [-1, 1]. Padding
  adds zeros, not signs.
- ``lsq`` (Esser et al., ICLR 2020): s round(clip(v / s, low, high)) with one learnt step size s for the weights of each
  layer and one for its inputs.
- ``dorefa`` (Zhou et al., arXiv 1606.06160): tanh maps weights to [-1, 1], inputs are clamped to [0, 1], nothing is
  learnt.

The inputs of a QNN's convolutions are outputs of a ReLU, so their lowest level is zero.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from asfedbridge.core.task import ClientInfo, Task
from asfedbridge.core.training import Bounded

MIN_STEP = 1e-6  # step sizes are clamped to it, because 0 marks a step size that is not set yet
STEP = ".step_size"
ABOVE_ONE = 1 + 2**-23  # the next float32 after 1


def is_step(name: str) -> bool:
    """True for names of step sizes, the only tensors of a QNN that its ANN twin does not have."""
    return name.endswith(STEP)


def _passed(grad: Tensor, v: Tensor, low: float, high: float) -> Tensor:
    """The gradient where low < v < high, zero elsewhere. One pass, many times faster than a mask."""
    out: Tensor = torch.ops.aten.hardtanh_backward(grad, v, low, high)
    return out


def _sign(v: Tensor) -> Tensor:
    """-1 or +1; sign(0) = +1."""
    return v.sign().add_(0.5).sign_()


class _Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return _sign(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return _passed(grad, x, -ABOVE_ONE, ABOVE_ONE)


class _ScaledSign(_Sign):
    """Signs of a weight times a scale per output channel. The backward pass ignores the scale."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor) -> Tensor:
        return _Sign.forward(ctx, weight).mul_(weight.abs().mean(dim=(1, 2, 3), keepdim=True))


class _Lsq(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, v: Tensor, step: Tensor, low: int, high: int, factor: float) -> Tensor:
        out = (v / step).clamp_(low, high).round_().mul_(step)
        ctx.save_for_backward(v, step, out)
        ctx.range, ctx.factor = (low, high), factor
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        v, step, out = ctx.saved_tensors
        low, high = ctx.range
        size = step.item()
        inside = _passed(grad, v, low * size, high * size)
        # d out / d step is round(v / step) - v / step inside the range and the nearer bound outside. This equals
        # out / step everywhere, minus v / step inside.
        slope = torch.dot(_flat(grad), _flat(out)) - torch.dot(_flat(inside), _flat(v))
        return inside, slope.mul_(ctx.factor / size), None, None, None


def _flat(x: Tensor) -> Tensor:
    """Flattens in channels-last order."""
    return x.movedim(1, -1).reshape(-1)


class _DorefaWeight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, levels: int) -> Tensor:
        squashed = weight.tanh()
        largest = squashed.abs().max().clamp_(min=MIN_STEP)
        ctx.save_for_backward(squashed, largest)
        half = levels / 2
        return squashed.mul(half / largest).add_(half).round_().div_(half).sub_(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        squashed, largest = ctx.saved_tensors
        return (1 - squashed.square()).mul_(grad).div_(largest), None


class _DorefaInput(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, levels: int) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp(0, 1).mul_(levels).round_().div_(levels)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return _passed(grad, x, 0, 1), None


class BinaryConv(nn.Conv2d, Bounded):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self._conv_forward(_Sign.apply(x), _ScaledSign.apply(self.weight), self.bias)
        return out

    def bound(self) -> None:
        self.weight.clamp_(-1, 1)


class DorefaConv(nn.Conv2d):
    levels: int  # excluding the lowest

    def set_bits(self, bits: int) -> None:
        self.levels = 2**bits - 1

    def forward(self, x: Tensor) -> Tensor:
        weight = _DorefaWeight.apply(self.weight, self.levels)
        out: Tensor = self._conv_forward(_DorefaInput.apply(x, self.levels), weight, self.bias)
        return out


class Lsq(Bounded):
    """A quantiser with a learnt step size, which is zero until the first training batch sets it.

    A new model therefore holds no numbers derived from data, and a server can send it. A client that receives a zero
    sets the step size from its own data and returns a positive value, so the mean over clients is positive too. In
    evaluation mode a zero is not changed.
    """

    def __init__(self, low: int, high: int) -> None:
        super().__init__()
        self.low, self.high = low, high
        self.step_size = nn.Parameter(torch.empty(()))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.step_size)

    def forward(self, v: Tensor, count: int) -> Tensor:
        """``count`` is the number of values (weights, or inputs per image) that share the step size. It scales the
        step size's gradient by 1 / sqrt(count * high)."""
        step: Tensor = self.step_size
        if step.item() == 0:
            with torch.no_grad():
                measured = (2 / math.sqrt(self.high) * v.abs().mean()).clamp_(min=MIN_STEP)
                step = step.copy_(measured) if self.training else measured
        out: Tensor = _Lsq.apply(v, step, self.low, self.high, 1 / math.sqrt(count * self.high))
        return out

    def bound(self) -> None:
        self.step_size.clamp_(min=MIN_STEP)


class LsqConv(nn.Conv2d):
    def set_bits(self, bits: int) -> None:
        self.of_weight = Lsq(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        self.of_input = Lsq(0, 2**bits - 1)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.of_weight(self.weight, self.weight.numel())
        out: Tensor = self._conv_forward(self.of_input(x, math.prod(x.shape[1:])), weight, self.bias)
        return out


def lower_bits(model: nn.Module, task: Task, info: ClientInfo) -> None:
    """Replaces all convolutions except ``stem`` with low-bit ones if the client is a BNN or QNN. The new convolutions
    are uninitialised."""
    if info.kind not in ("bnn", "qnn"):
        return
    for name, conv in list(model.named_modules()):
        if isinstance(conv, nn.Conv2d) and name != "stem":
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, _lowered(conv, task, info))


def _lowered(conv: nn.Conv2d, task: Task, info: ClientInfo) -> nn.Conv2d:
    shape: Any = conv.in_channels, conv.out_channels, conv.kernel_size, conv.stride, conv.padding, conv.dilation
    more: Any = conv.groups, conv.bias is not None, conv.padding_mode
    if info.kind == "bnn":
        return BinaryConv(*shape, *more)
    if not 2 <= info.bits <= 8:
        raise ValueError(f"{info.label} has bits={info.bits}; use 2 to 8 bits")
    lowered = (LsqConv if task.quantiser == "lsq" else DorefaConv)(*shape, *more)
    lowered.set_bits(info.bits)
    return lowered
