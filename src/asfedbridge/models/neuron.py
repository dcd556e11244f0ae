"""The leaky integrate-and-fire neuron over T steps, and its ANN twin.

    u_t = decay * v_{t-1} + input_t,   s_t = [u_t >= threshold],   v_t = u_t (1 - s_t)

The membrane is local to ``forward``: there is nothing to reset and nothing in ``state_dict``. In the backward pass the
step function has a surrogate derivative, and the reset is differentiated unless ``detach_reset`` is set.
``lif_reference`` is a plain loop that autograd differentiates. ``lif`` computes the same function as one autograd node,
on the fastest available path (``kernels.dispatch``).
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from asfedbridge.core.task import ClientInfo, Neuron, Task
from asfedbridge.kernels import spikingjelly
from asfedbridge.kernels.dispatch import path_of


def triangle(x: Tensor, gamma: float) -> Tensor:
    """max(0, gamma - |x|) / gamma^2, as in TET (Deng et al., ICLR 2022)."""
    return (gamma - x.abs()).clamp_(min=0.0).div_(gamma**2)


def rectangle(x: Tensor, half_width: float) -> Tensor:
    return (x.abs() < half_width).to(x.dtype).div_(2 * half_width)


def sigmoid(x: Tensor, alpha: float) -> Tensor:
    s = torch.sigmoid(alpha * x)
    return alpha * s * (1 - s)


def atan(x: Tensor, alpha: float) -> Tensor:
    return (alpha / 2) / (1 + (math.pi / 2 * alpha * x).square())


SURROGATES: dict[str, Callable[[Tensor, float], Tensor]] = {
    "triangle": triangle,
    "rectangle": rectangle,
    "sigmoid": sigmoid,
    "atan": atan,
}


class _Spike(torch.autograd.Function):
    """The step function with the surrogate as its derivative. Used by ``lif_reference``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, neuron: Neuron) -> Tensor:
        ctx.save_for_backward(x)
        ctx.neuron = neuron
        return (x >= 0).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return grad * SURROGATES[ctx.neuron.surrogate](x, ctx.neuron.sharpness), None


def lif_reference(input_T: Tensor, neuron: Neuron) -> Tensor:
    """Spikes for ``input_T`` of shape [T, ...], a direct transcription of the equations."""
    v = torch.zeros_like(input_T[0])
    spikes = []
    for current in input_T:
        u = current + neuron.decay * v
        s: Tensor = _Spike.apply(u - neuron.threshold, neuron)
        v = u * (1 - (s.detach() if neuron.detach_reset else s))
        spikes.append(s)
    return torch.stack(spikes)


def _empty_like(input_T: Tensor) -> Tensor:
    """Uninitialised memory in the layout of one step, also if the input is one step expanded to T."""
    folded = input_T.shape[0] * input_T.shape[1], *input_T.shape[2:]
    channels_last = input_T.dim() == 5 and input_T[0].is_contiguous(memory_format=torch.channels_last)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    empty = torch.empty(folded, dtype=input_T.dtype, device=input_T.device, memory_format=layout)
    empty_T: Tensor = empty.unflatten(0, tuple(input_T.shape[:2]))
    return empty_T


