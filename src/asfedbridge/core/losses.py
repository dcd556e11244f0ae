"""All losses of the paper. Suffixes give shapes: T steps, B examples, C classes.

An ANN has T = 1. Means over T are taken only where the formula has them. Half-precision logits are converted to
float32.
"""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

TET_REFERENCE = 1.0  # V_tet of Deng et al. (ICLR 2022), there equal to the firing threshold


def widen(x: Tensor) -> Tensor:
    """Convert half precision to float32; return other tensors unchanged."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def cross_entropy(logits_BC: Tensor, y_B: Tensor) -> Tensor:
    return F.cross_entropy(widen(logits_BC), y_B)


def tet(logits_TBC: Tensor, y_B: Tensor, weight: float, reference: float = TET_REFERENCE) -> Tensor:
    """Temporal efficient training: every time step is supervised and regularised towards ``reference``.

    (1/T) sum_t [(1 - weight) CE(Z^t, y) + weight MSE(Z^t, reference)], Deng et al., ICLR 2022.
    """
    logits_TBC, steps = widen(logits_TBC), logits_TBC.shape[0]
    ce = F.cross_entropy(logits_TBC.flatten(0, 1), y_B.repeat(steps))
    return (1 - weight) * ce + weight * (logits_TBC - reference).square().mean()


def distillation(student_BC: Tensor, teacher_BC: Tensor, temperature: float, chosen_B: Tensor | None = None) -> Tensor:
    """tau^2 KL(softmax(teacher / tau) || softmax(student / tau)): sum over classes, mean over the batch.

    No gradient reaches the teacher. Examples outside ``chosen_B`` contribute zero to the mean.
    """
    student = F.log_softmax(widen(student_BC) / temperature, dim=1)
    teacher = F.log_softmax(widen(teacher_BC.detach()) / temperature, dim=1)
    if chosen_B is None:
        return temperature**2 * F.kl_div(student, teacher, reduction="batchmean", log_target=True)
    each_B = F.kl_div(student, teacher, reduction="none", log_target=True).sum(dim=1)
    return temperature**2 * (each_B * chosen_B).mean()


def smooth_with_noise(logits_BC: Tensor, strength: float, noise_BC: Tensor) -> Tensor:
    """Centred noise-smoothed logits (NLD, Liu et al., AAAI 2026): Z + strength * sg(std over classes) * noise.

    ``noise_BC`` is standard normal, drawn anew for every batch. The standard deviation is the unbiased estimate.
    """
    scale_B1 = logits_BC.detach().std(dim=1, keepdim=True)
    return logits_BC + strength * scale_B1 * noise_BC


def squared_distance(tensors: Iterable[Tensor], anchors: Iterable[Tensor]) -> Tensor:
    """||w - w_anchor||^2 summed over all tensors, without a factor (FedProx multiplies by mu / 2)."""
    return torch.stack([(w - anchor).square().sum() for w, anchor in zip(tensors, anchors, strict=True)]).sum()
