"""Finds the cell of the paper's tables that a run corresponds to."""

from dataclasses import replace
from functools import cache
from pathlib import PurePath
from typing import NamedTuple

from asfedbridge.paper.experiments import ALL_DATA, EXPERIMENTS
from asfedbridge.paper.grid import Bench, Cell, Scale
from asfedbridge.runs import Spec

SCALES: tuple[Scale, ...] = ("paper", "cpu")  # smoke uses digits, which is not in the paper


class Place(NamedTuple):
    experiment: str
    scale: Scale
    cell: Cell


def find_cell(spec: Spec) -> Place | None:
    """The first cell with a reported value whose specification equals this one except for the seed and the data source.

    A file counts as a data set of the paper if it has its name: npz:some/way/cifar10.npz.
    """
    name = _data_name(spec.data)
    return _places().get((name, _identity(spec))) if name else None


def _data_name(data: str) -> str:
    kind, colon, path = data.partition(":")
    name = PurePath(path).name.removesuffix(".npz") if colon else kind
    return name if name in ALL_DATA else ""


def _identity(spec: Spec) -> str:
    return replace(spec, data="digits", seed=0).digest()


@cache
def _places() -> dict[tuple[str, str], Place]:
    found: dict[tuple[str, str], Place] = {}
    for experiment in EXPERIMENTS.values():
        for scale in SCALES:
            for cell in experiment.cells(Bench(scale)):
                if cell.reported:
                    key = (cell.spec.data, _identity(cell.spec))
                    found.setdefault(key, Place(experiment.name, scale, cell))
    return found
