"""Every loss of the paper, once. Logits carry their shape: T steps, B examples, C classes.

An ANN is the case T = 1; a mean over T is taken only where a formula says so. Logits of half precision are read as
float32.
"""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

TET_REFERENCE = 1.0  # V_tet: the constant of Deng et al. (ICLR 2022), equal to the firing threshold there


def widen(x: Tensor) -> Tensor:
    """Half precision as float32; other tensors as they are."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def cross_entropy(logits_BC: Tensor, y_B: Tensor) -> Tensor:
    return F.cross_entropy(widen(logits_BC), y_B)


def tet(logits_TBC: Tensor, y_B: Tensor, weight: float, reference: float = TET_REFERENCE) -> Tensor:
    """Temporal efficient training: every step is supervised on its own, and held near ``reference``.

    (1/T) sum_t [(1 - weight) CE(Z^t, y) + weight MSE(Z^t, reference)], Deng et al., ICLR 2022.
    """
    logits_TBC, steps = widen(logits_TBC), logits_TBC.shape[0]
    ce = F.cross_entropy(logits_TBC.flatten(0, 1), y_B.repeat(steps))
    return (1 - weight) * ce + weight * (logits_TBC - reference).square().mean()


def distillation(student_BC: Tensor, teacher_BC: Tensor, temperature: float, chosen_B: Tensor | None = None) -> Tensor:
    """tau^2 KL(softmax(teacher / tau) || softmax(student / tau)): sum over classes, mean over the batch.

    No gradient reaches the teacher. Examples that are not ``chosen_B`` count as zero in the mean.
    """
    student = F.log_softmax(widen(student_BC) / temperature, dim=1)
    teacher = F.log_softmax(widen(teacher_BC.detach()) / temperature, dim=1)
    if chosen_B is None:
        return temperature**2 * F.kl_div(student, teacher, reduction="batchmean", log_target=True)
    each_B = F.kl_div(student, teacher, reduction="none", log_target=True).sum(dim=1)
    return temperature**2 * (each_B * chosen_B).mean()


def smooth_with_noise(logits_BC: Tensor, strength: float, noise_BC: Tensor) -> Tensor:
    """Centred noise-smoothed logits (NLD, Liu et al., AAAI 2026): Z + strength * sg(std over classes) * noise.

    ``noise_BC`` is standard normal and fresh for every batch; the deviation is the unbiased one.
    """
    scale_B1 = logits_BC.detach().std(dim=1, keepdim=True)
    return logits_BC + strength * scale_B1 * noise_BC


def squared_distance(tensors: Iterable[Tensor], anchors: Iterable[Tensor]) -> Tensor:
    """||w - w_anchor||^2 summed over all tensors; the caller brings the factor (FedProx has mu / 2)."""
    return torch.stack([(w - anchor).square().sum() for w, anchor in zip(tensors, anchors, strict=True)]).sum()
