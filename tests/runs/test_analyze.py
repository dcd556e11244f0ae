"""Analyses of real, tiny runs."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from asfedbridge import cli
from asfedbridge.analysis.pairs import MAX_CLIENTS_PER_KIND, choose_clients
from asfedbridge.core.errors import BadInput
from asfedbridge.core.method import METHODS
from asfedbridge.core.task import Point, Round
from asfedbridge.engines import checkpoint
from asfedbridge.engines.turn import evaluate
from asfedbridge.report.analyses import render_analyses
from asfedbridge.runs.analysis_record import Analyses, Analysis, parse_analysis, read_analysis
from asfedbridge.runs.analyze import analyse
from asfedbridge.runs.callback import Callback, Run
from asfedbridge.runs.rebuild import rebuild
from asfedbridge.runs.recipes import quickstart
from asfedbridge.runs.record_files import read_rounds
from asfedbridge.runs.run import execute
from asfedbridge.runs.setting import prepare
from asfedbridge.runs.spec import Spec, apply_overrides
from asfedbridge.runs.summary import Summary

TINY = {
    "fleet": "2*resnet18@0.125:ann,2*resnet18@0.125:snn",
    "T": 2,
    "train_per_class": 4,
    "test_per_class": 4,
    "batch_size": 8,
    "feature_dim": 16,
    "partition": "iid",
    "rounds": 2,
}
MAIN = ("as-fedbridge", "fedavg", "standalone")


class Leaves(Callback):
    """Interrupts the run after the round of this index."""

    def __init__(self, index: int) -> None:
        self.index = index

    def on_round_end(self, run: Run, rnd: Round, records: Any) -> None:
        if rnd.index == self.index:
            raise KeyboardInterrupt


def quiet(line: str) -> None:
    pass


def make_spec(method: str = "standalone", **changes: Any) -> Spec:
    return apply_overrides(quickstart(method), TINY | changes)


def play(spec: Spec, out: Path, **options: Any) -> Summary:
    return execute(spec, out, out.parent, **options)


def measure(*folders: Path) -> tuple[Analysis, ...]:
    return analyse(folders, folders[0].parent, quiet).runs


def files_in(folder: Path) -> dict[str, str]:
    paths = sorted(p for p in folder.rglob("*") if p.is_file())
    return {p.relative_to(folder).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in paths}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three methods with snapshots, not analysed yet."""
    root = tmp_path_factory.mktemp("runs")
    for method in MAIN:
        play(make_spec(method, snapshot_every=1 if method == "fedavg" else 2), root / method)
    return root


@pytest.fixture(scope="module")
def analysed(runs: Path) -> Analyses:
    return analyse([runs / method for method in MAIN], runs, quiet)


# Rebuilt clients


@pytest.mark.parametrize("method", sorted(METHODS))
def test_rebuilt_clients_are_those_of_the_summary(method: str, tmp_path: Path) -> None:
    """With few images, equal accuracies prove little, so the loss must equal the recorded one to the last bit."""
    kinds = "4*resnet18@0.125:snn" if method == "sfedhifi" else TINY["fleet"]
    spec = make_spec(method, fleet=kinds, participation=0.75, rounds=2)
    summary = play(spec, tmp_path / "run")
    setting = prepare(spec, tmp_path)
    folders = checkpoint.list_folders(tmp_path / "run" / "checkpoint")
    last = checkpoint.read(folders[-1], setting.identity(spec))
    states = tmp_path / "run" / "checkpoint" / "clients"
    point = spec.method.reports
    newest = {r["client"]: r for r in read_rounds(tmp_path / "run") if f"{point}.loss" in r}
    reported = {c["id"]: c["accuracy"] for c in summary["clients"]}
    seen = 0
    for client in rebuild(spec, setting, setting.clients, last, states, point):
        found = evaluate(client, lambda x, backbone=client.backbone: backbone(x).logits)  # type: ignore[misc]
        if (record := newest.get(client.info.id)) is None:
            assert reported[client.info.id] is None  # never drawn, and not judged at the closing visit
            continue
        assert found["loss"] == record[f"{point}.loss"]
        assert found["accuracy"] == reported[client.info.id]
        seen += 1
    assert seen >= min(3, len(setting.clients))


