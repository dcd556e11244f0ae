"""A run is matched to its cell of the paper's tables and to no other."""

from dataclasses import replace

import pytest

from asfedbridge.paper.grid import Bench
from asfedbridge.paper.lookup import find_cell
from asfedbridge.runs.spec import apply_overrides


@pytest.mark.parametrize("scale", ["cpu", "paper"])
@pytest.mark.parametrize("data", ["cifar10", "npz:some/way/cifar10.npz"])
def test_cell_is_found_for_any_seed_and_source(scale: str, data: str) -> None:
    spec = replace(Bench(scale).spec("fml", "cifar10"), data=data, seed=7)  # type: ignore[arg-type]
    place = find_cell(spec)
    assert place is not None
    assert (place.experiment, place.scale) == ("main", scale)
    assert dict(place.cell.reported) == {"ann": 91.70, "snn": 89.50, "all": 90.60}


def test_an_ablation_is_not_the_complete_method() -> None:
    place = find_cell(Bench("cpu").spec("as-fedbridge", "cifar100", method__pspr=False))
    assert place is not None
    assert (place.experiment, place.cell.row, place.cell.reported["all"]) == ("ablation", "no-pspr", 69.25)


@pytest.mark.parametrize("change", [{"rounds": 31}, {"data": "digits"}, {"data": "npz:mine.npz"}, {"holdout": 0.2}])
def test_other_specification_has_no_cell(change: dict[str, object]) -> None:
    assert find_cell(apply_overrides(Bench("cpu").spec("fml", "cifar10"), change)) is None


def test_other_data_set_of_the_same_shape_has_no_cell() -> None:
    """A CIFAR-100 file with CIFAR-10's sizes."""
    assert find_cell(replace(Bench("cpu").spec("fml", "cifar10"), data="cifar100")) is None
