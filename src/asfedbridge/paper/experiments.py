"""All tables and figures of the paper as grids of runs, at three scales."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, get_args

from asfedbridge.core import BadInput, Point, nearest
from asfedbridge.paper import tables
from asfedbridge.paper.grid import Bench, Cell, CostColumns, Experiment

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
            # Smoke runs do not use the paper's data, so its values are not shown.
            made = cells(bench)
            return [replace(cell, reported={}, costs=()) for cell in made] if bench.scale == "smoke" else made

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
    """All methods, including those of the user, on all data sets; ``own`` has changes for single methods."""
    cells = []
    for name in data:
        for method in dict.fromkeys((*methods, *bench.methods)):
            spec = bench.spec(method, name, **changes, **(own or {}).get(method, {}))
            cells.append(Cell(method, name, spec, _triple(reported.get(name, {}).get(method))))
    return cells


# FedFree with layers of different shapes, for which the paper reports values.
FEDFREE_PREFIX: dict[str, Any] = {"method__mismatch": "prefix"}


@_experiment(
    "main",
    "All methods on four data sets, Dirichlet 0.1",
    "AS-FedBridge has the best mean on all four; direct averaging collapses.",
)
def _main(bench: Bench) -> list[Cell]:
    images, frames = ALL_DATA[:-1], ALL_DATA[-1:]
    # On event frames, stems of ANN and SNN clients differ in shape.
    still = _methods(bench, MAIN, (*images, *bench.data), tables.MAIN)
    return still + _methods(bench, MAIN, frames, tables.MAIN, {"fedfree": FEDFREE_PREFIX})


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
    "(The paper does not say how it treats BatchNorm statistics: its values may be of either policy.)",
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
    "It does not test these extensions. Each row adds one to AS-FedBridge; `standalone-twin-start` shows the effect of "
    "the twin start without a federation.",
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
    # At small scale the narrowest model must still have channels, and SFedHIFI's banks must divide them.
    fleet = "scale" if bench.scale == "paper" else "scale@0.25"
    own: dict[str, Mapping[str, Any]] = {"fedfree": FEDFREE_PREFIX}
    if bench.scale != "paper":
        own["sfedhifi"] = {"method__bank_inputs": 0.0625}
    return _methods(bench, HETEROGENEOUS, (*CIFAR, *bench.data), tables.SCALE, own, fleet=fleet)


@_experiment("architecture", "Backbones of different families", "AS-FedBridge leads when families differ.")
def _architecture(bench: Bench) -> list[Cell]:
    methods = [m for m in HETEROGENEOUS if m != "sfedhifi"]
    data = (*CIFAR, *bench.data)
    return _methods(bench, methods, data, tables.ARCHITECTURE, {"fedfree": FEDFREE_PREFIX}, fleet="architecture")


@_experiment(
    "composition",
    "One to nine SNN clients of ten",
    "AS-FedBridge stays near 70 % for every mixture; the others decrease or fluctuate. (A figure without values.)",
    rows=COMPARED,
)
def _composition(bench: Bench) -> list[Cell]:
    return [
        Cell(method, f"{count} SNN", bench.spec(method, "cifar100", fleet=f"{10 - count}+{count}"))
        for count in range(1, 10)
        for method in dict.fromkeys((*MAIN, *bench.methods))
    ]


def _controls(bench: Bench, kinds: Iterable[str]) -> list[Cell]:
    """Ten clients of one kind with FedAvg, and five of them with five ANN clients under AS-FedBridge."""
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
    "Low-bit networks instead of SNNs",
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


@_experiment("bridge-width", "Narrower Bridges", "Accuracy falls with the Bridge's width, most for SNN clients.")
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
    # Evaluate every round, because the aggregate of a diagnosed round is received in the next one.
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
    "Both have peaks at multiples of 1/T, and their shapes change with depth in the same way.",
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
    """The runs of ``main``, with measured spikes."""
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
