"""Low-bit convolutions: binary ones (BNN) and ones of 2 to 8 bits (QNN), for any network made of ``nn.Conv2d``.

Weights and inputs of every convolution but the stem are quantised in ``forward``. What is trained, sent and averaged
are latent weights in full precision, under the names of the ANN twin. Backward, gradients pass straight through:

- binary, as XNOR-Net (Rastegari et al., ECCV 2016) without its map of input scales: a_o sign(W_o) over sign(x), with
  a_o = mean |W_o| for each output channel and sign(0) = +1. Both pass their gradient where |v| <= 1. XNOR-Net's own
  rule has a_o in the weight's gradient too; that suits Adam, under which scales do not count, but with SGD at the ANN's
  rate it makes latent weights ten to fifty times slower. They stay within [-1, 1]. Padding adds zeros, not signs.
- ``lsq`` (Esser et al., ICLR 2020): s round(clip(v / s, low, high)) with a learnt step size s for the weights of each
  layer and one for its inputs.
- ``dorefa`` (Zhou et al., arXiv 1606.06160): weights through tanh into [-1, 1], inputs cut to [0, 1], nothing learnt.

The inputs of a QNN's convolutions come out of a ReLU: their lowest level is zero.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from asfedbridge.core.task import ClientInfo, Task
from asfedbridge.core.training import Bounded

LEAST_STEP = 1e-6  # a step size stays above 0: that is a step size which has not been measured yet
STEP = ".step_size"
BEYOND_ONE = 1 + 2**-23  # the next float32


def is_step(name: str) -> bool:
    """Whether a tensor of this name is a step size: all of a QNN that its twins do not have."""
    return name.endswith(STEP)


def _passed(grad: Tensor, v: Tensor, low: float, high: float) -> Tensor:
    """The gradient where low < v < high, zero elsewhere: a single pass, many times faster than a mask."""
    out: Tensor = torch.ops.aten.hardtanh_backward(grad, v, low, high)
    return out


def _sign(v: Tensor) -> Tensor:
    """-1 and +1; of zero, +1."""
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
        return _passed(grad, x, -BEYOND_ONE, BEYOND_ONE)


class _ScaledSign(_Sign):
    """Signs of a weight with a scale for each output channel; backward as if there were none."""

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
        # d out / d step = round(v / step) - v / step inside, the nearer end of the range outside:
        # everywhere out / step, and inside less v / step.
        slope = torch.dot(_flat(grad), _flat(out)) - torch.dot(_flat(inside), _flat(v))
        return inside, slope.mul_(ctx.factor / size), None, None, None


def _flat(x: Tensor) -> Tensor:
    """All values in the order in which channels-last layout has them."""
    return x.movedim(1, -1).reshape(-1)


class _DorefaWeight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, levels: int) -> Tensor:
        squashed = weight.tanh()
        largest = squashed.abs().max().clamp_(min=LEAST_STEP)
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
    levels: int  # above the lowest

    def set_bits(self, bits: int) -> None:
        self.levels = 2**bits - 1

    def forward(self, x: Tensor) -> Tensor:
        weight = _DorefaWeight.apply(self.weight, self.levels)
        out: Tensor = self._conv_forward(_DorefaInput.apply(x, self.levels), weight, self.bias)
        return out


class Lsq(Bounded):
    """A quantiser with its step size; zero until the first training batch has been seen.

    So fresh models hold no numbers that come from data, and a server can send them: clients that receive a zero
    measure for themselves, and what they send back is positive, and so is its mean. Evaluation leaves a zero alone.
    """

    def __init__(self, low: int, high: int) -> None:
        super().__init__()
        self.low, self.high = low, high
        self.step_size = nn.Parameter(torch.empty(()))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.step_size)

    def forward(self, v: Tensor, count: int) -> Tensor:
        """``count`` values share the step size, in the weight or for one image: they damp its gradient."""
        step: Tensor = self.step_size
        if step.item() == 0:
            with torch.no_grad():
                measured = (2 / math.sqrt(self.high) * v.abs().mean()).clamp_(min=LEAST_STEP)
                step = step.copy_(measured) if self.training else measured
        out: Tensor = _Lsq.apply(v, step, self.low, self.high, 1 / math.sqrt(count * self.high))
        return out

    def bound(self) -> None:
        self.step_size.clamp_(min=LEAST_STEP)


class LsqConv(nn.Conv2d):
    def set_bits(self, bits: int) -> None:
        self.of_weight = Lsq(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        self.of_input = Lsq(0, 2**bits - 1)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.of_weight(self.weight, self.weight.numel())
        out: Tensor = self._conv_forward(self.of_input(x, math.prod(x.shape[1:])), weight, self.bias)
        return out


def lower_bits(model: nn.Module, task: Task, info: ClientInfo) -> None:
    """Give a network, before it has values, the convolutions of its kind: all but the one called ``stem``."""
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
        raise ValueError(f"{info.label} must have 2 to 8 bits")
    lowered = (LsqConv if task.quantiser == "lsq" else DorefaConv)(*shape, *more)
    lowered.set_bits(info.bits)
    return lowered
