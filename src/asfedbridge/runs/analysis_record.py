"""The content of ``analysis.json``: measurements of ``asfedbridge analyze`` on a finished run."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asfedbridge.analysis.pairs import Block, Correlation
from asfedbridge.core.errors import BadInput
from asfedbridge.engines.files import write_atomic
from asfedbridge.runs.json_table import Entries, JsonTable, read_table
from asfedbridge.runs.summary import Means

ANALYSIS_FORMAT = 2  # in format 1 the probe set was not balanced
ANALYSIS_FILE = "analysis.json"
MEASURES = ("cka", "mmd", "gradients")
Matrix = tuple[tuple[float | None, ...], ...]


@dataclass(frozen=True)
class Measure:
    """A measure of pairs of clients."""

    blocks: dict[str, Block]  # by kind of client, and "cross"
    matrix: Matrix = ()  # in the order of the clients; None: a pair without a value; empty if only blocks are stored
    bandwidth: float | None = None  # of the kernel, for MMD
    bandwidth_runs: int = 0  # number of runs that determined the bandwidth

    def mean(self, block: str) -> float | None:
        """None if the block is absent or none of its pairs has a value."""
        return self.blocks[block].mean if block in self.blocks else None


@dataclass(frozen=True)
class ClientRates:
    """Firing rates of an SNN client: the share of values at each of ``levels``."""

    client: int
    T: int
    levels: tuple[float | None, ...]  # None: all other values
    shares: dict[str, dict[str, tuple[float, ...]]]  # by network ("snn", "bridge" if there is one), then by place


@dataclass(frozen=True)
class AnalysedClient:
    """One client; accuracies are in percent."""

    id: int
    kind: str
    model: str
    width: float
    T: int
    accuracy: float  # computed by the analysis
    reported: float | None  # recorded by the run; None: never evaluated at this point


@dataclass(frozen=True, eq=False)
class RoundAnalysis(Entries):
    """The clients after local training in one round: a snapshot, or a line of ``diagnostics.jsonl``."""

    round: int  # rounds so far
    accuracy: dict[str, Means]  # by evaluation point
    measures: dict[str, Measure]
    rates: tuple[ClientRates, ...]
    entries: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, eq=False)
class Analysis(Entries):
    """Measurements on the clients of a run. Also a mapping of the entries of ``analysis.json``."""

    folder: str  # of the run; empty when read from a file, which does not contain it
    method: str
    data: str
    seed: int
    rounds: int
    specification: str
    data_fingerprint: str
    point: str
    probe_images: int
    reported: float  # accuracy of all clients in the summary
    reproduced: bool  # every accuracy equals the recorded one
    clients: tuple[AnalysedClient, ...]
    measures: dict[str, Measure]
    rates: tuple[ClientRates, ...]
    by_round: tuple[RoundAnalysis, ...]
    entries: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True)
class DataCorrelation:
    """Correlations of block means with accuracy, over the runs on one data set."""

    data: str
    data_fingerprint: str
    measures: dict[str, dict[str, Correlation]]  # by measure, then by block

    def to_json(self) -> dict[str, Any]:
        tables = {name: {b: {"r": c.r, "n": c.n} for b, c in found.items()} for name, found in self.measures.items()}
        return {"data": self.data, "data_fingerprint": self.data_fingerprint, **tables}


@dataclass(frozen=True)
class Analyses:
    """Runs that were analysed together."""

    runs: tuple[Analysis, ...]
    correlation: tuple[DataCorrelation, ...]

    def to_json(self) -> dict[str, Any]:
        """The output of ``analyze --json``."""
        return {
            "runs": [run.to_json() for run in self.runs],
            "correlation": [table.to_json() for table in self.correlation],
        }


def read_analysis(folder: Path, name: str = ANALYSIS_FILE) -> Analysis | None:
    """The analysis of the run in ``folder``; None if there is none. BadInput names an invalid entry."""
    found = read_table(folder / name, "remove it, or analyse the run again")
    return None if found is None else parse_analysis(found, folder / name)


def write_analysis(file: Path, entries: Mapping[str, Any]) -> None:
    try:
        write_atomic(file, json.dumps(entries, indent=1, allow_nan=False).encode())
    except OSError as error:
        raise BadInput(f"{file}: cannot write ({error.strerror}); free or change the disk") from None


def parse_analysis(entries: Mapping[str, Any], file: Path = Path(ANALYSIS_FILE)) -> Analysis:
    """An analysis from the content of its file; BadInput names ``file`` and the invalid entry."""
    table = JsonTable(entries, file, "the analysis of a run")
    table.check_format(ANALYSIS_FORMAT)
    clients = tuple(_parse_client(entry) for entry in table.tables("clients"))
    return Analysis(
        folder=table.text("folder", ""),
        method=table.text("method"),
        data=table.text("data"),
        seed=table.whole("seed"),
        rounds=table.whole("rounds"),
        specification=table.text("specification"),
        data_fingerprint=table.text("data_fingerprint"),
        point=table.text("point"),
        probe_images=table.whole("probe_images"),
        reported=table.number("reported"),
        reproduced=table.flag("reproduced"),
        clients=clients,
        measures=_parse_measures(table, len(clients)),
        rates=_parse_rates(table),
        by_round=tuple(parse_round(entry, len(clients)) for entry in table.tables("by_round")),
        entries=table.entries,
    )


def parse_round(table: JsonTable, clients: int | None = None) -> RoundAnalysis:
    """A round; without the number of ``clients``, matrices are not read."""
    accuracy = table.table("accuracy")
    return RoundAnalysis(
        round=table.whole("round"),
        accuracy={point: accuracy.numbers(point) for point in accuracy.entries},
        measures=_parse_measures(table, clients),
        rates=_parse_rates(table) if "rates" in table.entries else (),
        entries=table.entries,
    )


def _parse_client(entry: JsonTable) -> AnalysedClient:
    return AnalysedClient(
        id=entry.whole("id"),
        kind=entry.text("kind"),
        model=entry.text("model"),
        width=entry.number("width"),
        T=entry.whole("T"),
        accuracy=entry.number("accuracy"),
        reported=entry.optional_number("reported"),
    )


def _parse_measures(table: JsonTable, clients: int | None) -> dict[str, Measure]:
    found = {}
    for name in MEASURES:
        measure = table.table(name)
        blocks = measure.table("blocks")
        found[name] = Measure(
            blocks={block: _parse_block(blocks.table(block)) for block in blocks.entries},
            matrix=() if clients is None else _parse_matrix(measure, clients),
            bandwidth=measure.optional_number("bandwidth"),
            bandwidth_runs=measure.whole("bandwidth_runs", 0),
        )
    return found


def _parse_block(block: JsonTable) -> Block:
    return Block(block.optional_number("mean"), block.whole("pairs"))


def _parse_matrix(measure: JsonTable, clients: int) -> Matrix:
    rows = measure.items("matrix")
    numbered = JsonTable({f"matrix[{i}]": row for i, row in enumerate(rows)}, measure.file, measure.what, measure.where)
    matrix = tuple(numbered.series(name) for name in numbered.entries)
    if len(matrix) != clients or any(len(row) != clients for row in matrix):
        raise measure.wrong("matrix", f"{clients} rows of {clients} numbers, one for each client")
    return matrix


def _parse_rates(table: JsonTable) -> tuple[ClientRates, ...]:
    found = []
    for entry in table.tables("rates"):
        levels = entry.series("levels")
        shares = {}
        for network in ("snn", "bridge"):
            if network == "snn" or network in entry.entries:
                places = entry.table(network)
                shares[network] = {place: _parse_shares(places, place, len(levels)) for place in places.entries}
        found.append(ClientRates(entry.whole("client"), entry.whole("T"), levels, shares))
    return tuple(found)


def _parse_shares(places: JsonTable, place: str, levels: int) -> tuple[float, ...]:
    shares = tuple(value for value in places.series(place) if value is not None and 0 <= value <= 1)
    if len(shares) != levels:
        raise places.wrong(place, f"{levels} numbers from 0 to 1, one for each level")
    return shares
