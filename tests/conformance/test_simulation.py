"""Flower's own simulation (Ray) plays the app of `asfedbridge flower init` with the bits of `local`."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from asfedbridge.runs.recipes import quickstart
from asfedbridge.runs.record_files import read_rounds
from asfedbridge.runs.run import execute
from asfedbridge.runs.spec import apply_overrides

pytest.importorskip("flwr")
pytest.importorskip("ray")
from tests.deploy.ports import free_port

from asfedbridge.deploy.app_folder import write_deployment
from asfedbridge.deploy.processes import QUIET

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
BIN = Path(sys.executable).parent
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
    "method.bridge_width": 0.34,
}


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """Nothing calls home, Ray stays on loopback and asks no cloud who it is."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "ray_bootstrap_config.yaml").write_text("provider: {type: local}\n")
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    own = {"HOME": str(home), "FLWR_HOME": str(home / "flower"), "PATH": path, "OMP_NUM_THREADS": "1"}
    return {**os.environ, **QUIET, **own, "RAY_worker_niceness": "0"}  # else it starves beside other work


@pytest.fixture
def superlink(tmp_path: Path, env: dict[str, str]) -> Iterator[str]:
    address = f"127.0.0.1:{free_port()}"
    (tmp_path / "home" / "flower").mkdir()
    (tmp_path / "home" / "flower" / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "{address}"\ninsecure = true\n'
    )
    command = ["flower-superlink", "--simulation", "--insecure", "--host=127.0.0.1", f"--port={address[10:]}"]
    with (tmp_path / "superlink.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=log, stderr=log, start_new_session=True)
    while "Uvicorn running" not in (tmp_path / "superlink.log").read_text():
        assert process.poll() is None
        time.sleep(0.2)
    yield address
    os.killpg(process.pid, signal.SIGKILL)  # with Ray's driver, and Ray goes when it goes
    process.wait(60)


def test_the_app_has_the_bits_of_local_in_a_simulation(superlink: str, env: dict[str, str], tmp_path: Path) -> None:
    spec = apply_overrides(quickstart(), SMALL)
    write_deployment(tmp_path / "federation", spec)
    out = tmp_path / "run"
    words = ["flwr", "run", "federation/app", "here", "--stream", "--run-config", f'out="{out}"']
    words += ["--federation-config", "num-supernodes=4 client-resources-num-cpus=1 init-args-num-cpus=2"]
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=1500)
    log = (tmp_path / "superlink.log").read_text()
    assert (out / "summary.json").exists(), f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}\n{log[-3000:]}"
    local = tmp_path / "local"
    summary = execute(spec, local, tmp_path)
    told = json.loads((out / "summary.json").read_text())
    assert told["accuracy"] == summary["accuracy"]
    assert told["events"] == {}
    ours, theirs = (
        [{k: v for k, v in r.items() if k != "seconds"} for r in read_rounds(folder)] for folder in (out, local)
    )
    assert ours == theirs
    server = f"checkpoint/round-{spec.rounds:06d}/server.safetensors"
    assert (out / server).read_bytes() == (local / server).read_bytes()
    run = json.loads((out / "federation.json").read_text())["run"]
    for client in range(4):
        name = f"client-{client:04d}-round-{spec.rounds:06d}.safetensors"
        state = out / "nodes" / run / f"client-{client:04d}" / name
        assert state.read_bytes() == (local / "checkpoint" / "clients" / name).read_bytes()
