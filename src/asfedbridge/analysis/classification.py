"""Quality of predictions: accuracy by class, confusion matrix, calibration."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

BINS = 15


@dataclass(frozen=True)
class Quality:
    """Metrics of predictions for one set of images. Accuracies are in percent."""

    accuracy: float
    per_class: list[float | None]  # None: no image of this class
    confusion: list[list[int]]  # rows: the label, columns: the prediction
    ece: float  # expected calibration error, in percent


def judge(logits_BC: Tensor, labels_B: Tensor) -> Quality:
    classes = logits_BC.shape[1]
    predicted = logits_BC.argmax(dim=1)
    counts = torch.bincount(labels_B * classes + predicted, minlength=classes * classes).view(classes, classes)
    right, total = counts.diagonal().tolist(), counts.sum(dim=1).tolist()
    return Quality(
        accuracy=100 * sum(right) / len(labels_B),
        per_class=[100 * r / n if n else None for r, n in zip(right, total, strict=True)],
        confusion=counts.tolist(),
        ece=100 * calibration_error(logits_BC, labels_B),
    )


def calibration_error(logits_BC: Tensor, labels_B: Tensor, bins: int = BINS) -> float:
    """sum_b |B_b| / N * |accuracy(B_b) - confidence(B_b)| (Guo et al., ICML 2017).

    Confidence is the largest probability; bin b of M contains confidences in ((b - 1) / M, b / M].
    """
    confidence, predicted = F.softmax(logits_BC.double(), dim=1).max(dim=1)
    right = (predicted == labels_B).double()
    place = (confidence * bins).ceil().long().clamp(1, bins) - 1
    sums = [torch.zeros(bins, dtype=torch.float64).index_add_(0, place, values) for values in (right, confidence)]
    return float((sums[0] - sums[1]).abs().sum() / len(labels_B))
