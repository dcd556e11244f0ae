"""Real Flower processes on loopback: every method has the bits of `local`, also when its server is killed."""

import dataclasses
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from asfedbridge.core.method import METHODS
from asfedbridge.runs.recipes import quickstart
from asfedbridge.runs.record_files import read_rounds
from asfedbridge.runs.run import execute
from asfedbridge.runs.spec import Spec, apply_overrides

pytest.importorskip("flwr")
from asfedbridge.deploy.app_folder import write_app
from asfedbridge.deploy.local_cluster import Loopback
from asfedbridge.deploy.local_run import PRELOAD, follow

pytestmark = pytest.mark.timeout(900)
ALWAYS = "as-fedbridge"  # the others with --all
SMALL = {
    "fleet": "2*resnet18@0.125:ann,2*resnet18@0.125:snn",
    "T": 2,
    "train_per_class": 3,
    "test_per_class": 2,
    "batch_size": 16,
    "feature_dim": 16,
    "partition": "iid",
    "rounds": 2,
    "threads": 1,
}


class Fleet:
    """One SuperLink and four SuperNodes for all the runs of this file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        nodes = {i: {"client-id": i, "state-dir": str(folder / "states" / str(i))} for i in range(4)}
        self.flower = Loopback(folder / "flower", nodes, PRELOAD)

    def begin(self, spec: Spec, out: Path, **config: Any) -> Path:
        reports = out.with_name(f"{out.name}-reports-{time.monotonic_ns()}")
        reports.mkdir()
        app = reports / "app"
        write_app(app, spec, {"out": str(out), "report-to": str(reports), **config})
        self.flower.submit(app)
        return reports

    def all_work(self, index: int) -> bool:
        """Whether every node has received all of its message of a round."""
        run = re.findall(r"started run (\d+)", self._log("flwr"))[-1]
        rounds = [self._log(f"node-{i}").partition(f"[RUN {run}, ROUND {index}]")[2] for i in range(4)]
        return all("Received successfully" in told for told in rounds)

    def _log(self, name: str) -> str:
        return (self.folder / "flower" / f"{name}.log").read_text(errors="replace")

    def state(self, out: Path, client: int, next_round: int) -> bytes:
        run = json.loads((out / "federation.json").read_text())["run"]
        name = f"client-{client:04d}"
        folder = self.folder / "states" / str(client) / run / name
        return (folder / f"{name}-round-{next_round:06d}.safetensors").read_bytes()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    started = Fleet(tmp_path_factory.mktemp("fleet"))
    yield started
    started.flower.close()


def make_spec(name: str, **changes: Any) -> Spec:
    fields = {f.name for f in dataclasses.fields(METHODS[name])}
    sizes = {"method.bridge_width": 0.34} if "bridge_width" in fields else {}
    return apply_overrides(quickstart(name), SMALL | sizes | changes)


def records(out: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in r.items() if k != "seconds"} for r in read_rounds(out)]


def compare(fleet: Fleet, spec: Spec, over: Path, local: Path) -> None:
    summary = execute(spec, local, local.parent)
    told = json.loads((over / "summary.json").read_text())
    assert records(over) == records(local)
    assert told["accuracy"] == summary["accuracy"]
    server = f"checkpoint/round-{spec.rounds:06d}/server.safetensors"
    assert (over / server).read_bytes() == (local / server).read_bytes()
    for client in (c["id"] for c in summary["clients"]):
        name = f"checkpoint/clients/client-{client:04d}-round-{spec.rounds:06d}.safetensors"
        assert fleet.state(over, client, spec.rounds) == (local / name).read_bytes()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == ALWAYS else pytest.mark.long) for name in sorted(METHODS)]
)
def test_every_method_has_the_bits_of_local(fleet: Fleet, tmp_path: Path, name: str) -> None:
    spec = make_spec(name)
    follow(fleet.flower, fleet.begin(spec, tmp_path / "over"), print)
    compare(fleet, spec, tmp_path / "over", tmp_path / "local")


@pytest.mark.parametrize(
    ("name", "when"),
    [
        # Nodes whose message is incomplete may wait for the rest until flwr gives it up, after three minutes.
        pytest.param("as-fedbridge", "it sends", marks=pytest.mark.long),
        pytest.param("fedproto", "clients work", marks=pytest.mark.long),
    ],
)
def test_a_killed_server_goes_on_with_the_same_bits(fleet: Fleet, tmp_path: Path, name: str, when: str) -> None:
    spec = make_spec(name, rounds=3)
    out = tmp_path / "over"
    everybody = {"min-clients": -1}  # a node may be busy for the killed server for longer than others wait for it
    fleet.begin(spec, out, **everybody)
    wait_for(lambda: len(read_rounds(out)) >= 4)  # round 0 is done, the next one is on its way
    if when == "clients work":
        wait_for(lambda: fleet.all_work(1))
    fleet.flower.restart_server()
    played = len(read_rounds(out))
    assert 4 <= played < 16
    follow(fleet.flower, fleet.begin(spec, out, resume=True, **everybody), print)
    compare(fleet, spec, out, tmp_path / "local")


def wait_for(condition: Any, seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)
