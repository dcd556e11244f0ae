"""All experiments of the paper exist, their cells are valid runs, and reported values are the paper's."""

from pathlib import Path

import pytest

from asfedbridge.core.method import METHODS
from asfedbridge.paper import tables
from asfedbridge.paper.experiments import ABLATIONS, COMPARED, EXPERIMENTS, MAIN
from asfedbridge.paper.grid import Bench, select
from asfedbridge.runs.setting import prepare

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
        prepare(spec, tmp_path)  # raises if the run is invalid


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
    """The paper's means are those of the two columns, except for known rows."""
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
