"""Analyses of finished runs: clients are rebuilt from the last checkpoint and compared on one probe set.

The last checkpoint holds every client after its last local training (``trained``) and the server's last state, from
which each client can receive the last aggregate (``received``). Both points can be analysed for every method. The
default is the point whose accuracy the summary reports. Snapshots hold clients at ``trained``, before aggregation.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from asfedbridge.analysis.cka import linear_cka
from asfedbridge.analysis.mmd import FOURIER, SEED, median_bandwidth, mmd_squared
from asfedbridge.analysis.pairs import block_means, choose_clients, correlate
from asfedbridge.core.errors import BadInput
from asfedbridge.core.task import ClientInfo, Point
from asfedbridge.engines import checkpoint
from asfedbridge.engines.process import prepare_process
from asfedbridge.runs.analysis_record import (
    ANALYSIS_FILE,
    ANALYSIS_FORMAT,
    MEASURES,
    Analyses,
    Analysis,
    DataCorrelation,
    parse_analysis,
    write_analysis,
)
from asfedbridge.runs.folder import CHECKPOINT, SNAPSHOTS, read_spec, read_summary
from asfedbridge.runs.rebuild import Measurements, Table, Tell, measure_clients, rebuild
from asfedbridge.runs.record_files import read_rounds
from asfedbridge.runs.records import accuracies_after
from asfedbridge.runs.setting import prepare
from asfedbridge.runs.spec import Spec
from asfedbridge.runs.summary import Summary


@dataclass(frozen=True)
class Study:
    """The measurements of a run that do not depend on other runs."""

    folder: Path
    spec: Spec
    summary: Summary
    clients: list[ClientInfo]
    images: int
    fingerprint: str
    final: Measurements
    snapshots: list[Measurements]
    point: Point

    @property
    def kernel(self) -> tuple[str, int]:
        """Runs with the same key, data and feature size, share one bandwidth."""
        return self.fingerprint, self.spec.feature_dim


def analyse(folders: Sequence[Path], data_root: Path, tell: Tell, point: Point | None = None) -> Analyses:
    """Measure each run and write its analysis file; return all of them and the correlations over them.

    ``point``: the evaluation point of the final clients; None: that of their method.
    """
    opened = [(folder, *open_run(folder)) for folder in folders]  # fail early: check all folders before measuring
    studies = [study(folder, spec, summary, data_root, tell, point) for folder, spec, summary in opened]
    results = []
    for one in studies:
        together = sorted((s for s in studies if s.kernel == one.kernel), key=lambda s: s.spec.digest())
        bandwidth = median_bandwidth([x for s in together for x in s.final.features])
        result = _describe(one, bandwidth, len(together))
        file = one.folder / file_name(one.spec, point)
        write_analysis(file, result)
        results.append(parse_analysis({"folder": str(one.folder), **result}, file))
    return Analyses(tuple(results), tuple(correlations(results)))


def file_name(spec: Spec, point: Point | None) -> str:
    """``analysis.json``, which reports show, for the method's evaluation point; else ``analysis-POINT.json``."""
    return ANALYSIS_FILE if point in (None, spec.method.reports) else f"analysis-{point}.json"


def study(folder: Path, spec: Spec, summary: Summary, data_root: Path, tell: Tell, point: Point | None = None) -> Study:
    point = point or spec.method.reports
    prepare_process(spec.threads)
    setting = prepare(spec, data_root)
    identity = setting.identity(spec)
    last = read_last(folder, summary.played, identity)
    chosen = choose_clients(setting.clients)

    def measure(found: checkpoint.Checkpoint, states: Path, at: Point, where: Path, closing: bool) -> Measurements:
        clients = rebuild(spec, setting, chosen, found, states, at, closing)
        return measure_clients(clients, found.next_round, setting.probe, spec.method, tell, where)

    final = measure(last, folder / CHECKPOINT / checkpoint.CLIENTS, point, folder, closing=True)
    snapshots = [
        measure(checkpoint.read(kept, identity), kept / checkpoint.CLIENTS, "trained", kept, closing=False)
        for kept in checkpoint.list_folders(folder / SNAPSHOTS)
    ]
    return Study(folder, spec, summary, chosen, setting.probe.test_size, setting.fingerprint, final, snapshots, point)


