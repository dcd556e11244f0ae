"""Fused prediction: the weighted mean of probabilities, and the weight fitted on held-out images."""

import pytest
import torch

from asfedbridge.core.ensemble import EQUAL, fit_weight, mix

OWN = torch.tensor([[2.0, 0.0, -1.0], [0.0, 3.0, 0.0]])
OTHER = torch.tensor([[0.0, 1.0, 0.0], [4.0, 0.0, 1.0]])


@pytest.mark.parametrize("weight", [0.0, 0.25, 0.5, 1.0])
def test_mix_is_the_weighted_mean_of_probabilities(weight: float) -> None:
    expected = weight * OWN.softmax(dim=1) + (1 - weight) * OTHER.softmax(dim=1)
    torch.testing.assert_close(mix(OWN, OTHER, weight).exp(), expected)


def test_probability_zero_does_not_give_nan() -> None:
    sure = torch.tensor([[0.0, -1e4]])
    assert mix(sure, sure.flip(1), 0.5).exp().tolist() == [[0.5, 0.5]]
    assert torch.isfinite(mix(sure, OTHER[:1, :2], 0.0)).all()


def test_correct_network_gets_all_the_weight() -> None:
    labels = OWN.argmax(dim=1)
    assert fit_weight(OWN, -OWN, labels) == 1.0
    assert fit_weight(-OWN, OWN, labels) == 0.0


def test_equal_networks_get_equal_weights() -> None:
    assert fit_weight(OWN, OWN, torch.tensor([0, 1])) == EQUAL


def test_complementary_networks_are_mixed() -> None:
    """Each is certain about one image and undecided on the other: the optimal weight is neither 0 nor 1."""
    own, other = torch.tensor([[3.0, -3.0], [-0.5, 0.5]]), torch.tensor([[-0.5, 0.5], [3.0, -3.0]])
    assert fit_weight(own, other, torch.tensor([0, 0])) == EQUAL
