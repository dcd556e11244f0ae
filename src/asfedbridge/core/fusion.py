"""One matrix's knowledge for matrices of other sizes: shared singular values, own singular directions."""

from collections.abc import Sequence

import torch
from torch import Tensor


def fuse(matrices: Sequence[Tensor], share: float) -> list[Tensor]:
    """Give all matrices the mean of their leading singular values and drop their other directions.

    The rank kept is ``share`` of the smallest side of all. This is Tucker decomposition with the mean of the cores:
    a matrix's core is diagonal, and singular values have no sign that could cancel in the mean.
    """
    rank = max(1, round(share * min(min(m.shape) for m in matrices)))
    parts = [torch.linalg.svd(m, full_matrices=False) for m in matrices]
    mean = torch.stack([values[:rank] for _, values, _ in parts]).mean(dim=0)
    return [(u[:, :rank] * mean) @ v[:rank] for u, _, v in parts]
