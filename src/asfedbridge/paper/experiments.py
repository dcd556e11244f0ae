"""Every table and figure of the paper as a grid of runs, at three scales.

An experiment gives cells; a cell is one number of the table (or one bar, one curve): a row, a column, the run that
makes it, and what the paper reports there.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from asfedbridge.core import METHODS, BadInput, Point, nearest
from asfedbridge.data import SOURCES
from asfedbridge.paper import tables
from asfedbridge.runs import Spec, apply_overrides, at_scale, method_fields, parse_fleet

Scale = Literal["paper", "cpu", "smoke"]
CostColumns = Literal["computation", "communication"]  # of one example: a forward pass; payloads and a training round
CIFAR = ("cifar10", "cifar100")
ALL_DATA = (*CIFAR, "tiny-imagenet", "cifar10-dvs")
MAIN = (
    "centralized",
    "standalone",
    "isolated-fedavg",
    "isolated-fedprox",
    "fedavg",
    "fedprox",
    "fedfree",
    "sfedhifi",
    "fedproto",
    "fedtgp",
    "fml",
    "mh-pflid",
    "as-fedbridge",
)
FEDERATED = MAIN[1:]
HETEROGENEOUS = ("standalone", "sfedhifi", "fedfree", "fedproto", "fedtgp", "fml", "mh-pflid", "as-fedbridge")
COMPARED = ("standalone", "fedproto", "fml", "as-fedbridge")
PAPER_CLIENT = 9  # whose firing rates the paper shows: the last SNN client of 5+5


@dataclass(frozen=True)
class Cell:
    row: str
    column: str
    spec: Spec
    reported: Mapping[str, float] = field(default_factory=dict)  # by kind and "all", in percent
    costs: Sequence[float] = ()  # what the paper reports, as columns of the experiment's cost table
    point: Point | None = None  # where clients are evaluated; None: where the method is judged


@dataclass(frozen=True)
class Bench:
    """How an experiment is run: the scale, the source for each of the paper's data sets, and settings of the user.

    ``settings`` (dotted keys) override the experiment's own changes. A field of a method applies to the methods that
    have it. ``methods`` and ``data`` are the user's own, as further rows and columns.
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
        """The scale's recipe on a data set of the paper, with changes; ``method__x`` is the method's field x."""
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
    """Whether a setting applies to this specification: all do, but for fields that its method does not have."""
    head, _, name = key.partition(".")
    return head != "method" or name in method_fields(type(spec.method))


def check_settings(bench: Bench, cells: Sequence[Cell]) -> list[str]:
    """One line for each setting that some of the cells do not take; BadInput if none takes it."""
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
    claim: str  # of the paper, in our words
    cells: Callable[[Bench], list[Cell]]
    analysis: str = ""  # what the table shows beside accuracy: a measure of `analyze`, or "diagnostics" by round
    costs: CostColumns | None = None  # what of `costs` it shows, measured on the runs
    rows: tuple[str, ...] = ()  # the default rows; empty: all


EXPERIMENTS: dict[str, Experiment] = {}


def _experiment(
    name: str,
    title: str,
    claim: str,
    analysis: str = "",
    costs: CostColumns | None = None,
    rows: tuple[str, ...] = (),
) -> Callable[[Any], Any]:
    def enter(cells: Callable[[Bench], list[Cell]]) -> Callable[[Bench], list[Cell]]:
        def at_scale_of(bench: Bench) -> list[Cell]:
            # Smoke runs are not on the paper's data: its values beside theirs would mislead.
            made = cells(bench)
            return [replace(cell, reported={}) for cell in made] if bench.scale == "smoke" else made

        EXPERIMENTS[name] = Experiment(name, title, claim, at_scale_of, analysis, costs, rows)
        return cells

    return enter


def _triple(values: tables.Reported | None) -> dict[str, float]:
    return {} if values is None else dict(zip(("ann", "snn", "all"), values, strict=True))


def _methods(
    bench: Bench,
    methods: Iterable[str],
    data: Iterable[str],
    reported: Mapping[str, Mapping[str, tables.Reported]],
    own: Mapping[str, Mapping[str, Any]] | None = None,
    **changes: Any,
) -> list[Cell]:
    """Every method on every data set, with the user's own; ``own`` are changes for one method alone."""
    cells = []
    for name in data:
        for method in dict.fromkeys((*methods, *bench.methods)):
            spec = bench.spec(method, name, **changes, **(own or {}).get(method, {}))
            cells.append(Cell(method, name, spec, _triple(reported.get(name, {}).get(method))))
    return cells


