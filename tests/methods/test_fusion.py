import pytest
import torch
from torch import Tensor

from asfedbridge.methods.sfedhifi import fuse


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def with_values(rows: int, columns: int, values: list[float], seed: int) -> Tensor:
    """A random matrix with the given singular values."""
    u, _, v = torch.linalg.svd(normal(rows, columns, seed=seed), full_matrices=False)
    return (u[:, : len(values)] * torch.tensor(values)) @ v[: len(values)]


def test_averaged_singular_values_by_hand() -> None:
    """(4, 2) and (2, 1) become (3, 1.5). Singular vectors and their signs stay."""
    narrow, wide = torch.tensor([[4.0, 0.0], [0.0, 2.0]]), torch.tensor([[0.0, 2.0, 0.0], [1.0, 0.0, 0.0]])
    first, second = fuse([narrow, wide], 1.0)
    torch.testing.assert_close(first, torch.tensor([[3.0, 0.0], [0.0, 1.5]]))
    torch.testing.assert_close(second, torch.tensor([[0.0, 3.0, 0.0], [1.5, 0.0, 0.0]]))
    first, second = fuse([-narrow, wide], 1.0)
    torch.testing.assert_close(first, torch.tensor([[-3.0, 0.0], [0.0, -1.5]]))
    torch.testing.assert_close(second, torch.tensor([[0.0, 3.0, 0.0], [1.5, 0.0, 0.0]]))


def test_directions_beyond_the_rank_are_dropped() -> None:
    first, second = fuse([torch.diag(torch.tensor([4.0, 2.0])), torch.diag(torch.tensor([2.0, 1.0]))], 0.5)
    torch.testing.assert_close(first, torch.diag(torch.tensor([3.0, 0.0])))
    torch.testing.assert_close(second, torch.diag(torch.tensor([3.0, 0.0])))


@pytest.mark.parametrize(
    ("shapes", "share", "rank"),
    [
        ([(128, 256), (256, 512), (512, 1024)], 0.25, 32),  # the last convolution of stage 4
        ([(16, 32), (64, 128)], 0.25, 4),
        ([(8, 3), (9, 9)], 1.0, 3),
        ([(3, 3), (9, 9)], 0.1, 1),  # at least one
    ],
)
def test_the_rank_is_a_share_of_the_smallest_side(shapes: list[tuple[int, int]], share: float, rank: int) -> None:
    matrices = [normal(*shape, seed=i) for i, shape in enumerate(shapes)]
    fused = fuse(matrices, share)
    assert [tuple(m.shape) for m in fused] == shapes
    assert [int(torch.linalg.matrix_rank(m, rtol=1e-4)) for m in fused] == [rank] * len(shapes)


def test_matrices_with_equal_singular_values_are_unchanged() -> None:
    values = [5.0, 3.0, 2.0]
    matrices = [with_values(6, 8, values, 1), with_values(12, 10, values, 2)]
    for before, after in zip(matrices, fuse(matrices, 0.5), strict=True):
        torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-5)


def test_matrices_are_cut_to_their_best_low_rank_approximation() -> None:
    values = [5.0, 3.0, 2.0, 1.0]
    matrices = [with_values(6, 8, values, 1), with_values(12, 10, values, 2)]
    for seed, shape, after in zip((1, 2), ((6, 8), (12, 10)), fuse(matrices, 1 / 3), strict=True):
        torch.testing.assert_close(after, with_values(*shape, values[:2], seed), rtol=1e-4, atol=1e-5)
