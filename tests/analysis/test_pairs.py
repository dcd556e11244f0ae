import statistics

import pytest
import torch

from asfedbridge.analysis.pairs import Block, Correlation, block_means, correlate


def test_block_means_by_hand() -> None:
    """Two ANN and three SNN clients: 1, 3 and 6 pairs, without the diagonal."""
    matrix = torch.tensor(
        [
            [99.0, 1.0, 10.0, 20.0, 30.0],
            [1.0, 99.0, 40.0, 50.0, 60.0],
            [10.0, 40.0, 99.0, 2.0, 3.0],
            [20.0, 50.0, 2.0, 99.0, 7.0],
            [30.0, 60.0, 3.0, 7.0, 99.0],
        ]
    )
    found = block_means(matrix, ["ann", "ann", "snn", "snn", "snn"])
    assert list(found) == ["ann", "snn", "cross"]
    assert found == {"ann": Block(1.0, 1), "snn": Block(4.0, 3), "cross": Block(35.0, 6)}


def test_the_order_of_clients_does_not_matter() -> None:
    matrix = torch.rand(4, 4, generator=torch.Generator().manual_seed(0))
    matrix = matrix + matrix.T
    order = [2, 0, 3, 1]
    kinds = ["ann", "ann", "snn", "snn"]
    there = block_means(matrix, kinds)
    here = block_means(matrix[order][:, order], [kinds[i] for i in order])
    assert here == there
    assert there["cross"].pairs == 4


@pytest.mark.parametrize(
    ("kinds", "blocks"),
    [
        (["ann", "ann"], {"ann": 1}),
        (["snn", "snn", "snn"], {"snn": 3}),
        (["ann", "snn"], {"cross": 1}),
        (["ann"], {}),
        (["ann"] * 5 + ["snn"] * 5, {"ann": 10, "snn": 10, "cross": 25}),
        (["ann", "bnn", "snn"], {"cross": 3}),
    ],
)
def test_a_block_without_pairs_is_absent(kinds: list[str], blocks: dict[str, int]) -> None:
    found = block_means(torch.zeros(len(kinds), len(kinds)), kinds)
    assert {name: block.pairs for name, block in found.items()} == blocks


def test_pairs_without_a_value_are_not_counted() -> None:
    matrix = torch.full((4, 4), torch.nan)
    matrix[0, 2] = matrix[2, 0] = 0.5
    matrix[0, 3] = matrix[3, 0] = torch.inf
    found = block_means(matrix, ["ann", "ann", "snn", "snn"])
    assert found == {"ann": Block(None, 0), "snn": Block(None, 0), "cross": Block(0.5, 1)}


def test_correlation_is_pearsons() -> None:
    x, y = [0.1, 0.7, 0.3, 0.9, 0.2], [31.0, 60.0, 55.0, 71.0, 20.0]
    found = correlate(x, y)
    assert found.n == 5
    assert found.r == pytest.approx(statistics.correlation(x, y), abs=1e-14)
    assert correlate([1, 2, 3], [5.0, 3.0, 1.0]) == Correlation(pytest.approx(-1.0), 3)


def test_no_correlation_for_too_few_runs_or_constant_values() -> None:
    assert correlate([1.0, 2.0], [3.0, 4.0]) == Correlation(None, 2)
    assert correlate([1.0, 1.0, 1.0], [3.0, 4.0, 5.0]) == Correlation(None, 3)
    assert correlate([1.0, None, 3.0, 4.0], [2.0, 9.0, None, 3.0]) == Correlation(None, 2)
    assert correlate([], []) == Correlation(None, 0)