UNEQUAL: dict[str, Any] = {
    "method__mismatch": "prefix"
}  # FedFree between layers of unequal shapes, as the paper reports it


@_experiment(
    "main",
    "All methods on four data sets, Dirichlet 0.1",
    "AS-FedBridge has the best mean on all four; direct averaging collapses.",
)
def _main(bench: Bench) -> list[Cell]:
    images, frames = ALL_DATA[:-1], ALL_DATA[-1:]
    # On event frames the stems of ANN and SNN clients differ.
    still = _methods(bench, MAIN, (*images, *bench.data), tables.MAIN)
    return still + _methods(bench, MAIN, frames, tables.MAIN, {"fedfree": UNEQUAL})


@_experiment(
    "iid",
    "IID shards",
    "Isolated averaging leads, as it amounts to distributed training; AS-FedBridge leads among the others.",
)
def _iid(bench: Bench) -> list[Cell]:
    return _methods(bench, FEDERATED, (*CIFAR, *bench.data), tables.IID, partition="iid")


@_experiment("moderate", "Moderate skew, Dirichlet 0.5", "AS-FedBridge has the best mean, just above isolated FedAvg.")
def _moderate(bench: Bench) -> list[Cell]:
    return _methods(bench, FEDERATED, (*CIFAR, *bench.data), tables.MODERATE, alpha=0.5)


AVERAGING: dict[str, tuple[str, dict[str, Any]]] = {
    "standalone": ("standalone", {}),
    "direct": ("fedavg", {}),
    "direct-averaged-bn": ("fedavg", {"method__bn_buffers": "averaged"}),
    "isolated": ("isolated-fedavg", {}),
    "isolated-averaged-bn": ("isolated-fedavg", {"method__bn_buffers": "averaged"}),
    "isolated-start-by-kind": ("isolated-fedavg", {"start": "by-kind"}),
}


@_experiment(
    "averaging",
    "Direct and isolated FedAvg, IID: BatchNorm statistics and evaluation point",
    "Isolated averaging is far above Standalone; direct averaging over ANN and SNN collapses. "
    "(The paper does not say how it treats BatchNorm statistics; its values stand beside both policies.)",
)
def _averaging(bench: Bench) -> list[Cell]:
    cells = []
    for point in get_args(Point):
        for row, (method, change) in AVERAGING.items():
            spec = bench.spec(method, "cifar10", partition="iid", **change)
            cells.append(Cell(row, point, spec, _triple(tables.IID["cifar10"].get(method)), point=point))
    return cells


