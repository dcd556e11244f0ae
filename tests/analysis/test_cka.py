"""CKA compared with its definition by centred Gram matrices, and on cases with known results."""

import pytest
import torch
from torch import Tensor

from asfedbridge.analysis.cka import linear_cka


def normal(seed: int, examples: int = 200, width: int = 12) -> Tensor:
    return torch.randn(examples, width, generator=torch.Generator().manual_seed(seed))


def by_gram_matrices(x: Tensor, y: Tensor) -> float:
    """HSIC(K, L) / sqrt(HSIC(K, K) HSIC(L, L)) with K = X X^T, L = Y Y^T, centred by H = I - 11^T / M."""
    m = len(x)
    h = torch.eye(m, dtype=torch.float64) - torch.ones(m, m, dtype=torch.float64) / m
    k, l = (h @ (z.double() @ z.double().T) @ h for z in (x, y))

    def hsic(a: Tensor, b: Tensor) -> float:
        return float(sum(a[i] @ b[i] for i in range(m)))

    return hsic(k, l) / (hsic(k, k) * hsic(l, l)) ** 0.5


def test_cka_is_the_alignment_of_centred_gram_matrices() -> None:
    """Features with a mean far from zero, correlated, of unequal widths."""
    base = normal(0)
    features = [base + 5, base @ normal(1, 12, 30) + normal(2, 200, 30) - 3, normal(3, 200, 7).relu()]
    found = linear_cka(features)
    for i, x in enumerate(features):
        for j, y in enumerate(features):
            assert float(found[i, j]) == pytest.approx(by_gram_matrices(x, y), rel=1e-10)
    assert 0.05 < float(found[0, 1]) < 0.95


def test_cka_is_invariant_to_rotation_scale_and_shift() -> None:
    x = normal(0)
    rotation, _ = torch.linalg.qr(normal(1, 12, 12).double())
    found = linear_cka([x, x, 7.5 * x, x + normal(2, 1), x.double() @ rotation])
    assert torch.allclose(found, torch.ones(5, 5, dtype=torch.float64), atol=1e-12)


def test_scaling_one_coordinate_lowers_cka() -> None:
    x = normal(0)
    stretched = x.clone()
    stretched[:, 0] *= 10
    assert float(linear_cka([x, stretched])[0, 1]) < 0.6


def test_independent_features_hardly_align() -> None:
    """About D / M for D independent coordinates and M examples."""
    assert float(linear_cka([normal(0, 2000), normal(1, 2000)])[0, 1]) < 0.02


def test_constant_features_give_nan() -> None:
    found = linear_cka([normal(0), torch.full((200, 12), 0.25)])
    assert float(found[0, 0]) == pytest.approx(1.0)
    assert found[0, 1].isnan()
    assert found[1, 1].isnan()