def test_snapshots_hold_the_clients_of_their_round(runs: Path) -> None:
    spec = make_spec("fedavg")
    setting = prepare(spec, runs)
    for index, folder in enumerate(checkpoint.list_folders(runs / "fedavg" / "snapshots")):
        found = checkpoint.read(folder, setting.identity(spec))
        for point, number in (("trained", index), ("received", index + 1)):
            records = {r["client"]: r for r in read_rounds(runs / "fedavg") if r["round"] == number}
            for client in rebuild(spec, setting, setting.clients, found, folder / "clients", point):  # type: ignore[arg-type]
                loss = evaluate(client, lambda x, b=client.backbone: b(x).logits)["loss"]  # type: ignore[misc]
                assert loss == records[client.info.id][f"{point}.loss"]
    assert index == 1


# Results


def test_every_run_is_measured(analysed: Analyses, runs: Path) -> None:
    for run, method in zip(analysed.runs, MAIN, strict=True):
        assert run["method"] == method
        assert run["folder"] == str(runs / method)
        assert run["reproduced"] is True
        assert run["probe_images"] == 40
        assert run["point"] == ("received" if method == "fedavg" else "trained")
        assert [c["id"] for c in run["clients"]] == [0, 1, 2, 3]
        for measure_ in ("cka", "mmd", "gradients"):
            matrix = run[measure_]["matrix"]
            assert len(matrix) == 4
            assert all(matrix[i][j] == matrix[j][i] for i in range(4) for j in range(4))
            assert list(run[measure_]["blocks"]) == ["ann", "snn", "cross"]
        assert run["mmd"]["blocks"]["cross"]["mean"] == pytest.approx(
            sum(run["mmd"]["matrix"][i][j] for i in (0, 1) for j in (2, 3)) / 4
        )
        assert [run["mmd"]["matrix"][i][i] for i in range(4)] == [0, 0, 0, 0]
        assert run["gradients"]["not_shared"] == []
        assert len(run["gradients"]["tensors"]) == 22
        written = json.loads((runs / method / "analysis.json").read_text())
        assert {"folder": run["folder"], **written} == run
        assert read_analysis(runs / method) == written


def test_one_kernel_for_all_runs_of_a_data_set(analysed: Analyses, runs: Path, tmp_path: Path) -> None:
    widths = {(run["mmd"]["bandwidth"], run["mmd"]["bandwidth_runs"]) for run in analysed.runs}
    assert len(widths) == 1
    assert next(iter(widths))[1] == 3
    shutil.copytree(runs / "fedavg", tmp_path / "alone")
    (alone,) = measure(tmp_path / "alone")
    assert alone["mmd"]["bandwidth_runs"] == 1
    assert alone["mmd"]["bandwidth"] != analysed.runs[1]["mmd"]["bandwidth"]
    assert alone["cka"] == analysed.runs[1]["cka"]


def test_rates_of_ports_are_present_with_a_bridge(analysed: Analyses) -> None:
    for run, method in zip(analysed.runs, MAIN, strict=True):
        assert [r["client"] for r in run["rates"]] == [2, 3]
        for entry in run["rates"]:
            assert entry["levels"] == [0, 0.5, 1, None]
            assert ("bridge" in entry) == (method == "as-fedbridge")
            assert list(entry["snn"]) == ["stage 1", "stage 2", "stage 3", "stage 4", "output"]
            assert all(shares[-1] == 0 for shares in entry["snn"].values())


