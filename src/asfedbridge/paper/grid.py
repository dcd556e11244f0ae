"""Grids of runs: the cells of an experiment, their settings and their selection.

A cell is one entry of a table (or one bar or curve): a row, a column, the specification of its run, and the value that
the paper reports.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from asfedbridge.core import METHODS, BadInput, Point, nearest
from asfedbridge.data import SOURCES
from asfedbridge.runs import Spec, apply_overrides, at_scale, method_fields, parse_fleet

Scale = Literal["paper", "cpu", "smoke"]
CostColumns = Literal["computation", "communication"]  # per example: a forward pass; payloads and a round of training
PAPER_CLIENT = 9  # the client whose firing rates the paper shows: the last SNN client of 5+5


@dataclass(frozen=True)
class Cell:
    row: str
    column: str
    spec: Spec
    reported: Mapping[str, float] = field(default_factory=dict)  # by kind and "all", in percent
    costs: Sequence[float] = ()  # the paper's values, in the columns of the cost table
    point: Point | None = None  # evaluation point; None: ``Method.reports``

    @property
    def title(self) -> str:
        """The column as tables show it. Smoke runs have digits in place of the paper's data sets."""
        other = self.column in SOURCES and self.spec.data in SOURCES and self.spec.data != self.column
        return f"{self.spec.data} (in place of {self.column})" if other else self.column


@dataclass(frozen=True)
class Bench:
    """How an experiment is run: the scale, the sources of the paper's data sets, and the user's settings.

    ``settings`` (dotted keys) override the experiment's own changes. Fields of a method apply to methods that have
    them. ``methods`` and ``data`` are additional rows and columns given by the user.
    """

    scale: Scale = "paper"
    sources: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    methods: tuple[str, ...] = ()
    data: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for key, option in RESERVED.items():
            if key in self.settings:
                raise BadInput(f"--set {key}={self.settings[key]}: the experiment sets it; use {option}")

    def spec(self, method: str, data: str, **changes: Any) -> Spec:
        """The recipe of the scale on a data set of the paper, with changes; ``method__x`` is field x of the method."""
        spec = at_scale(self.scale, method, data)
        spec = replace(spec, data=self.sources.get(data, data if data in self.data else spec.data))
        spec = apply_overrides(spec, {key.replace("__", "."): value for key, value in changes.items()})
        own = {key: value for key, value in self.settings.items() if reaches(key, spec)}
        try:
            return apply_overrides(spec, own)
        except BadInput as error:
            raise BadInput(f"--set, for {method} on {data}: {error}") from None


RESERVED = {"seed": "--seeds", "data": "--data", "method": "--only", "method.name": "--only"}


def reaches(key: str, spec: Spec) -> bool:
    """Whether a setting applies to this specification: true except for fields that its method does not have."""
    head, _, name = key.partition(".")
    return head != "method" or name in method_fields(type(spec.method))


def check_settings(bench: Bench, cells: Sequence[Cell]) -> list[str]:
    """One line for each setting that does not apply to all cells. Raises BadInput if it applies to none."""
    lines = []
    for key, value in bench.settings.items():
        taken = list(dict.fromkeys(c.row for c in cells if reaches(key, c.spec)))
        left = list(dict.fromkeys(c.row for c in cells if not reaches(key, c.spec)))
        if not taken:
            fields = {f"method.{name}" for c in cells for name in method_fields(type(c.spec.method))}
            raise BadInput(f"--set {key}={value}: not a field of {', '.join(left)}{nearest(key, fields)}")
        if left:
            lines.append(f"--set {key}={value} applies to {', '.join(taken)}; not to {', '.join(left)}")
    return lines


@dataclass(frozen=True)
class Experiment:
    name: str
    title: str
    claim: str  # the paper's claim, in our words
    cells: Callable[[Bench], list[Cell]]
    analysis: str = ""  # shown in addition to accuracy: a measure of `analyze`, or "diagnostics" by round
    costs: CostColumns | None = None  # columns of `costs` to show, measured on the runs
    rows: tuple[str, ...] = ()  # the default rows; empty: all


def choose_client(experiment: Experiment, cells: Sequence[Cell], client: int | None) -> int | None:
    """The SNN client whose firing rates are shown next to the mean; None if the experiment shows no rates."""
    if experiment.analysis != "rates":
        if client is not None:
            raise BadInput(f"--client {client}: {experiment.name} does not show single clients; only rates does")
        return None
    fleets = [{c.id for c in parse_fleet(cell.spec.fleet, cell.spec.T) if c.kind == "snn"} for cell in cells]
    known = sorted(set.intersection(*fleets)) if fleets else []
    if client is None:
        return PAPER_CLIENT if PAPER_CLIENT in known else max(known, default=None)
    if client not in known:
        raise BadInput(f"--client {client}: not an SNN client of this experiment; use one of {known}")
    return client


def add_own(bench: Bench, experiment: Experiment, names: Sequence[str]) -> Bench:
    """Add those of ``names`` that the experiment does not have to ``bench``: methods as rows, data sets as columns.

    Other unknown names are ignored here; ``select`` refuses them.
    """
    cells = experiment.cells(bench)
    known = {c.row for c in cells} | {c.column for c in cells}
    own = [name for name in dict.fromkeys(names) if name not in known]
    methods = tuple(name for name in own if name in METHODS)
    return replace(bench, methods=methods, data=tuple(n for n in own if n not in methods and _is_source(n)))


def _is_source(name: str) -> bool:
    kind, colon, _ = name.partition(":")
    return (f"{kind}:PATH" if colon else name) in SOURCES


def select(cells: Sequence[Cell], rows: Sequence[str] | None, columns: Sequence[str] | None) -> list[Cell]:
    """The cells in the named rows and columns; None means all."""
    for option, names, known in (
        ("--only", rows, {c.row for c in cells}),
        ("--columns", columns, {c.column for c in cells}),
    ):
        for name in names or ():
            if name not in known:
                raise BadInput(f"{option} {name}: not in this experiment{nearest(name, sorted(known))}")
    return [c for c in cells if (not rows or c.row in rows) and (not columns or c.column in columns)]