class _Lif(torch.autograd.Function):
    """The loop as one autograd node. Saves the membranes before the reset, and the spikes (as does the next layer)."""

    @staticmethod
    def forward(ctx: Any, input_T: Tensor, neuron: Neuron) -> Tensor:
        u_T, s_T = _empty_like(input_T), _empty_like(input_T)
        u_T[0].copy_(input_T[0])
        torch.ge(u_T[0], neuron.threshold, out=s_T[0])
        for before, u, s_before, s, current in zip(u_T, u_T[1:], s_T, s_T[1:], input_T[1:], strict=False):
            torch.addcmul(before, before, s_before, value=-1.0, out=u)  # the membrane after the reset
            torch.add(current, u.mul_(neuron.decay), out=u)  # rounded twice, like the reference
            torch.ge(u, neuron.threshold, out=s)
        ctx.save_for_backward(u_T, s_T)
        ctx.neuron = neuron
        return s_T

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_T: Tensor) -> tuple[Tensor, None]:
        u_T, s_T = ctx.saved_tensors
        neuron: Neuron = ctx.neuron
        slope_T = SURROGATES[neuron.surrogate](u_T - neuron.threshold, neuron.sharpness)
        out_T = grad_T * slope_T
        if len(u_T) > 1:
            # dv_t/du_t = 1 - s_t - u_t s'_t: the factor from the next step's gradient to this one's
            through_T = (1 - s_T[:-1]).mul_(neuron.decay)
            if not neuron.detach_reset:
                through_T.addcmul_(u_T[:-1], slope_T[:-1], value=-neuron.decay)
            for t in reversed(range(len(through_T))):
                out_T[t].addcmul_(out_T[t + 1], through_T[t])
        return out_T, None


def lif(input_T: Tensor, neuron: Neuron) -> Tensor:
    """Same spikes as ``lif_reference``, same gradients up to rounding. Preserves the memory format of the input."""
    out: Tensor
    path = path_of(input_T)
    if path == "numba":
        from asfedbridge.kernels import norm_lif

        out = norm_lif.lif(input_T.flatten(0, 1), len(input_T), neuron).unflatten(0, tuple(input_T.shape[:2]))
        return out
    if path == "spikingjelly" and spikingjelly.fits(neuron):
        return spikingjelly.lif_spikingjelly(input_T, neuron)
    out = _Lif.apply(input_T, neuron)
    return out


