import pytest
import torch

from asfedbridge.analysis.classification import calibration_error, judge


def logits_of(probabilities: list[list[float]]) -> torch.Tensor:
    return torch.tensor(probabilities, dtype=torch.float64).log()


def test_confusion_has_labels_in_rows_and_predictions_in_columns() -> None:
    logits = torch.eye(3)[torch.tensor([0, 0, 1, 1])] * 5
    found = judge(logits, torch.tensor([0, 1, 1, 0]))
    assert found.confusion == [[1, 1, 0], [1, 1, 0], [0, 0, 0]]
    assert found.accuracy == 50
    assert found.per_class == [50, 50, None]


def test_calibration_error_by_hand() -> None:
    # Bin (0.6, 0.667] holds two with mean confidence 0.65, one right; bin (0.867, 0.933] one, wrong, 0.9.
    logits = logits_of([[0.64, 0.36], [0.66, 0.34], [0.9, 0.1]])
    expected = (abs(1 - 1.3) + abs(0 - 0.9)) / 3
    assert calibration_error(logits, torch.tensor([0, 1, 1])) == pytest.approx(expected)


def test_the_upper_edge_belongs_to_a_bin() -> None:
    # 0.6 = 9 / 15 ends bin 9, and 0.61 is in bin 10: two bins whose errors do not cancel.
    logits = logits_of([[0.6, 0.4], [0.61, 0.39]])
    assert calibration_error(logits, torch.tensor([0, 1])) == pytest.approx((0.4 + 0.61) / 2)


def test_certain_and_right_is_calibrated() -> None:
    logits = torch.tensor([[100.0, 0.0], [0.0, 100.0]])
    assert judge(logits, torch.tensor([0, 1])).ece == pytest.approx(0)
    assert judge(logits, torch.tensor([1, 0])).ece == pytest.approx(100)
