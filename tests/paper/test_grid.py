"""Cells depend on the scale, the sources and the settings of a bench."""

import pytest

from asfedbridge.core.errors import BadInput
from asfedbridge.paper.experiments import EXPERIMENTS
from asfedbridge.paper.grid import Bench, check_settings, select


def test_scales_keep_the_experiment_and_change_its_size() -> None:
    large, small = (Bench(scale).spec("fml", "cifar100") for scale in ("paper", "cpu"))  # type: ignore[arg-type]
    assert (large.rounds, large.epochs, large.batch_size, large.fleet) == (100, 5, 256, "5*resnet18:ann,5*resnet18:snn")
    assert (large.data, small.data, large.alpha, small.alpha) == ("cifar100", "cifar100", 0.1, 0.1)
    assert small.rounds * small.epochs < large.rounds * large.epochs
    frames = Bench("paper").spec("fml", "cifar10-dvs")
    assert (frames.T, frames.image_size) == (10, 48)


def test_settings_override_the_grid_and_derived_values() -> None:
    bench = Bench("paper", settings={"rounds": 30, "T": 6, "optimiser.lr_ann": 0.3})
    for cell in EXPERIMENTS["motivation"].cells(bench):
        assert (cell.spec.rounds, cell.spec.diagnose_every, cell.spec.optimiser.lr_ann) == (30, 3, 0.3)
    assert {c.spec.T for c in EXPERIMENTS["necessity"].cells(bench)} == {6}  # the grid uses 2, 4 and 8
    plain, changed = (EXPERIMENTS["rates"].cells(b)[0].spec.digest() for b in (Bench("paper"), bench))
    assert plain != changed


def test_a_setting_of_a_method_applies_to_those_that_have_it() -> None:
    bench = Bench("cpu", settings={"method.mu": 0.5, "epochs": 3})
    cells = select(EXPERIMENTS["moderate"].cells(bench), ["fedprox", "isolated-fedprox", "fml"], None)
    assert {(c.row, getattr(c.spec.method, "mu", None), c.spec.epochs) for c in cells} == {
        ("fedprox", 0.5, 3), ("isolated-fedprox", 0.5, 3), ("fml", None, 3),
    }  # fmt: skip
    assert check_settings(bench, cells) == [
        "--set method.mu=0.5 applies to isolated-fedprox, fedprox; not to fml",
    ]
    with pytest.raises(BadInput, match=r"--set method\.mu=0\.5: not a field of fml; did you mean"):
        check_settings(bench, [c for c in cells if c.row == "fml"])


@pytest.mark.parametrize(("key", "option"), [("seed", "--seeds"), ("data", "--data"), ("method", "--only")])
def test_fields_with_their_own_option_cannot_be_set(key: str, option: str) -> None:
    with pytest.raises(BadInput, match=f"--set {key}=1: the experiment sets it; use {option}"):
        Bench("cpu", settings={key: 1})


def test_source_can_replace_a_data_set() -> None:
    bench = Bench("cpu", {"cifar10": "npz:mine.npz"})
    assert [bench.spec("fml", name).data for name in ("cifar10", "cifar100")] == ["npz:mine.npz", "cifar100"]
