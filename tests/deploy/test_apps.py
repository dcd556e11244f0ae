"""Nodes with data of their own, the settings of a node, and the app that `flwr run` takes: without a network."""

import importlib
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from asfedbridge import cli
from asfedbridge.core.errors import BadInput, TooFewClients
from asfedbridge.core.task import Round
from asfedbridge.runs.callback import Callback, Run
from asfedbridge.runs.folder import read_events, read_rounds
from asfedbridge.runs.recipes import quickstart
from asfedbridge.runs.run import prepare
from asfedbridge.runs.spec import Spec, apply_overrides
from asfedbridge.runs.summary import Summary

pytest.importorskip("flwr")
from flwr.app import Context, RecordDict
from tests.deploy.grid import InProcessGrid

from asfedbridge.deploy.app_folder import CONFIG
from asfedbridge.deploy.apps import make_site, serve_run
from asfedbridge.deploy.node import make_client_app

TINY = {
    "data": "nodes",
    "fleet": "1*resnet18@0.125:ann,1*resnet18@0.125:snn",
    "T": 2,
    "image_size": 8,
    "batch_size": 8,
    "feature_dim": 16,
    "rounds": 2,
    "threads": 1,
    "method": "fedproto",
}


def make_spec(**changes: Any) -> Spec:
    return apply_overrides(quickstart("fedproto"), TINY | changes)


def write_data(path: Path, classes: int = 10, train: int = 20, **more: Any) -> str:
    draw = np.random.default_rng(len(path.name) + train)
    images = {f"x_{part}": draw.integers(0, 256, (n, 8, 8), np.uint8) for part, n in (("train", train), ("test", 10))}
    labels = {f"y_{part}": np.arange(n) % classes for part, n in (("train", train), ("test", 10))}
    np.savez(path, **images, **labels, **more)
    return f"npz:{path}"


@pytest.fixture
def nodes(tmp_path: Path) -> dict[int, dict[str, Any]]:
    """Node configs: each has its own data and its own folder."""
    return {
        i: {
            "client-id": i,
            "data": write_data(tmp_path / f"{i}.npz", train=20 + 4 * i),
            "state-dir": str(tmp_path / "s"),
        }
        for i in range(2)
    }


def serve(
    spec: Spec, nodes: dict[int, dict[str, Any]], out: Path, callbacks: Sequence[Callback] = (), **config: Any
) -> Summary:
    config = CONFIG | {"out": str(out), "gathering": 0.0, "patience": 0.0, "round-timeout": 60.0} | config
    app = make_client_app(lambda context: make_site(spec, context.node_config, config))
    grid = InProcessGrid({100 + number: (app, node) for number, node in nodes.items()})
    return serve_run(spec, grid, config, callbacks)


class Stops(Callback):
    def on_round_end(self, run: Run, rnd: Round, records: Any) -> None:
        run.stop("enough")


def test_a_run_that_is_stopped_early_ends_with_a_closing_visit(nodes: Any, tmp_path: Path) -> None:
    """Nodes learn from the message that no training comes: by the specification it would be the second round."""
    summary = serve(make_spec(rounds=3), nodes, tmp_path / "run", [Stops()])
    assert summary.stopped_early
    assert summary.stopped_early.rounds == 1
    records = read_rounds(tmp_path / "run")
    assert [(r.round, r.client) for r in records] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert all("trained.accuracy" in r for r in records[:2])
    assert all("received.accuracy" in r and "trained.accuracy" not in r for r in records[2:])
    assert all(r.uplink_bytes == 0 for r in records[2:])


def test_nodes_bring_their_own_data(nodes: Any, tmp_path: Path) -> None:
    summary = serve(make_spec(), nodes, tmp_path / "run")
    assert [(c["train"], c["test"]) for c in summary["clients"]] == [(20, 10), (24, 10)]  # as the nodes said
    assert summary["data"] == "nodes"
    assert summary["events"] == {}
    assert len(read_rounds(tmp_path / "run")) == 2 * 3
    assert serve(make_spec(), nodes, tmp_path / "run", resume=True) == summary  # is finished already


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda node, folder: node | {"data": write_data(folder / "x.npz", classes=7)}, "others have"),
        (lambda node, folder: node | {"kind": "ann"}, "kind=ann but client 1 of this run's fleet is of snn"),
        (lambda node, folder: {k: v for k, v in node.items() if k != "data"}, "data is missing"),
        (lambda node, folder: node | {"data": f"npz:{folder}/none.npz"}, "none.npz"),
        (lambda node, folder: node | {"client-id": 2}, "client-id=2 is not of this run, which has 0 to 1"),
        (lambda node, folder: node | {"client-id": "1"}, "client-id='1' must be the number of a client"),
    ],
)
def test_a_node_that_does_not_fit_is_named(nodes: Any, tmp_path: Path, change: Any, reason: str) -> None:
    nodes[1] = change(nodes[1], tmp_path)
    summary = serve(make_spec(), nodes, tmp_path / "run", **{"min-clients": 1})
    events = read_events(tmp_path / "run")
    assert reason in events[0]["reason"]
    assert summary["events"]["absent"] == 3
    assert {r["client"] for r in read_rounds(tmp_path / "run")} == {0}


