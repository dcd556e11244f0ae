import numpy as np

from asfedbridge.data.apportion import apportion, cut, deal


def test_largest_remainder_then_lower_client() -> None:
    assert apportion(np.array([5, 5, 5, 5]), 6).tolist() == [2, 2, 1, 1]
    assert apportion(np.array([1, 6, 3]), 4).tolist() == [1, 2, 1]  # quotas 0.4, 2.4, 1.2: a tie at 0.4
    assert apportion(np.array([0, 7, 3]), 5).tolist() == [0, 4, 1]  # 3.5 and 1.5
    assert cut(np.array([0.25, 0.25, 0.5]), 10).tolist() == [2, 3, 5]  # edges floor(2.5), floor(5.0)
    assert cut(np.full(10, 0.1), 10).sum() == 10


def test_random_offset_keeps_shares_on_average() -> None:
    share, offsets = np.array([0.05, 0.37, 0.58]), np.linspace(0, 1, 1000, endpoint=False)
    counts = np.stack([cut(share, 5, offset) for offset in offsets])
    assert (counts.sum(1) == 5).all()
    assert (np.abs(counts - share * 5) < 1).all()
    assert np.allclose(counts.mean(0), share * 5, atol=0.002)


def test_deal_gives_every_client_its_count_of_each_class() -> None:
    members, held = [np.arange(0, 5), np.arange(5, 12)], np.array([[2, 3], [7, 0]])
    first, second = deal(np.random.default_rng(0), members, held)
    assert ((first < 5).sum(), (first >= 5).sum(), (second < 5).sum(), len(second)) == (2, 7, 3, 3)
    assert sorted([*first, *second]) == list(range(12))