class Spiking(nn.Module):
    """LIF activation of tensors with time folded into the batch dimension, [T * B, ...].

    With ``frames``, the network's input has time folded into its channels, [B, T * C, ...].
    """

    def __init__(self, steps: int, neuron: Neuron, frames: bool = False) -> None:
        super().__init__()
        self.steps = steps
        self.neuron = neuron
        self.frames = frames

    def forward(self, x: Tensor) -> Tensor:
        return lif(x.unflatten(0, (self.steps, -1)), self.neuron).flatten(0, 1)

    def after(self, norm: nn.Module, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """The activation of norm(x) [+ residual]."""
        out = self._fused(norm, x, residual, shared=False)
        return out if out is not None else self(norm(x) if residual is None else norm(x) + residual)

    def read(self, stem: nn.Module, norm: nn.Module, x_BCHW: Tensor, pool: nn.Module | None = None) -> Tensor:
        """The first activation of a network. Each step receives its own frame, or every step the same static image."""
        if pool is not None:
            pooled: Tensor = self(self.currents(stem, norm, x_BCHW, pool))
            return pooled
        if self.frames:
            return self.after(norm, stem(unfold(x_BCHW, self.steps)))
        x_B = stem(x_BCHW)
        out = self._fused(norm, x_B, None, shared=True)
        return out if out is not None else self(torch.cat([norm(x_B)] * self.steps))

    def currents(self, stem: nn.Module, norm: nn.Module, x_BCHW: Tensor, pool: nn.Module | None = None) -> Tensor:
        """Input currents of the first neurons, [T * B, ...]. The stem processes a static image once, not T times."""
        if self.frames:
            return _pooled(pool, norm(stem(unfold(x_BCHW, self.steps))))
        return torch.cat([_pooled(pool, norm(stem(x_BCHW)))] * self.steps)

    def between(self, x: Tensor) -> Tensor:
        """The activation between a sum and the convolution that follows it."""
        out: Tensor = self(x)
        return out

    def _fused(self, norm: nn.Module, x: Tensor, residual: Tensor | None, shared: bool) -> Tensor | None:
        """Norm and neuron as one autograd node, or None if no kernel supports this norm and tensor."""
        if path_of(x) == "numba":
            from asfedbridge.kernels import norm as norms
            from asfedbridge.kernels import norm_lif

            if norms.fits(norm, x):
                return norm_lif.norm_lif(norm, x, residual, self.steps, self.neuron, shared)
        return None

    def convolve(self, conv: nn.Conv2d, spikes: Tensor) -> Tensor:
        """``conv`` of this activation's output, which must be zeros and ones."""
        sparse = _sparse_conv_for(conv, spikes)
        out: Tensor = sparse.convolve(conv, spikes) if sparse else conv(spikes)
        return out

    def fork(self, conv: nn.Conv2d, side: nn.Sequential, spikes: Tensor) -> tuple[Tensor, Tensor]:
        """``conv(spikes)`` and ``side(spikes)``. ``side`` is a shortcut: empty, or a 1x1 convolution and a norm."""
        sparse = _sparse_conv_for(conv, spikes)
        if not sparse:
            return conv(spikes), side(spikes)
        if not len(side):
            both: tuple[Tensor, Tensor] = sparse.fork(conv, None, spikes)
            return both
        out, shortcut = sparse.fork(conv, side[0], spikes)
        return out, side[1](shortcut)


def unfold(x_BCHW: Tensor, steps: int) -> Tensor:
    """Converts [B, T * C, H, W], where a step's channels are adjacent, to [T * B, C, H, W] in channels-last layout."""
    x_BTCHW: Tensor = x_BCHW.unflatten(1, (steps, -1))
    return x_BTCHW.permute(1, 0, 3, 4, 2).flatten(0, 1).movedim(-1, 1)  # one copy


def _sparse_conv_for(conv: nn.Conv2d, spikes: Tensor) -> Any:
    """The module ``sparse_conv`` if it can compute this convolution, otherwise None."""
    if path_of(spikes) == "numba" and len(spikes):
        from asfedbridge.kernels import sparse_conv

        if sparse_conv.fits(conv):
            return sparse_conv
    return None


def _pooled(pool: nn.Module | None, x: Tensor) -> Tensor:
    out: Tensor = x if pool is None else pool(x)
    return out


class Continuous(nn.Module):
    """The ANN counterpart of ``Spiking``: ReLU, one step."""

    steps = 1

    def forward(self, x: Tensor) -> Tensor:
        return x.relu()

    def convolve(self, conv: nn.Conv2d, x: Tensor) -> Tensor:
        out: Tensor = conv(x)
        return out

    def fork(self, conv: nn.Conv2d, side: nn.Sequential, x: Tensor) -> tuple[Tensor, Tensor]:
        return conv(x), side(x)

    def after(self, norm: nn.Module, x: Tensor, residual: Tensor | None = None) -> Tensor:
        return self.between(norm(x) if residual is None else norm(x) + residual)

    def read(self, stem: nn.Module, norm: nn.Module, x_BCHW: Tensor, pool: nn.Module | None = None) -> Tensor:
        return self.between(self.currents(stem, norm, x_BCHW, pool))

    def currents(self, stem: nn.Module, norm: nn.Module, x_BCHW: Tensor, pool: nn.Module | None = None) -> Tensor:
        return _pooled(pool, norm(stem(x_BCHW)))

    def between(self, x: Tensor) -> Tensor:
        """The activation between a sum and the convolution that follows it."""
        return x.relu()


class Unrectified(Continuous):
    """The activation of a binary network. Its convolutions take the sign of their input, which would be constant
    after a ReLU, so sums stay unrectified. The projected feature has full precision and a ReLU, as in an ANN.
    """

    def between(self, x: Tensor) -> Tensor:
        return x


def make_activation(task: Task, info: ClientInfo) -> Spiking | Continuous:
    """The activation of this client's backbone."""
    if info.kind == "snn":
        return Spiking(info.T, task.neuron, task.frames > 1)
    return Unrectified() if info.kind == "bnn" else Continuous()


def stem_channels(task: Task, info: ClientInfo) -> int:
    """Input channels of the stem: those of one frame for an SNN, otherwise those of all frames."""
    return task.channels // task.frames if info.kind == "snn" else task.channels