def correlations(results: Sequence[Analysis]) -> list[DataCorrelation]:
    """For each data set: Pearson's r between a block's mean and the accuracy of all clients, over the runs on it."""
    tables = []
    for fingerprint in dict.fromkeys(r.data_fingerprint for r in results):
        runs = [r for r in results if r.data_fingerprint == fingerprint]
        found = {}
        for measure in MEASURES:
            blocks = dict.fromkeys(name for r in runs for name in r.measures[measure].blocks)
            found[measure] = {
                name: correlate([r.measures[measure].mean(name) for r in runs], [r.reported for r in runs])
                for name in blocks
            }
        tables.append(DataCorrelation(runs[0].data, fingerprint, found))
    return tables


def open_run(folder: Path) -> tuple[Spec, Summary]:
    """Specification and summary of a finished run whose clients are stored in its folder."""
    spec = read_spec(folder)
    if spec is None:
        raise BadInput(f"{folder}: is not a run folder (no spec.toml); give one that asfedbridge run has written")
    summary = read_summary(folder)
    if summary is None:
        raise BadInput(f"{folder}: the run is not finished; finish it with resume=True")
    if summary.engine == "flower":
        raise BadInput(
            f"{folder}: a run of engine flower, whose clients are stored on their nodes; "
            f"give a run of engine local or pool (the same specification gives the same bits)"
        )
    return spec, summary


def read_last(folder: Path, rounds: int, identity: Mapping[str, str]) -> checkpoint.Checkpoint:
    """The checkpoint after the last of ``rounds`` rounds."""
    found = checkpoint.list_folders(folder / CHECKPOINT)
    last = checkpoint.read(found[-1], identity) if found else None
    if last is None or last.next_round != rounds:
        raise BadInput(
            f"{folder / CHECKPOINT}: the checkpoint after the last round is missing; run again in another "
            f"folder, or delete {folder} first"
        )
    return last


def _describe(one: Study, bandwidth: float, pooled: int) -> Table:
    """The content of analysis.json, which ``parse_analysis`` reads. docs/analysis.md documents every key."""
    spec, summary = one.spec, one.summary
    records = read_rounds(one.folder)
    key = f"{one.point}.accuracy"
    reported = {r["client"]: r[key] for r in records if key in r}  # the latest of each client
    kinds = [c.kind for c in one.clients]
    clients = [
        {
            "id": c.id,
            "kind": c.kind,
            "model": c.model,
            "width": c.width,
            "T": c.T,
            "accuracy": a,
            "reported": reported.get(c.id),
        }
        for c, a in zip(one.clients, one.final.accuracy, strict=True)
    ]
    by_round = []
    for then in one.snapshots:
        accuracy = accuracies_after(records, then.next_round)
        about: Table = {"round": then.next_round, "point": "trained", "accuracy": accuracy}
        by_round.append(about | _measures(then, kinds, bandwidth, pooled))
    return {
        "format": ANALYSIS_FORMAT,
        "method": spec.method.name,
        "data": spec.data,
        "seed": spec.seed,
        "rounds": spec.rounds,
        "specification": spec.digest(),
        "data_fingerprint": one.fingerprint,
        "point": one.point,
        "probe_images": one.images,
        "reported": summary.accuracy["all"],
        "reproduced": all(c["accuracy"] == c["reported"] for c in clients if c["reported"] is not None),
        "clients": clients,
        **_measures(one.final, kinds, bandwidth, pooled),
        "by_round": by_round,
    }


def _measures(found: Measurements, kinds: Sequence[str], bandwidth: float, pooled: int) -> Table:
    kernel = {"bandwidth": bandwidth, "bandwidth_runs": pooled, "fourier_features": FOURIER, "seed": SEED}
    compared = found.gradients
    return {
        "cka": _matrix(linear_cka(found.features), kinds),
        "mmd": _matrix(mmd_squared(found.features, bandwidth), kinds) | kernel,
        "gradients": _matrix(compared.cosine_NN, kinds)
        | {"scalars": compared.scalars_NN.tolist(), "tensors": compared.shared, "not_shared": compared.partial},
        "rates": found.rates,
    }


def _matrix(values_NN: Tensor, kinds: Sequence[str]) -> Table:
    rows = [[v if math.isfinite(v) else None for v in row] for row in values_NN.tolist()]
    return {
        "matrix": rows,
        "blocks": {name: dataclasses.asdict(b) for name, b in block_means(values_NN, kinds).items()},
    }
