"""Nodes with data of their own, the settings of a node, and the app that `flwr run` takes: without a network."""

import errno
import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from asfedbridge import cli
from asfedbridge.core.errors import BadInput, TooFewClients
from asfedbridge.core.task import Round
from asfedbridge.report.page import Lead, render_page
from asfedbridge.report.runs import gather
from asfedbridge.runs.callback import Callback, Run
from asfedbridge.runs.recipes import quickstart
from asfedbridge.runs.record_files import read_events, read_rounds
from asfedbridge.runs.setting import prepare
from asfedbridge.runs.spec import Spec, apply_overrides
from asfedbridge.runs.summary import Summary

pytest.importorskip("flwr")
from flwr.app import Context, Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from tests.deploy.grid import InProcessGrid

from asfedbridge.deploy import node_registry
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


class Waits(Callback):
    def __init__(self) -> None:
        self.told: list[str] = []

    def on_wait(self, reason: str) -> None:
        self.told.append(reason)


def test_a_server_says_whom_it_waits_for(
    nodes: dict[int, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_registry, "REMIND_AFTER", 0.0)
    monkeypatch.setattr(node_registry, "PAUSE", 0.01)
    waits = Waits()
    with pytest.raises(TooFewClients):
        serve(make_spec(), {0: nodes[0]}, tmp_path / "run", [waits], gathering=3.0)
    assert waits.told[0] == "waiting for 2 clients"
    assert waits.told[1].startswith("waiting for 1 clients: 1; a node that ends at once with 401")
    assert "its clock differs from the SuperLink's (run `asfedbridge flower check` on the node)" in waits.told[1]


def test_a_node_goes_back_only_if_it_is_told_to(nodes: dict[int, dict[str, Any]], tmp_path: Path) -> None:
    """The server has lost its checkpoint, but not the name of its run."""
    out, states = tmp_path / "run", tmp_path / "s"
    serve(make_spec(), nodes, out)
    before = {file: file.read_bytes() for file in states.rglob("client-*.safetensors")}
    shutil.rmtree(out / "checkpoint")
    for name in ("summary.json", "rounds.jsonl"):
        (out / name).unlink()
    with pytest.raises(TooFewClients, match="client 0: error, client 1: error"):
        serve(make_spec(), nodes, out, resume=True)
    reasons = [e["reason"] for e in read_events(out)]
    assert len(reasons) == 2
    assert all("refuses to go back to round 0: the server had a checkpoint of round 1" in reason for reason in reasons)
    assert {file: file.read_bytes() for file in states.rglob("client-*.safetensors")} == before
    allowed = {i: {**node, "allow-rollback": True} for i, node in nodes.items()}
    serve(make_spec(), allowed, out, resume=True)
    aside = {file.name.partition("-")[2]: file.read_bytes() for file in states.rglob("aside/*.safetensors")}
    last = {file.name: content for file, content in before.items() if file.name.endswith("2.safetensors")}
    assert aside == last
    with pytest.raises(BadInput, match="allow-rollback=1 must be true or false"):
        make_site(make_spec(), {**nodes[0], "allow-rollback": 1}, CONFIG)


@pytest.mark.parametrize("every", [1, 2])
def test_a_run_goes_back_to_an_earlier_checkpoint(nodes: Any, tmp_path: Path, every: int) -> None:
    """Nodes keep the states that the server's checkpoints belong to, and go back if they may."""
    spec, out = make_spec(rounds=6, checkpoint_every=every, keep_checkpoints=3), tmp_path / "run"
    whole = serve(spec, nodes, out)
    shutil.copytree(out, tmp_path / "whole")
    checkpoints = sorted(int(folder.name[6:]) for folder in (out / "checkpoint").iterdir())
    assert checkpoints == [6 - 2 * every, 6 - every, 6]
    back = checkpoints[0]
    allowed = {i: {**node, "allow-rollback": True} for i, node in nodes.items()}
    with pytest.raises(BadInput, match="has no checkpoint after"):
        serve(spec, allowed, out, resume=True, **{"from-round": back - 1})
    with pytest.raises(BadInput, match="from_round=3 works only with resume"):
        serve(spec, allowed, out, **{"from-round": 3})
    shutil.copytree(out, tmp_path / "refused")
    with pytest.raises(TooFewClients, match="client 0: error, client 1: error"):
        serve(spec, nodes, tmp_path / "refused", resume=True, **{"from-round": back})
    again = serve(spec, allowed, out, resume=True, **{"from-round": back})
    assert again.accuracy == whole.accuracy
    assert_same_runs(tmp_path / "whole", out, 6)
    aside = [file.name for file in (tmp_path / "s").rglob("aside/*")]
    assert len(aside) == 2
    assert all(name.endswith("round-000006.safetensors") for name in aside)


def test_a_full_disk_of_the_server_is_one_line_and_the_run_goes_on(
    nodes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, out, flush = make_spec(), tmp_path / "run", os.fsync
    whole = serve(
        spec, {i: {**node, "state-dir": str(tmp_path / "other")} for i, node in nodes.items()}, tmp_path / "w"
    )

    def full(handle: int) -> None:
        if "checkpoint/round-000002" in os.readlink(f"/proc/self/fd/{handle}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        flush(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BadInput, match=r"out=.*run: cannot write \(No space left on device\); free or change the disk"):
        serve(spec, nodes, out)
    monkeypatch.setattr(os, "fsync", flush)
    assert serve(spec, nodes, out, resume=True).accuracy == whole.accuracy
    assert_same_runs(tmp_path / "w", out, 2)


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
        (lambda node, folder: node | {"kind": "ann"}, "kind=ann but client 1 of this run's fleet is of kind snn"),
        (lambda node, folder: {k: v for k, v in node.items() if k != "data"}, "data is missing"),
        (lambda node, folder: node | {"data": f"npz:{folder}/none.npz"}, "none.npz"),
        (lambda node, folder: node | {"client-id": 2}, "client-id=2 is not in this run, which has 0 to 1"),
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


class Interrupts(Callback):
    def __init__(self, after: int) -> None:
        self.after = after

    def on_round_end(self, run: Run, rnd: Round, records: Any) -> None:
        if rnd.index == self.after:
            raise KeyboardInterrupt


def lies_of_two(client: int, index: int) -> bool:
    """Client 2 lies in every round, client 3 once."""
    return client == 2 or (client == 3 and index == 1)


Lie = tuple[str, float] | Callable[[Any, int], None] | None  # a metric, a change of all metrics in a round, or no reply


def hostile_run(
    tmp_path: Path,
    name: str,
    lie: Lie,
    stops: Sequence[int] = (),
    lies: Callable[[int, int], bool] = lies_of_two,
    **changes: Any,
) -> Summary:
    """Four nodes; what some report of some rounds is a lie; None: their process dies. Interrupted after some rounds."""
    spec = make_spec(**{"fleet": "2*resnet18@0.125:ann,2*resnet18@0.125:snn", "rounds": 6} | changes)
    config = CONFIG | {"out": str(tmp_path / name), "gathering": 0.0, "patience": 0.0, "round-timeout": 60.0}
    files = [write_data(tmp_path / f"{i}.npz", train=20 + 4 * i) for i in range(4)]
    nodes = {i: {"client-id": i, "data": files[i], "state-dir": str(tmp_path / f"{name}-{i}")} for i in range(4)}
    app = make_client_app(lambda context: make_site(spec, context.node_config, config))

    def meddle(node: int, message: Message, reply: Message) -> Message:
        about: Any = message.content["about"]
        if message.metadata.message_type == "train" and lies(node - 100, about["round"]):
            if lie is None:
                return Message(Error(ErrorCode.CLIENT_APP_CRASHED, "it died"), reply_to=message)
            metrics: Any = reply.content["metrics"]
            if callable(lie):
                lie(metrics, about["round"])
            else:
                metrics[lie[0]] = lie[1]
        return reply

    for number, last in enumerate([*stops, None]):
        grid = InProcessGrid({100 + i: (app, node) for i, node in nodes.items()})
        grid.meddle = meddle
        try:
            callbacks = [] if last is None else [Interrupts(last)]
            return serve_run(spec, grid, config | {"resume": number > 0}, callbacks)
        except KeyboardInterrupt:
            continue
    raise AssertionError


@pytest.mark.parametrize("lie", [("local.ce", 1e300), ("trained.accuracy", 1.7e38), ("trained.accuracy", -5.0)])
def test_who_lies_is_paused_and_the_run_ends_well(tmp_path: Path, lie: tuple[str, float]) -> None:
    summary = hostile_run(tmp_path, "run", lie)
    events = [(e.round, e.event, e.client) for e in read_events(tmp_path / "run")]
    refused = [0, 2, 5]
    assert [(r, w) for r, w, c in events if c == 2] == [
        *((r, w) for r in refused for w in ("refused", "quarantined")),
        (6, "refused"),  # the closing visit is for everybody
    ]
    assert [(r, w) for r, w, c in events if c == 3] == [(1, "refused"), (1, "quarantined")]
    rounds = {c: [r.round for r in read_rounds(tmp_path / "run") if r.client == c] for c in range(4)}
    assert rounds == {0: [*range(7)], 1: [*range(7)], 2: [], 3: [0, 3, 4, 5, 6]}
    assert all(0 <= value <= 100 for value in summary.accuracy.values())
    assert summary["clients"][2]["accuracy"] is None
    assert summary["events"] == {"refused": 5, "quarantined": 4}
    page = render_page(gather([tmp_path / "run"]), Lead())
    assert "Client events" in page
    assert "refused in 3 rounds; not asked before round 10" in page


def test_other_metrics_in_every_round_change_nothing(tmp_path: Path) -> None:
    """Client 2 reports none of the usual numbers, but 64 new ones in every round, as large as they may be."""

    def flood(metrics: Any, index: int) -> None:
        for name in list(metrics):
            del metrics[name]
        metrics.update({f"round{index}.x{n}.accuracy" if n % 2 else f"round{index}.{n}": 100.0 for n in range(62)})
        metrics.update({f"largest{index}.loss": 3.4e38, "local.ce": -3.4e38})

    summary = hostile_run(tmp_path, "run", flood, lies=lambda client, index: client == 2)
    assert summary["events"] == {}
    assert summary["clients"][2]["accuracy"] is None
    assert all(0 <= value < 100 for value in summary.accuracy.values())
    assert [c["id"] for c in summary["clients"] if c["accuracy"] is not None] == [0, 1, 3]
    page = render_page(gather([tmp_path / "run"]), Lead())
    assert "local.ce" in page
    assert page.count('data-label="round') < 24  # of 384 names


def test_who_never_replies_is_asked_less_and_less(tmp_path: Path) -> None:
    hostile_run(tmp_path, "run", None)
    events = [(e.round, e.event, e.client) for e in read_events(tmp_path / "run")]
    assert [(r, w) for r, w, c in events if c == 2] == [
        (0, "lost"), (1, "lost"), (1, "quarantined"), (3, "lost"), (3, "quarantined"), (6, "lost"),
    ]  # fmt: skip
    assert [(r, w) for r, w, c in events if c == 3] == [(1, "lost"), (2, "returned")]


def assert_same_runs(one: Path, other: Path, rounds: int) -> None:
    def plain(run: Path) -> list[dict[str, Any]]:
        lines = map(json.loads, (run / "rounds.jsonl").read_text().splitlines())
        # A server that was started again meets everybody anew: to it nobody has returned.
        return [{k: v for k, v in line.items() if k != "seconds"} for line in lines if line.get("event") != "returned"]

    assert plain(one) == plain(other)
    states = [
        safetensors.numpy.load_file(run / f"checkpoint/round-{rounds:06d}/server.safetensors") for run in (one, other)
    ]
    assert states[0].keys() == states[1].keys()
    assert all(states[0][k].tobytes() == states[1][k].tobytes() for k in states[0])


@pytest.mark.parametrize("lie", [("local.ce", 1e300), None])
def test_pauses_are_the_same_in_a_run_that_goes_on(tmp_path: Path, lie: tuple[str, float] | None) -> None:
    hostile_run(tmp_path, "whole", lie)
    hostile_run(tmp_path, "parts", lie, stops=[0, 1, 2, 4])
    assert_same_runs(tmp_path / "whole", tmp_path / "parts", 6)


@pytest.mark.parametrize(
    "method",
    [
        "fedproto",
        *(
            pytest.param(name, marks=pytest.mark.long)
            for name in ("as-fedbridge", "fedavg", "fedfree", "fedtgp", "sfedhifi", "standalone")
        ),
    ],
)
def test_a_void_round_is_survived_by_every_kind_of_state(tmp_path: Path, method: str) -> None:
    """In the first round there is no state to send yet, in round 3 there is. Interrupted after either."""
    options: dict[str, Any] = {"method": method, "rounds": 5}

    def everybody(client: int, index: int) -> bool:
        return index in (0, 3)

    summary = hostile_run(tmp_path, "whole", ("local.ce", 1e300), lies=everybody, **options)
    hostile_run(tmp_path, "parts", ("local.ce", 1e300), [0, 3], everybody, **options)
    assert_same_runs(tmp_path / "whole", tmp_path / "parts", 5)
    void = [e for e in read_events(tmp_path / "whole") if e.event == "void"]
    assert [(e.round, e.client) for e in void] == [(0, None), (3, None)]
    assert "0 of 4 clients sent a usable upload, 2 are needed; the server's state is unchanged" in void[0].reason
    played = {r.round for r in read_rounds(tmp_path / "whole")}
    assert played == {1, 2, 4, 5}
    assert summary["events"]["void"] == 2
    assert all(0 <= value <= 100 for value in summary.accuracy.values())
    page = render_page(gather([tmp_path / "whole"]), Lead())
    assert "the round" in page


def test_a_closing_visit_of_liars_ends_the_run_well(tmp_path: Path) -> None:
    summary = hostile_run(tmp_path, "run", ("received.loss", 1e300), lies=lambda client, index: index == 2, rounds=2)
    assert {r.round for r in read_rounds(tmp_path / "run")} == {0, 1}
    assert summary["events"] == {"refused": 4}
    assert summary.accuracy


def test_what_cannot_be_done_with_data_on_nodes(nodes: Any, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="needs all data in one place"):
        serve(make_spec(method="centralized"), nodes, tmp_path / "a")
    with pytest.raises(BadInput, match="snapshot_every"):
        serve(make_spec(snapshot_every=1), nodes, tmp_path / "b")
    with pytest.raises(TooFewClients, match="no node with usable data connected"):
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
    with pytest.raises(BadInput, match="client-id=2 is not in this run"):
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
    assert "already exists" in capsys.readouterr().err
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
