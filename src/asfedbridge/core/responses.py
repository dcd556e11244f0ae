"""Data-free training of linear layers on the responses of other layers to noise.

A layer is {"weight": [outputs, ...], "bias": [outputs]}; the bias is optional. A convolution is treated as a linear map
of input patches. All groups of a grouped convolution receive the same noise.
"""

import math
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from asfedbridge.core.payload import Payload


def noise_rows(weight: Tensor, batch: int, positions: int, generator: torch.Generator) -> Tensor:
    """Noise inputs of a layer, one per row: patches of N(0, 1) images with ``positions`` outputs along each side."""
    kernel = weight.shape[2:]
    images = torch.randn(batch, weight.shape[1], *(k + positions - 1 for k in kernel), generator=generator)
    if not kernel:
        return images
    return F.unfold(images, tuple(kernel)).transpose(1, 2).flatten(0, 1)


def largest_rate(shape: tuple[int, ...], rows: int, per_output: bool) -> float:
    """The learning rate at which ``align`` starts to diverge, in the mean square, for a weight of this shape.

    With S = x'x / rows for n white inputs, a step multiplies the error by I - 2 lr S, and
    E[S^2] = (1 + (n + 1) / rows) I.
    """
    outputs, *inputs = shape
    return (outputs if per_output else 1) / (1 + (math.prod(inputs) + 1) / rows)


def align(layer: Payload, teacher: Payload, rows: Iterable[Tensor], lr: float, per_output: bool) -> Payload:
    """SGD on ||teacher(x) - layer(x)||^2, one step per batch of ``rows``: mean over rows, sum over outputs.

    With ``per_output`` the loss is the mean over outputs. For several teachers pass their mean: the averaged loss has
    the same gradient.
    """
    weight = (layer["weight"] - teacher["weight"]).flatten(1)  # the remaining difference; the response is linear in it
    bias = layer["bias"] - teacher["bias"] if "bias" in layer else None
    for x in rows:
        step = 2 * lr / len(x) / (len(weight) if per_output else 1)
        response = x @ weight.T if bias is None else torch.addmm(bias, x, weight.T)
        weight.addmm_(response.T, x, alpha=-step)
        if bias is not None:
            bias.sub_(response.sum(dim=0), alpha=step)
    aligned = {"weight": teacher["weight"] + weight.view_as(layer["weight"])}
    return aligned if bias is None else aligned | {"bias": teacher["bias"] + bias}