def test_what_cannot_be_done_with_data_on_nodes(nodes: Any, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="needs everybody's data in one place"):
        serve(make_spec(method="centralized"), nodes, tmp_path / "a")
    with pytest.raises(BadInput, match="snapshot_every"):
        serve(make_spec(snapshot_every=1), nodes, tmp_path / "b")
    with pytest.raises(TooFewClients, match="no node came whose data could be used"):
        serve(make_spec(), {}, tmp_path / "c")
    with pytest.raises(BadInput, match="asfedbridge flower init"):
        prepare(make_spec(), tmp_path)


def test_a_simulations_nodes_are_numbered_by_flower(tmp_path: Path) -> None:
    spec = make_spec(data="digits", partition="iid", train_per_class=2, test_per_class=1)
    config = CONFIG | {"out": str(tmp_path / "run")}
    site = make_site(spec, {"partition-id": 1, "num-partitions": 2}, config)
    assert site.info.id == 1
    assert site.states == tmp_path / "run" / "nodes"
    assert make_site(spec, {"client-id": 0, "partition-id": 1}, config).states == Path("states").absolute()
    with pytest.raises(BadInput, match="client-id=2 is not of this run"):
        make_site(spec, {"partition-id": 2}, config)


# asfedbridge flower init


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    words = [f"{key}={value}" for key, value in TINY.items()]
    assert cli.main(["flower", "init", str(tmp_path / "made"), *words]) == 0
    return tmp_path / "made"


def load_app(folder: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(folder / "app"))
    monkeypatch.delitem(sys.modules, "bridge_app", raising=False)
    return importlib.import_module("bridge_app")


def test_the_app_of_init_plays_the_specification(
    folder: Path, nodes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ServerApp and ClientApp, as Flower loads and calls them."""
    app = load_app(folder, monkeypatch)
    grid = InProcessGrid({100 + number: (app.client, node) for number, node in nodes.items()})
    config = {"out": str(tmp_path / "run"), "gathering": 0.0, "report-to": str(tmp_path)}
    context = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=config)
    app.server(grid, context)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["events"] == {}
    assert json.loads((tmp_path / "outcome.json").read_text()) == {}
    assert "round 2/2" in (tmp_path / "progress.txt").read_text()
    direct = serve(
        make_spec(), nodes | {i: n | {"state-dir": str(tmp_path / "t")} for i, n in nodes.items()}, tmp_path / "b"
    )
    assert direct["accuracy"] == summary["accuracy"]


def test_init_writes_what_flower_reads(folder: Path) -> None:
    from flwr.common.config import get_project_config, validate_config

    config = get_project_config(folder / "app")
    valid, errors, warnings = validate_config(config)
    assert (valid, errors, warnings) == (True, [], [])
    assert config["tool"]["flwr"]["app"]["config"] == CONFIG
    assert config["project"]["dependencies"] == []
    assert (folder / "certificates.sh").stat().st_mode & 0o111
    assert "deployment.md" in (folder / "README.md").read_text()
    assert 'data = "nodes"' in (folder / "app" / "bridge_app" / "spec.toml").read_text()


@pytest.mark.parametrize("words", [["methdo=fedavg"], ["nosuchrecipe"], ["fleet=3*resnet18"]])
def test_init_says_what_is_wrong_and_writes_nothing(words: list[str], tmp_path: Path, capsys: Any) -> None:
    assert cli.main(["flower", "init", str(tmp_path / "made"), *words]) == 2
    assert len(capsys.readouterr().err.splitlines()) <= 2
    assert not (tmp_path / "made").exists()


def test_init_overwrites_nothing(folder: Path, capsys: Any) -> None:
    before = (folder / "README.md").stat().st_mtime_ns
    assert cli.main(["flower", "init", str(folder)]) == 2
    assert "there is something already" in capsys.readouterr().err
    assert (folder / "README.md").stat().st_mtime_ns == before


def test_certificates_are_for_all_names_and_keys_are_the_users_alone(folder: Path) -> None:
    subprocess.run(["sh", "certificates.sh", "127.0.0.1", "localhost"], cwd=folder, check=True, capture_output=True)
    made = folder / "certificates"
    words = ["openssl", "x509", "-in", str(made / "server.pem"), "-noout", "-ext", "subjectAltName"]
    text = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    assert "IP Address:127.0.0.1, DNS:localhost" in text
    verify = ["openssl", "verify", "-CAfile", str(made / "ca.crt"), str(made / "server.pem")]
    assert subprocess.run(verify, capture_output=True).returncode == 0
    assert {f.name: f.stat().st_mode & 0o777 for f in made.glob("*.key")} == {"ca.key": 0o600, "server.key": 0o600}


def test_a_run_that_fails_says_so_where_it_reports(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = load_app(folder, monkeypatch)
    config = {"out": str(tmp_path / "run"), "gathering": 0.0, "patience": 0.0, "report-to": str(tmp_path)}
    context = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=config)
    with pytest.raises(TooFewClients):
        app.server(InProcessGrid({}), context)
    told = json.loads((tmp_path / "outcome.json").read_text())
    assert told["kind"] == "TooFewClients"
