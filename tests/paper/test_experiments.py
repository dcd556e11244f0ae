"""Every experiment of the paper is there, its cells are valid runs, and its numbers are the paper's."""

from pathlib import Path

import pytest

from asfedbridge.core.errors import BadInput
from asfedbridge.core.method import METHODS
from asfedbridge.paper import tables
from asfedbridge.paper.experiments import (
    ABLATIONS,
    COMPARED,
    EXPERIMENTS,
    MAIN,
    Bench,
    check_settings,
    select,
)
from asfedbridge.runs.run import prepare

NAMES = [
    *("motivation", "main", "iid", "moderate", "scale", "architecture", "composition", "necessity", "lowbit"),
    *("ablation", "bridge-width", "cka", "gradients", "mmd", "rates", "communication"),
    *("averaging", "beyond"),
]


def test_every_experiment_has_a_name_a_title_and_a_claim() -> None:
    assert set(EXPERIMENTS) == {*NAMES, "computation"}
    for name, experiment in EXPERIMENTS.items():
        assert experiment.name == name
        assert experiment.title
        assert experiment.claim.endswith((".", ")"))


def test_no_method_is_missing_from_the_main_table() -> None:
    assert set(MAIN) == set(METHODS)


@pytest.mark.parametrize("name", NAMES)
def test_cells_are_distinct_and_every_smoke_cell_can_be_set_up(name: str, tmp_path: Path) -> None:
    for scale in ("paper", "cpu", "smoke"):
        cells = EXPERIMENTS[name].cells(Bench(scale))  # type: ignore[arg-type]
        assert len({(c.row, c.column) for c in cells}) == len(cells) > 0
    if name == "composition":
        cells = [cell for cell in cells if cell.column in ("1 SNN", "9 SNN")]
    for spec in {cell.spec.digest(): cell.spec for cell in cells}.values():
        prepare(spec, tmp_path)  # refuses what cannot run


def test_scales_keep_the_experiment_and_change_its_size() -> None:
    large, small = (Bench(scale).spec("fml", "cifar100") for scale in ("paper", "cpu"))  # type: ignore[arg-type]
    assert (large.rounds, large.epochs, large.batch_size, large.fleet) == (100, 5, 256, "5*resnet18:ann,5*resnet18:snn")
    assert (large.data, small.data, large.alpha, small.alpha) == ("cifar100", "cifar100", 0.1, 0.1)
    assert small.rounds * small.epochs < large.rounds * large.epochs
    frames = Bench("paper").spec("fml", "cifar10-dvs")
    assert (frames.T, frames.image_size) == (10, 48)


def test_smoke_cells_have_no_reported_values() -> None:
    for name in NAMES:
        assert not any(cell.reported for cell in EXPERIMENTS[name].cells(Bench("smoke")))
    assert EXPERIMENTS["main"].cells(Bench("cpu"))[0].reported


def test_composition_offers_every_method_and_compares_four_by_default() -> None:
    composition = EXPERIMENTS["composition"]
    cells = composition.cells(Bench("paper"))
    assert {c.row for c in cells} == set(METHODS)
    assert [c.row for c in select(cells, composition.rows, ["3 SNN"])] == list(COMPARED)
    assert [c.row for c in select(cells, ["as-fedbridge", "mh-pflid"], ["3 SNN"])] == ["mh-pflid", "as-fedbridge"]


def test_fedfree_exchanges_prefixes_on_event_frames_only() -> None:
    cells = EXPERIMENTS["main"].cells(Bench("paper"))
    rules = {c.column: c.spec.method.mismatch for c in cells if c.row == "fedfree"}  # type: ignore[attr-defined]
    assert rules == {"cifar10": "refuse", "cifar100": "refuse", "tiny-imagenet": "refuse", "cifar10-dvs": "prefix"}


def test_settings_override_the_grid_and_reach_what_it_derives() -> None:
    bench = Bench("paper", settings={"rounds": 30, "T": 6, "optimiser.lr_ann": 0.3})
    for cell in EXPERIMENTS["motivation"].cells(bench):
        assert (cell.spec.rounds, cell.spec.diagnose_every, cell.spec.optimiser.lr_ann) == (30, 3, 0.3)
    assert {c.spec.T for c in EXPERIMENTS["necessity"].cells(bench)} == {6}  # the grid's own are 2, 4 and 8
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
def test_what_an_option_sets_cannot_be_set_twice(key: str, option: str) -> None:
    with pytest.raises(BadInput, match=f"--set {key}=1: the experiment sets it; use {option}"):
        Bench("cpu", settings={key: 1})


def test_a_source_can_stand_for_a_data_set() -> None:
    bench = Bench("cpu", {"cifar10": "npz:mine.npz"})
    assert [bench.spec("fml", name).data for name in ("cifar10", "cifar100")] == ["npz:mine.npz", "cifar100"]


def test_fleets_follow_the_scale() -> None:
    def fleets(name: str, scale: str) -> set[str]:
        return {c.spec.fleet for c in EXPERIMENTS[name].cells(Bench(scale))}  # type: ignore[arg-type]

    assert "9*resnet18@0.125:ann,1*resnet18@0.125:snn" in fleets("composition", "cpu")
    assert len(fleets("composition", "paper")) == 9
    assert fleets("necessity", "paper") == {
        *(f"10*resnet18:{kind}" for kind in ("bnn", "snn", "ann")),
        *(f"5*resnet18:ann,5*resnet18:{kind}" for kind in ("bnn", "snn")),
    }


def test_ablations_switch_off_one_part_each() -> None:
    cells = {c.row: c.spec.method for c in EXPERIMENTS["ablation"].cells(Bench("paper"))}
    whole = cells.pop("complete")
    for name, method in cells.items():
        changed = [key for key in vars(whole) if vars(whole)[key] != vars(method)[key]]
        assert len(changed) == len(ABLATIONS[name]) == 1, name


def test_reported_means_fit_their_columns() -> None:
    """The paper's means are those of the two columns, but for the rows that methods.md names as odd."""
    odd = set()
    for table in (tables.MAIN, tables.IID, tables.MODERATE, tables.SCALE, tables.ARCHITECTURE):
        for data, rows in table.items():
            odd |= {(data, m) for m, (ann, snn, mean) in rows.items() if abs((ann + snn) / 2 - mean) > 0.011}
    assert odd == {
        ("cifar10", "as-fedbridge"),
        ("cifar100", "as-fedbridge"),
        ("tiny-imagenet", "fedfree"),
        *(("cifar10-dvs", m) for m in ("isolated-fedavg", "isolated-fedprox", "fedavg", "fedprox", "fedtgp")),
    }
    for ann, snn, mean in [*tables.ABLATION.values(), *tables.BRIDGE_WIDTH.values()]:
        assert abs((ann + snn) / 2 - mean) <= 0.011
