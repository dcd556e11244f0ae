"""A run finds its cell of the paper's tables, and only its own."""

from dataclasses import replace

import pytest

from asfedbridge.paper.experiments import Bench
from asfedbridge.paper.lookup import find_cell
from asfedbridge.runs.spec import apply_overrides


@pytest.mark.parametrize("scale", ["cpu", "paper"])
@pytest.mark.parametrize("data", ["cifar10", "npz:some/way/cifar10.npz"])
def test_whatever_the_seed_and_the_source(scale: str, data: str) -> None:
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
def test_another_run_is_no_cell(change: dict[str, object]) -> None:
    assert find_cell(apply_overrides(Bench("cpu").spec("fml", "cifar10"), change)) is None


def test_another_data_set_in_the_same_shape_is_no_cell() -> None:
    """CIFAR-100's file under CIFAR-10's sizes."""
    assert find_cell(replace(Bench("cpu").spec("fml", "cifar10"), data="cifar100")) is None
