"""Low-bit weights as packed integers."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from asfedbridge.models.lowbit import MIN_STEP, BinaryConv, DorefaConv, LsqConv

LOW_BIT = (BinaryConv, LsqConv, DorefaConv)


class Codes(NamedTuple):
    """A weight is (gain * code + low) * scale."""

    codes: Tensor  # from 0 to 2**width - 1
    width: int  # bits of a code
    gain: int
    low: int
    scale: Tensor


@torch.no_grad()
def weight_codes(conv: nn.Conv2d) -> Codes:
    """The integer codes of a low-bit convolution's weights, before scaling."""
    weight = conv.weight
    if isinstance(conv, BinaryConv):
        return Codes((weight >= 0).long(), 1, 2, -1, weight.abs().mean(dim=(1, 2, 3), keepdim=True))
    if isinstance(conv, LsqConv):
        quantiser = conv.of_weight
        step, low = quantiser.step_size, quantiser.low
        codes = (weight / step).clamp(low, quantiser.high).round().long() - low
        return Codes(codes, (quantiser.high - low).bit_length(), 1, low, step.detach())
    assert isinstance(conv, DorefaConv)
    squashed, half = weight.tanh(), conv.levels / 2
    codes = squashed.mul(half / squashed.abs().max().clamp(min=MIN_STEP)).add(half).round().long()
    return Codes(codes, conv.levels.bit_length(), 2, -conv.levels, torch.tensor(1 / conv.levels))


def pack(codes: Tensor, width: int) -> Tensor:
    """Pack codes into uint8, lowest bit first."""
    bits = ((codes.reshape(-1, 1) >> torch.arange(width)) & 1).flatten()
    bits = torch.cat([bits, bits.new_zeros(-len(bits) % 8)]).view(-1, 8)
    return (bits << torch.arange(8)).sum(1).to(torch.uint8)
