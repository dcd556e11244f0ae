import math

import pytest
import torch
from torch import Tensor

from asfedbridge.core.seeds import generator
from asfedbridge.models.attention import Attention, Receiver, Transmitter
from asfedbridge.models.parts import build

LOG3 = math.log(3)
BOTH = [Receiver, Transmitter]


def make(kind: type[Attention], feature_dim: int = 8, tokens: int = 2, seed: int = 0) -> Attention:
    attention = build(lambda: kind(feature_dim, tokens), generator(seed, "test"))
    assert isinstance(attention, kind)
    return attention


@torch.no_grad()
def plain(kind: type[Attention], adapt: float = 1.0, value: float = 1.0) -> Attention:
    """Two tokens of width four; every projection is a multiple of the identity."""
    attention = make(kind)
    for map, factor in (
        (attention.adapt, adapt),
        (attention.query, 1.0),
        (attention.key, 1.0),
        (attention.value, value),
    ):
        map.weight.copy_(factor * torch.eye(map.in_features))
    return attention


def token(value: float) -> list[float]:
    return [value] * 4


def test_attention_computed_by_hand() -> None:
    """Keys are (0, ...) and (x, ...) with x = log(3) / 2; V is 8 times the identity. Query (1, 1, 1, 1) scores 0 and
    4x / sqrt(4) = 2x = log 3, so the weights are 1/4 and 3/4. Query (0, ...) gives weights 1/2 and 1/2.
    """
    queries = torch.tensor([token(1.0) + token(0.0)])
    values = torch.tensor([token(0.0) + token(LOG3 / 2)])
    expected = torch.tensor([token(3 / 4 * 8 * LOG3 / 2) + token(1 / 2 * 8 * LOG3 / 2)])
    torch.testing.assert_close(plain(Attention, value=8.0).attend(queries, values), expected)


@pytest.mark.parametrize("kind", BOTH)
def test_source_of_queries_and_values(kind: type[Attention]) -> None:
    """The messenger gives the queries of the receiver and the values of the transmitter. W_d (here 2) scales the local
    feature."""
    messenger, local = torch.tensor([token(1.0) + token(0.0)]), torch.tensor([token(0.0) + token(LOG3 / 4)])
    attention = plain(kind, adapt=2.0)
    if kind is Receiver:  # as above, with values 0 and 2 * log(3) / 4
        expected = torch.tensor([token(3 / 4 * LOG3 / 2) + token(1 / 2 * LOG3 / 2)])
    else:  # queries 0 and log(3) / 2, values 1 and 0
        expected = torch.tensor([token(1 / 2) + token(3 / 4)])
    torch.testing.assert_close(attention(local, messenger), expected)


@pytest.mark.parametrize("kind", BOTH)
def test_matches_torch_attention(kind: type[Attention]) -> None:
    """With random weights."""
    attention = make(kind, feature_dim=12, tokens=3)
    local, messenger = torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(1))
    adapted = local @ attention.adapt.weight.T
    queries, values = (messenger, adapted) if kind is Receiver else (adapted, messenger)
    q, k, v = (
        f.reshape(5, 3, 4) @ map.weight.T
        for f, map in ((queries, attention.query), (values, attention.key), (values, attention.value))
    )
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v).reshape(5, 12)
    torch.testing.assert_close(attention(local, messenger), expected)


@pytest.mark.parametrize("kind", BOTH)
def test_samples_of_a_batch_do_not_interact(kind: type[Attention]) -> None:
    attention = make(kind)
    draws = torch.Generator().manual_seed(1)
    local, messenger = torch.randn(2, 6, 8, generator=draws)
    out: Tensor = attention(local, messenger)
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    torch.testing.assert_close(attention(local[order], messenger[order]), out[order])
    torch.testing.assert_close(attention(local[2:3], messenger[2:3]), out[2:3])
    others = torch.cat([100 * torch.randn(2, 5, 8, generator=draws), torch.stack([local, messenger])[:, 5:]], dim=1)
    torch.testing.assert_close(attention(*others)[5], out[5])


@pytest.mark.parametrize("kind", BOTH)
def test_every_projection_has_a_gradient_and_no_bias(kind: type[Attention]) -> None:
    attention = make(kind)
    assert {key for key, _ in attention.named_parameters()} == {
        f"{m}.weight" for m in ("adapt", "query", "key", "value")
    }
    local, messenger = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(1))
    attention(local, messenger).square().sum().backward()
    for key, p in attention.named_parameters():
        assert p.grad is not None, key
        assert p.grad.abs().max() > 1e-3, key


def test_gradients_match_finite_differences() -> None:
    attention = make(Transmitter, feature_dim=4).double()
    features = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.double)
    local, messenger = (f.requires_grad_() for f in features)
    assert torch.autograd.gradcheck(attention, (local, messenger))
