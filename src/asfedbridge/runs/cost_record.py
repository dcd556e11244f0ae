"""The output of ``asfedbridge costs --json``, and ``measured-costs.json`` of a run. docs/costs.md explains the keys."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asfedbridge.core.errors import BadInput
from asfedbridge.engines.files import write_atomic
from asfedbridge.runs.json_table import Entries, JsonTable, read_table

FORMAT = 1
MEASURED_COSTS = "measured-costs.json"
OPERATIONS = (
    "mflops",
    "low_bit_mmacs",
    "mbitops",
    "msops",
    "msops_by_rate",
    "spiking_mmacs",
    "dense_mflops",
    "energy_uj",
)
Amounts = dict[str, float | None]  # by key; None: not known


@dataclass(frozen=True)
class CostSetting:
    """The fleet, the shape of its images, and the settings of local training."""

    fleet: str
    T: int
    method: str
    classes: int
    channels: int
    image_size: int
    feature_dim: int
    epochs: int
    batch_size: int


@dataclass(frozen=True)
class NetworkCost:
    """The Bridge: one pass of body and head."""

    mflops: float
    parameters: int


@dataclass(frozen=True)
class ModelCost:
    """One example forward through a backbone."""

    model: str
    width: float
    kind: str
    T: int
    bits: int
    parameters: int
    operations: Amounts


@dataclass(frozen=True)
class ConfigurationCost:
    """One example forward, mean over the clients of a configuration."""

    bridge: bool  # includes a forward pass of the Bridge
    operations: Amounts


@dataclass(frozen=True)
class MethodCost:
    """Largest payloads of a round in MB, and local training of one example in a round."""

    up_mb: float | None = None
    down_mb: float | None = None
    table_mb: float | None = None  # the amount that the paper's table reports
    server_mb: float | None = None
    training: dict[str, Amounts] = field(default_factory=dict)  # by kind of client
    refused: str = ""  # why the method cannot run this fleet; then all other fields are empty


@dataclass(frozen=True, eq=False)
class CostTable(Entries):
    """Costs of a specification. Also a mapping of the entries of ``costs --json``."""

    setting: CostSetting
    bridge: NetworkCost
    models: tuple[ModelCost, ...]
    configurations: dict[str, ConfigurationCost]
    methods: dict[str, MethodCost]
    entries: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, eq=False)
class RunCosts(Entries):
    """Costs of a finished run with the spikes of its own clients."""

    forward: Amounts  # mean over its fleet
    method: MethodCost
    entries: Mapping[str, Any] = field(repr=False)


def parse_costs(entries: Mapping[str, Any], file: Path = Path("costs.json")) -> CostTable:
    """A cost table from the output of ``costs --json``; BadInput names ``file`` and the invalid entry."""
    table = JsonTable(entries, file, "a table of asfedbridge costs")
    table.check_format(FORMAT)
    setting, bridge = table.table("setting"), table.table("bridge")
    configurations, methods = table.table("configurations"), table.table("methods")
    return CostTable(
        setting=CostSetting(
            fleet=setting.text("fleet"),
            T=setting.whole("T"),
            method=setting.text("method"),
            classes=setting.whole("classes"),
            channels=setting.whole("channels"),
            image_size=setting.whole("image_size"),
            feature_dim=setting.whole("feature_dim"),
            epochs=setting.whole("epochs"),
            batch_size=setting.whole("batch_size"),
        ),
        bridge=NetworkCost(bridge.number("mflops"), bridge.whole("parameters")),
        models=tuple(_parse_model(entry) for entry in table.tables("models")),
        configurations={name: _parse_configuration(configurations.table(name)) for name in configurations.entries},
        methods={name: _parse_method(methods.table(name)) for name in methods.entries},
        entries=table.entries,
    )


def parse_run_costs(entries: Mapping[str, Any], file: Path = Path(MEASURED_COSTS)) -> RunCosts:
    """The costs of a run from the content of their file; BadInput names ``file`` and the invalid entry."""
    table = JsonTable(entries, file, "a table of the costs of a run")
    table.check_format(FORMAT)
    return RunCosts(_parse_operations(table.table("forward")), _parse_method(table), table.entries)


def read_cost_table(file: Path) -> CostTable | None:
    """The output of ``costs --json`` in a file, or None without the file; BadInput names an invalid entry."""
    found = read_table(file)
    return None if found is None else parse_costs(found, file)


def read_costs(folder: Path) -> RunCosts | None:
    """The measured costs of the run in ``folder``; None if there are none or their file is damaged."""
    try:
        found = read_table(folder / MEASURED_COSTS)
        return None if found is None else parse_run_costs(found, folder / MEASURED_COSTS)
    except (OSError, BadInput):
        return None


def write_costs(folder: Path, costs: RunCosts) -> None:
    file = folder / MEASURED_COSTS
    try:
        write_atomic(file, json.dumps(costs.to_json(), indent=1, allow_nan=False).encode())
    except OSError as error:
        raise BadInput(f"{file}: cannot write ({error.strerror}); free or change the disk") from None


def _parse_model(entry: JsonTable) -> ModelCost:
    return ModelCost(
        model=entry.text("model"),
        width=entry.number("width"),
        kind=entry.text("kind"),
        T=entry.whole("T"),
        bits=entry.whole("bits"),
        parameters=entry.whole("parameters"),
        operations=_parse_operations(entry),
    )


def _parse_configuration(entry: JsonTable) -> ConfigurationCost:
    return ConfigurationCost(entry.flag("bridge"), _parse_operations(entry))


def _parse_operations(entry: JsonTable) -> Amounts:
    return {key: entry.optional_number(key) for key in OPERATIONS if key in entry.entries}


def _parse_method(entry: JsonTable) -> MethodCost:
    if "refused" in entry.entries:
        return MethodCost(refused=entry.text("refused"))
    training = entry.table("training")
    by_kind = {kind: training.table(kind) for kind in training.entries}
    return MethodCost(
        up_mb=entry.number("up_mb"),
        down_mb=entry.number("down_mb"),
        table_mb=entry.number("table_mb"),
        server_mb=entry.number("server_mb"),
        training={kind: {key: cost.optional_number(key) for key in cost.entries} for kind, cost in by_kind.items()},
    )
