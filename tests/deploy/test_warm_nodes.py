"""Real SuperNodes whose turns share a process: the bits of `local`, also after it was killed, and nobody is left."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.deploy.test_turn_process import gone, wait_for

from asfedbridge.runs.recipes import quickstart
from asfedbridge.runs.run import execute
from asfedbridge.runs.spec import Spec, apply_overrides

pytest.importorskip("flwr")
from asfedbridge.deploy.app_folder import write_app
from asfedbridge.deploy.local_cluster import Loopback
from asfedbridge.deploy.local_run import PRELOAD, follow

pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
]
WARM, COLD = 0, 1
SMALL = {
    "fleet": "1*resnet18@0.125:ann,1*resnet18@0.125:snn", "T": 2, "train_per_class": 2, "test_per_class": 1,
    "batch_size": 8, "feature_dim": 16, "partition": "iid", "rounds": 3, "threads": 1, "method.bridge_width": 0.34,
}  # fmt: skip


class Fleet:
    """One node whose process waits for its next turn, and one that has a new process for each turn."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        nodes: dict[int, dict[str, Any]] = {
            i: {"client-id": i, "state-dir": str(folder / "states" / str(i))} for i in (WARM, COLD)
        }
        nodes[COLD]["keep-warm"] = 0
        self.flower = Loopback(folder / "flower", nodes, PRELOAD)

    def turns(self, client: int) -> set[int]:
        """The processes forked by the node's task server."""
        server, found = self.flower._processes[f"tasks-{client}"].pid, set()
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                words = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(words[1]) == server and words[0] != "Z":
                found.add(int(stat.parent.name))
        return found

    def play(self, spec: Spec, out: Path, at_line: Any) -> Any:
        reports = out.with_name(f"{out.name}-reports")
        reports.mkdir()
        write_app(reports / "app", spec, {"out": str(out), "report-to": str(reports), "min-clients": 1})
        self.flower.submit(reports / "app")
        follow(self.flower, reports, at_line)
        return json.loads((out / "summary.json").read_text())


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    started = Fleet(tmp_path_factory.mktemp("fleet"))
    yield started
    started.flower.close()


def server_state(out: Path, rounds: int) -> bytes:
    return (out / f"checkpoint/round-{rounds:06d}/server.safetensors").read_bytes()


@pytest.mark.long
def test_turns_share_a_process_and_have_the_bits_of_local(fleet: Fleet, tmp_path: Path) -> None:
    spec = apply_overrides(quickstart(), SMALL)
    seen: dict[int, list[set[int]]] = {WARM: [], COLD: []}

    def look(line: str) -> None:
        if line.startswith("round"):
            for client, found in seen.items():
                found.append(fleet.turns(client))

    told = fleet.play(spec, tmp_path / "over", look)
    assert told["events"] == {}
    at_work = [found for found in seen[WARM] if found]  # quick rounds share a line of progress
    assert len(at_work) >= 2
    assert len(set.union(*at_work)) == 1
    wait_for(lambda: not fleet.turns(WARM) | fleet.turns(COLD))  # the closing visit was the last turn
    execute(spec, tmp_path / "local", tmp_path)
    assert server_state(tmp_path / "over", spec.rounds) == server_state(tmp_path / "local", spec.rounds)


@pytest.mark.long
def test_a_killed_process_is_replaced(fleet: Fleet, tmp_path: Path) -> None:
    spec = apply_overrides(quickstart(), SMALL | {"rounds": 4})
    killed: set[int] = set()
    later: set[int] = set()

    def kill(line: str) -> None:
        if line.startswith("round 1/"):
            killed.update(fleet.turns(WARM))
            for process in killed:
                os.kill(process, signal.SIGKILL)
        elif line.startswith("round"):
            later.update(fleet.turns(WARM))

    told = fleet.play(spec, tmp_path / "over", kill)
    assert len(killed) == 1
    assert later - killed
    assert all(gone(process) for process in killed)
    if not told["events"]:  # it was not in a turn
        execute(spec, tmp_path / "local", tmp_path)
        assert server_state(tmp_path / "over", spec.rounds) == server_state(tmp_path / "local", spec.rounds)


@pytest.mark.long
def test_a_node_that_is_stopped_leaves_no_process(fleet: Fleet, tmp_path: Path) -> None:
    seen: set[int] = set()

    def end(line: str) -> None:
        if line.startswith("round 1/"):
            seen.update(fleet.turns(WARM))
            fleet.flower._processes[f"tasks-{WARM}"].terminate()
            raise InterruptedError

    with pytest.raises(InterruptedError):
        fleet.play(apply_overrides(quickstart(), SMALL), tmp_path / "over", end)
    assert seen
    wait_for(lambda: all(gone(process) for process in seen))
