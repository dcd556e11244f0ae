import itertools

import pytest
import torch

from asfedbridge.core.seeds import generator, seed

PLACES = [
    (42,),
    (43,),
    (42, "client", 3),
    (42, "client", 4),
    (42, "client", "3"),
    (42, 3, "client"),
    (42, "client", 3, "round", 7),
    (42, "client", 3, "round", 7, "noise"),
    (42, "client", 37, "round", "noise"),
]


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ((42,), 7014992390951794165),
        ((42, "backbone"), 1471644562440282291),
        ((42, "client", 3, "round", 7, "noise"), 1588857204714565934),
        ((0, "partition", 10), 2015880403182386590),
    ],
)
def test_seeds_never_change(place: tuple[int | str, ...], value: int) -> None:
    """Changing a seed would make all recorded runs irreproducible."""
    assert seed(*place) == value


def test_places_have_different_seeds() -> None:
    for one, other in itertools.combinations(PLACES, 2):
        assert seed(*one) != seed(*other), (one, other)


def test_number_and_its_text_have_different_seeds() -> None:
    assert seed(42, 1) != seed(42, "1")


def test_seeds_fit_a_torch_generator() -> None:
    assert all(0 <= seed(run, "x") < 2**63 for run in range(200))
    assert max(seed(run, "x") for run in range(200)) >= 2**62  # the high bits are used


def test_generators_are_reproducible_and_do_not_use_the_global_one() -> None:
    before = torch.get_rng_state()
    one, same, other = (torch.randn(5, generator=generator(42, "a", i)) for i in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), before)
