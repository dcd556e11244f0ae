"""Linear centred kernel alignment (Kornblith et al., ICML 2019) between clients' features of the same images."""

from collections.abc import Sequence

import torch
from torch import Tensor


def linear_cka(features: Sequence[Tensor]) -> Tensor:
    """||X^T Y||_F^2 / (||X^T X||_F ||Y^T Y||_F) for all pairs, each X [M, D] centred over its M examples.

    1 for features that differ by rotation, scale and shift. NaN if a client's features are constant.
    """
    centred = [x.double() - x.double().mean(dim=0) for x in features]
    alignment_NN = torch.empty(len(centred), len(centred), dtype=torch.float64)
    for j, y in enumerate(centred):
        for i, x in enumerate(centred[: j + 1]):
            alignment_NN[i, j] = alignment_NN[j, i] = (x.T @ y).square().sum()
    norm_N = alignment_NN.diag().sqrt()
    return alignment_NN / torch.outer(norm_N, norm_N)