def test_snapshots_are_listed_by_round(analysed: Analyses, runs: Path) -> None:
    run = analysed.runs[1]
    assert [(e["round"], e["point"]) for e in run["by_round"]] == [(1, "trained"), (2, "trained")]
    records = read_rounds(runs / "fedavg")
    for entry in run["by_round"]:
        for point, number in (("trained", entry["round"] - 1), ("received", entry["round"])):
            values = [r[f"{point}.accuracy"] for r in records if r["round"] == number]
            assert entry["accuracy"][point]["all"] == pytest.approx(sum(values) / 4)
    assert run["by_round"][0]["cka"] != run["by_round"][1]["cka"]
    # FedAvg is judged after the last aggregate, which makes clients of a kind equal; before it they differ.
    assert run["gradients"]["blocks"]["ann"]["mean"] > run["by_round"][1]["gradients"]["blocks"]["ann"]["mean"]
    # For a method that is judged after training, the last snapshot equals the final clients.
    final, last = analysed.runs[2], analysed.runs[2]["by_round"][-1]
    assert {k: final[k] for k in ("cka", "mmd", "gradients", "rates")} == {
        k: last[k] for k in ("cka", "mmd", "gradients", "rates")
    }


def test_correlations_are_over_the_runs_of_a_data_set(analysed: Analyses) -> None:
    (table,) = analysed.to_json()["correlation"]
    assert table["data"] == "digits"
    found = table["gradients"]["cross"]
    x = [run["gradients"]["blocks"]["cross"]["mean"] for run in analysed.runs]
    y = [run["reported"] for run in analysed.runs]
    assert found["n"] == 3
    assert found["r"] == pytest.approx(float(torch.corrcoef(torch.tensor([x, y], dtype=torch.float64))[0, 1]))


# The record: typed, checked when it is read