@_experiment(
    "beyond",
    "Beyond the paper: gated distillation, twin start, weighted fusion, IID",
    "It does not test these. Each row adds one to AS-FedBridge; `standalone-twin-start` shows what the start gives "
    "without a federation.",
)
def _beyond(bench: Bench) -> list[Cell]:
    twin = {"twin_rounds": bench.spec("as-fedbridge", "cifar10").rounds // 16}  # 5 of 80
    gate, weight = {"method__gate": "right"}, {"method__fused_holdout": 0.1}
    rows: dict[str, tuple[str, dict[str, Any]]] = {
        "standalone": ("standalone", {}),
        "standalone-twin-start": ("standalone", twin),
        "as-fedbridge": ("as-fedbridge", {}),
        "gate-right": ("as-fedbridge", gate),
        "gate-confident": ("as-fedbridge", {"method__gate": "confident"}),
        "twin-start": ("as-fedbridge", twin),
        "fused-weight": ("as-fedbridge", weight),
        "all-of-them": ("as-fedbridge", gate | twin | weight),
    }
    return [
        Cell(row, "cifar10", bench.spec(method, "cifar10", partition="iid", **change))
        for row, (method, change) in rows.items()
    ]


@_experiment("scale", "Backbones of different widths", "AS-FedBridge leads when widths differ.")
def _scale(bench: Bench) -> list[Cell]:
    # At small scale the narrowest must have channels left, and SFedHIFI's banks must fit into it.
    fleet = "scale" if bench.scale == "paper" else "scale@0.25"
    own: dict[str, Mapping[str, Any]] = {"fedfree": UNEQUAL}
    if bench.scale != "paper":
        own["sfedhifi"] = {"method__bank_inputs": 0.0625}
    return _methods(bench, HETEROGENEOUS, (*CIFAR, *bench.data), tables.SCALE, own, fleet=fleet)


@_experiment("architecture", "Backbones of different families", "AS-FedBridge leads when families differ.")
def _architecture(bench: Bench) -> list[Cell]:
    methods = [m for m in HETEROGENEOUS if m != "sfedhifi"]
    data = (*CIFAR, *bench.data)
    return _methods(bench, methods, data, tables.ARCHITECTURE, {"fedfree": UNEQUAL}, fleet="architecture")


@_experiment(
    "composition",
    "One to nine SNN clients of ten",
    "AS-FedBridge stays near 70 % whatever the mixture; the others fall or waver. (A figure: no values to compare.)",
    rows=COMPARED,
)
def _composition(bench: Bench) -> list[Cell]:
    return [
        Cell(method, f"{count} SNN", bench.spec(method, "cifar100", fleet=f"{10 - count}+{count}"))
        for count in range(1, 10)
        for method in dict.fromkeys((*MAIN, *bench.methods))
    ]


def _controls(bench: Bench, kinds: Iterable[str]) -> list[Cell]:
    """Ten clients of a kind under FedAvg, and five of them beside five ANN clients under the Bridge."""
    cells = []
    for kind in kinds:
        name, _, steps = kind.replace(":b=", "").partition(":T=")
        mixed = {"ann": "ann", "snn": "5+5"}.get(name, f"ann+{name}")
        change = {"T": int(steps)} if steps else {}
        for method, fleet, column, reported, configuration in (
            ("fedavg", name, "alike (FedAvg)", tables.ALIKE, kind),
            ("as-fedbridge", mixed, "mixed (Bridge)", tables.MIXED, f"ann+{kind}"),
        ):
            spec = bench.spec(method, "cifar100", fleet=fleet, **change)
            cells.append(Cell(kind, column, spec, {"all": reported[kind]}, tables.COMPUTATION[configuration]))
    return cells


@_experiment(
    "necessity",
    "Mixed federations against homogeneous ones",
    "ANN and SNN together beat ten of either; more time steps help; ANN with ANN is best but costs most.",
    costs="computation",
)
def _necessity(bench: Bench) -> list[Cell]:
    return _controls(bench, ("bnn", "snn:T=2", "snn:T=4", "snn:T=8", "ann"))


@_experiment(
    "lowbit",
    "Low-bit networks in the place of SNNs",
    "At matched 2, 4 and 8 (bits or time steps) the SNN mixture is above the quantised one.",
    costs="computation",
)
def _lowbit(bench: Bench) -> list[Cell]:
    kinds = ("bnn", "qnn:b=2", "qnn:b=4", "qnn:b=8", "snn:T=2", "snn:T=4", "snn:T=8", "ann")
    return _controls(bench, kinds)


ABLATIONS: dict[str, dict[str, Any]] = {
    "ann-to-snn": {"method__direction": "ann-to-snn"},
    "snn-to-ann": {"method__direction": "snn-to-ann"},
    "no-pseudo-spike": {"method__pseudo_spike": False},
    "shared-head": {"method__personal_head": False},
    "no-pspr": {"method__pspr": False},
    "no-quantiser": {"method__quantise": False},
    "no-rate-loss": {"method__rate_loss": False},
    "complete": {},
}


@_experiment("ablation", "Parts of AS-FedBridge taken away", "Every part helps; both directions and own heads most.")
def _ablation(bench: Bench) -> list[Cell]:
    return [
        Cell(name, "cifar100", bench.spec("as-fedbridge", "cifar100", **change), _triple(tables.ABLATION[name]))
        for name, change in ABLATIONS.items()
    ]


@_experiment("bridge-width", "Narrower Bridges", "Accuracy falls with the Bridge's width, the SNN clients' most.")
def _bridge_width(bench: Bench) -> list[Cell]:
    full = bench.spec("as-fedbridge", "cifar100").method.bridge_width  # type: ignore[attr-defined]
    return [
        Cell(
            f"{share:g} x",
            "cifar100",
            bench.spec("as-fedbridge", "cifar100", method__bridge_width=full * share),
            _triple(values),
        )
        for share, values in tables.BRIDGE_WIDTH.items()
    ]


@_experiment(
    "motivation",
    "Direct FedAvg over ANN and SNN clients, round by round",
    "Accuracy collapses while the two kinds' features and gradients stay apart.",
    analysis="diagnostics",
)
def _motivation(bench: Bench) -> list[Cell]:
    fleets = {"mixed": "5+5", "ANN only": "ann", "SNN only": "snn"}
    every = max(1, bench.spec("fedavg", "cifar10").rounds // 10)
    # Every round is evaluated: the aggregate of a diagnosed round is received in the next one.
    return [
        Cell(name, data, bench.spec("fedavg", data, fleet=fleet, diagnose_every=every, evaluate_every=1))
        for data in CIFAR
        for name, fleet in fleets.items()
    ]


for _name, _title, _claim in (
    ("cka", "Linear CKA between clients' features", "AS-FedBridge has high similarity across kinds."),
    ("gradients", "Gradient cosine between clients", "AS-FedBridge has broadly positive similarity across kinds."),
    (
        "mmd",
        "MMD^2 between ANN and SNN features",
        "AS-FedBridge has the smallest gap, and accuracy falls with the gap.",
    ),
):
    _experiment(_name, f"{_title}, IID", _claim, analysis=_name)(_iid)


@_experiment(
    "rates",
    "Firing rates of the Bridge's ports and of SNN stages",
    "Both peak at multiples of 1/T, and their shapes change with depth alike.",
    analysis="rates",
)
def _rates(bench: Bench) -> list[Cell]:
    return [Cell("as-fedbridge", "cifar10", bench.spec("as-fedbridge", "cifar10"))]


@_experiment(
    "communication",
    "Payload and training cost of every method",
    "The Bridge is 3.93 MB, a tenth of a backbone.",
    costs="communication",
)
def _communication(bench: Bench) -> list[Cell]:
    """Runs of ``main``, whose spikes are counted."""
    cells = _methods(bench, tables.COMMUNICATION, ["cifar100", *bench.data], tables.MAIN)
    return [replace(cell, costs=tables.COMMUNICATION.get(cell.row, ())) for cell in cells]


_experiment(
    "computation",
    "Operations of one forward pass (counted, not trained)",
    "A mixed fleet needs about half an ANN fleet's FLOPs, and few SOPs.",
    costs="computation",
)(lambda bench: [])


def find_experiment(name: str) -> Experiment:
    if name not in EXPERIMENTS:
        raise BadInput(f"experiment '{name}' is not known{nearest(name, EXPERIMENTS)}")
    return EXPERIMENTS[name]


def choose_client(experiment: Experiment, cells: Sequence[Cell], client: int | None) -> int | None:
    """The SNN client whose firing rates are shown beside the mean; None for an experiment that shows no rates."""
    if experiment.analysis != "rates":
        if client is not None:
            raise BadInput(f"--client {client}: {experiment.name} shows no single client; only rates does")
        return None
    fleets = [{c.id for c in parse_fleet(cell.spec.fleet, cell.spec.T) if c.kind == "snn"} for cell in cells]
    known = sorted(set.intersection(*fleets)) if fleets else []
    if client is None:
        return PAPER_CLIENT if PAPER_CLIENT in known else max(known, default=None)
    if client not in known:
        raise BadInput(f"--client {client}: not an SNN client of this experiment; use one of {known}")
    return client


def add_own(bench: Bench, experiment: Experiment, names: Sequence[str]) -> Bench:
    """``bench`` with those of ``names`` that the experiment does not have: methods as rows, data sets as columns.

    Names that are neither stay out; ``select`` refuses them.
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
    """Those in the named rows and columns; all without names."""
    for option, names, known in (
        ("--only", rows, {c.row for c in cells}),
        ("--columns", columns, {c.column for c in cells}),
    ):
        for name in names or ():
            if name not in known:
                raise BadInput(f"{option} {name}: not in this experiment{nearest(name, sorted(known))}")
    return [c for c in cells if (not rows or c.row in rows) and (not columns or c.column in columns)]