def changed(content: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """The content with one entry changed, or removed if the value is ``...``."""
    content = json.loads(json.dumps(content))
    *way, last = [int(step) if step.isdecimal() else step for step in path.split("/")]
    place = content
    for step in way:
        place = place[step]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return content


def test_attributes_have_their_types(analysed: Analyses, runs: Path) -> None:
    found = read_analysis(runs / "fedavg")
    assert found
    assert (found.method, found.point, found.probe_images, found.reproduced) == ("fedavg", "received", 40, True)
    assert [(c.id, c.kind) for c in found.clients] == [(0, "ann"), (1, "ann"), (2, "snn"), (3, "snn")]
    assert found.measures["mmd"].bandwidth_runs == 3
    assert found.measures["cka"].matrix[0][3] == found["cka"]["matrix"][0][3]
    assert found.measures["cka"].mean("cross") == found["cka"]["blocks"]["cross"]["mean"]
    assert found.measures["cka"].mean("bnn") is None
    assert [entry.round for entry in found.by_round] == [1, 2]
    assert found.by_round[0].accuracy["trained"]["all"] == found["by_round"][0]["accuracy"]["trained"]["all"]
    assert [list(rates.shares) for rates in found.rates] == [["snn"], ["snn"]]
    assert list(analysed.runs[0].rates[0].shares) == ["snn", "bridge"]


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("method", ..., "method is missing (must be text)"),
        ("reproduced", 1, "reproduced=1 (must be true or false)"),
        ("clients", 5, "clients=5 (must be a list)"),
        ("clients/1/kind", None, "clients[1].kind=null"),
        ("cka", [], "cka=[] (must be an object)"),
        ("cka/blocks/ann/mean", "high", 'cka.blocks.ann.mean="high"'),
        ("cka/blocks/ann/mean", float("nan"), "(must be finite and at most 1e100)"),
        ("mmd/matrix", [[1.0]], "mmd.matrix=[[1.0]] (must be 4 rows of 4 numbers, one for each client)"),
        ("mmd/matrix/2", "x", 'mmd.matrix[2]="x" (must be a list)'),
        ("mmd/matrix/2/1", "x", "(must be a list of numbers)"),
        ("gradients/matrix/0/1", float("inf"), "(must be finite and at most 1e100)"),
        ("rates/0/levels", [0.0], "(must be 1 numbers from 0 to 1, one for each level)"),
        ("rates/1/snn/output/0", -1.0, "rates[1].snn.output"),
        ("by_round/0/round", "one", 'by_round[0].round="one"'),
        ("by_round/1/mmd", ..., "by_round[1].mmd is missing"),
    ],
)
def test_the_error_names_an_invalid_entry(analysed: Analyses, path: str, value: Any, named: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_analysis(changed(analysed.runs[1].to_json(), path, value), Path("somewhere/analysis.json"))
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    assert message.startswith("somewhere/analysis.json: is not the analysis of a run: ")
    assert named in message


def test_other_formats(analysed: Analyses, tmp_path: Path) -> None:
    assert read_analysis(tmp_path) is None
    for other in (1, 3):
        with pytest.raises(
            BadInput, match=f"format={other} is not supported; this version of asfedbridge reads format 2"
        ):
            parse_analysis(changed(analysed.runs[1].to_json(), "format", other))
    (tmp_path / "analysis.json").write_text("[]")
    with pytest.raises(BadInput, match=r"analysis\.json: is not a JSON object"):
        read_analysis(tmp_path)


# Both points of every run


@pytest.mark.parametrize("method", MAIN)
def test_final_clients_can_be_analysed_at_either_point(
    method: str, analysed: Analyses, runs: Path, tmp_path: Path
) -> None:
    """The last checkpoint allows both; accuracies equal those that the run recorded at the point."""
    shutil.copytree(runs / method, tmp_path / "run")
    before = (tmp_path / "run" / "analysis.json").read_bytes()
    default = next(run for run in analysed.runs if run["method"] == method)
    other: Point = "trained" if default["point"] == "received" else "received"
    (found,) = analyse([tmp_path / "run"], tmp_path, quiet, other).runs
    assert (found["point"], found["reproduced"]) == (other, True)
    assert (tmp_path / "run" / "analysis.json").read_bytes() == before
    assert json.loads((tmp_path / "run" / f"analysis-{other}.json").read_text())["point"] == other
    if method == "fedavg":
        assert found["cka"] == default["by_round"][-1]["cka"] != default["cka"]
    else:  # the download does not change the backbone
        assert (found["cka"], found["gradients"]) == (default["cka"], default["gradients"])
    assert found["reported"] == default["reported"]


def test_a_run_whose_clients_are_on_nodes_is_refused(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "standalone", tmp_path / "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    (tmp_path / "run" / "summary.json").write_text(json.dumps(summary | {"engine": "flower"}))
    assert "a run of engine flower, whose clients are stored on their nodes" in one_line(tmp_path / "run")


# Reproducibility


def test_an_analysis_is_reproducible_and_does_not_modify_the_run(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "as-fedbridge", tmp_path / "run")
    (tmp_path / "run" / "analysis.json").unlink(missing_ok=True)
    before = files_in(tmp_path / "run")
    measure(tmp_path / "run")
    first = files_in(tmp_path / "run")
    measure(tmp_path / "run")
    assert files_in(tmp_path / "run") == first
    assert first == before | {"analysis.json": first["analysis.json"]}


def test_the_engine_makes_no_difference(runs: Path, tmp_path: Path) -> None:
    play(make_spec("as-fedbridge", snapshot_every=2), tmp_path / "pool", engine="pool", workers=2)
    shutil.copytree(runs / "as-fedbridge", tmp_path / "local")
    local, pool = ({**measure(tmp_path / name)[0], "folder": None} for name in ("local", "pool"))
    assert local == pool
    assert len(pool["by_round"]) == 1


def test_an_interrupted_run_has_the_same_snapshots(runs: Path, tmp_path: Path) -> None:
    spec = make_spec("fedavg", snapshot_every=1)
    with pytest.raises(KeyboardInterrupt):
        play(spec, tmp_path / "run", callbacks=[Leaves(0)])
    assert [p.name for p in (tmp_path / "run" / "snapshots").iterdir()] == ["round-000001"]
    play(spec, tmp_path / "run", resume=True)
    tensors = (
        {k: v for k, v in files_in(root / "snapshots").items() if k.endswith(".safetensors")}
        for root in (tmp_path / "run", runs / "fedavg")
    )
    assert next(tensors) == next(tensors)


def test_snapshots_can_be_enabled_when_resuming(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        play(make_spec(), tmp_path / "run", callbacks=[Leaves(0)])
    assert not (tmp_path / "run" / "snapshots").exists()
    play(make_spec(snapshot_every=2), tmp_path / "run", resume=True)
    assert [p.name for p in (tmp_path / "run" / "snapshots").iterdir()] == ["round-000002"]


# Other fleets


@pytest.mark.parametrize(
    ("changes", "blocks", "rates"),
    [
        ({"fleet": "2*resnet18@0.125:ann"}, ["ann"], 0),
        ({"fleet": "2*resnet18@0.125:snn"}, ["snn"], 2),
        ({"fleet": "1*resnet18@0.125:ann"}, [], 0),
        ({"method": "centralized"}, ["cross"], 1),
    ],
    ids=["ann only", "snn only", "one", "centralized"],
)
def test_blocks_without_pairs_are_absent(
    changes: dict[str, Any], blocks: list[str], rates: int, tmp_path: Path
) -> None:
    play(make_spec(changes.pop("method", "standalone"), rounds=1, **changes), tmp_path / "run")
    (found,) = measure(tmp_path / "run")
    assert [list(found[m]["blocks"]) for m in ("cka", "mmd", "gradients")] == [blocks] * 3
    assert len(found["rates"]) == rates
    assert found["reproduced"]
    assert cli.main(["analyze", str(tmp_path / "run")]) == 0


def test_clients_of_different_widths_are_compared_by_tensors_of_equal_shape(tmp_path: Path) -> None:
    fleet = "1*resnet18@0.125:ann,1*resnet18@0.125:snn,1*resnet18@0.25:snn:T=3"
    play(make_spec(fleet=fleet, rounds=1), tmp_path / "run")
    (found,) = measure(tmp_path / "run")
    assert found["gradients"]["tensors"] == ["classifier.bias", "classifier.weight"]
    assert "stem.weight" in found["gradients"]["not_shared"]
    assert found["gradients"]["scalars"][0][2] == 16 * 10 + 10 < found["gradients"]["scalars"][0][1]
    assert [len(r["levels"]) for r in found["rates"]] == [4, 5]
    assert found["mmd"]["blocks"]["cross"]["pairs"] == 2


def test_some_clients_of_each_kind_represent_a_large_fleet(tmp_path: Path) -> None:
    setting = prepare(make_spec(fleet="30*resnet18@0.1:ann,3*resnet18@0.1:snn", train_per_class=50), tmp_path)
    chosen = choose_clients(setting.clients)
    assert [c.id for c in chosen] == [*range(MAX_CLIENTS_PER_KIND), 30, 31, 32]


# Errors


def one_line(*folders: Path) -> str:
    with pytest.raises(BadInput) as caught:
        measure(*folders)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def test_an_unfinished_run_is_refused_before_anything_is_computed(runs: Path, tmp_path: Path) -> None:
    assert "is not a run folder" in one_line(runs / "fedavg", tmp_path)
    assert "is not a run folder" in one_line(tmp_path / "nowhere")
    with pytest.raises(KeyboardInterrupt):
        play(make_spec(), tmp_path / "run", callbacks=[Leaves(0)])
    assert "the run is not finished; finish it with resume=True" in one_line(tmp_path / "run")


def test_the_error_names_a_missing_or_damaged_checkpoint(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "standalone", tmp_path / "run")
    file = max((tmp_path / "run" / "checkpoint" / "clients").iterdir())  # of the last checkpoint
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert "damaged" in one_line(tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoint")
    assert "the checkpoint after the last round is missing" in one_line(tmp_path / "run")


def test_the_command_prints_tables_or_json(analysed: Analyses, runs: Path, capsys: Any) -> None:
    text = render_analyses(analysed)
    assert "correlation with accuracy on digits" in text
    assert f"{runs / 'fedavg'}, by round" in text
    assert cli.main(["analyze", str(runs / "fedavg"), "--json"]) == 0
    out, err = capsys.readouterr()
    assert [run["method"] for run in json.loads(out)["runs"]] == ["fedavg"]
    assert "CKA cross" in err
    assert "client 3" in err
    assert cli.main(["analyze", str(runs / "fedavg"), "--point", "trained"]) == 0
    assert f"written: {runs / 'fedavg' / 'analysis-trained.json'}" in capsys.readouterr().out
    assert cli.main(["analyze", str(runs)]) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
