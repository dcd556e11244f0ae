"""TLS, node keys and four SuperNodes in four folders: one is killed and comes back, one sends NaN, one hangs."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch

from asfedbridge.runs.recipes import quickstart
from asfedbridge.runs.record_files import read_events, read_rounds
from asfedbridge.runs.run import execute
from asfedbridge.runs.spec import apply_overrides

pytest.importorskip("flwr")
import httpx
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.proto.node_pb2 import Node
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
from tests.deploy.ports import free_port

from asfedbridge.deploy.app_folder import write_deployment
from asfedbridge.deploy.processes import QUIET

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]
BIN = Path(sys.executable).parent
KILLED, FALSE, STUCK = 1, 2, 3
GUESS = 10.0  # percent: the digits are of ten classes, in equal numbers
SHOWN = (0, KILLED)  # the ANNs that deliver; the SNN has not learned much by then
MARGIN = 15.0  # points: two test sets of 50 images, one client misses rounds, another's uploads never count
SMALL = {
    "fleet": "3*resnet18@0.125:ann,1*resnet18@0.125:snn",
    "T": 2,
    "train_per_class": 60,
    "test_per_class": 20,
    "batch_size": 8,
    "feature_dim": 32,
    "partition": "iid",
    "rounds": 12,  # ANNs then get about half of the digits right
    "threads": 1,
    "method.bridge_width": 0.34,
}
# The app of this federation, with two clients in it that misbehave if their node config says so.
ODD = """

import time
import numpy as np
from flwr.clientapp import ClientApp

from asfedbridge.engines import host

honest = apps[1]


class Odd(ClientApp):
    def __call__(self, message, context):
        mischief = context.node_config.get("mischief", "")
        turn = message.metadata.message_type == "train"
        if mischief == "hang" and turn and message.content["about"]["round"] == 1:
            host.take_turn = lambda *args: time.sleep(10**6)  # in the middle of its turn
        reply = honest(message, context)
        if mischief == "nan" and turn and "payload" in reply.content:
            array = reply.content["payload"]["flat"]
            array.data = array.data[:-4] + np.float32("nan").tobytes() if array.data else b""
        return reply


client = Odd()
"""


class Federation:
    """Flower's programs as docs/deployment.md starts them, each in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "server"
        self.port = free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        write_deployment(self.home, apply_overrides(quickstart(), SMALL))
        module = self.home / "app" / "bridge_app" / "__init__.py"
        module.write_text(module.read_text() + ODD)
        subprocess.run(["sh", "certificates.sh", "127.0.0.1"], cwd=self.home, check=True, capture_output=True)
        (self.home / "flower-home").mkdir()
        (self.home / "flower-home" / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{self.port}"\n'
            f'root-certificates = "{self.home}/certificates/ca.crt"\n'
        )
        self.start(
            "superlink", self.home, "flower-superlink", "--host=127.0.0.1", f"--port={self.port}",
            "--enable-supernode-auth", "--ssl-certfile=certificates/server.pem",
            "--ssl-keyfile=certificates/server.key", "--ssl-ca-certfile=certificates/ca.crt",
        )  # fmt: skip
        wait_for(lambda: "Uvicorn running" in self.log("superlink"))

    def start(self, name: str, folder: Path, *command: str) -> None:
        path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
        env = {**os.environ, **QUIET, "FLWR_HOME": str(folder / "flower-home"), "PATH": path, "OMP_NUM_THREADS": "1"}
        log = (self.folder / f"{name}.log").open("ab")
        self.processes[name] = subprocess.Popen(command, cwd=folder, env=env, stdout=log, stderr=log)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def flwr(self, *words: str) -> str:
        self.start("flwr", self.home, "flwr", *words)
        assert self.processes.pop("flwr").wait(300) == 0, self.log("flwr")
        return self.log("flwr")

    def make_key(self, name: str, register: bool = True) -> Path:
        folder = self.folder / name
        folder.mkdir()
        subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", folder / "key"], check=True)
        if register:
            self.flwr("supernode", "register", str(folder / "key.pub"), "here", "--name", name)
        return folder

    def start_node(self, name: str, config: str, brisk: bool = True) -> None:
        folder, port = self.folder / name, free_port()
        isolation = ["--isolation=process"] if brisk else []
        states = json.dumps(str(folder / "states"))
        self.start(
            name, folder, "flower-supernode", f"--superlink=127.0.0.1:{self.port}",
            f"--root-certificates={self.home}/certificates/ca.crt", "--auth-supernode-private-key=key",
            "--host=127.0.0.1", f"--port={port}", *isolation, "--node-config", f"{config} state-dir={states}",
        )  # fmt: skip
        if brisk:
            self.start(f"{name}-tasks", folder, "asfedbridge", "flower", "tasks", f"127.0.0.1:{port}", "--insecure")

    def kill(self, name: str) -> None:
        for part in (name, f"{name}-tasks"):
            if part in self.processes:
                process = self.processes.pop(part)
                process.send_signal(signal.SIGKILL)
                process.wait()


def wait_for(condition: Any, seconds: float = 1800) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    made = Federation(tmp_path)
    yield made
    for name in list(made.processes):
        made.kill(name)


def backbone(file: Path) -> bytes:
    tensors = safetensors.torch.load_file(file)
    return b"".join(tensors[name].numpy().tobytes() for name in sorted(tensors) if name.startswith("module/backbone"))


def test_a_federation_bears_its_faults(federation: Federation, tmp_path: Path) -> None:
    mischief = {FALSE: ' mischief="nan"', STUCK: ' mischief="hang"'}
    for client in range(4):
        federation.make_key(f"node{client}")
        federation.start_node(f"node{client}", f"client-id={client}{mischief.get(client, '')}")
    check_that_a_key_opens_its_own_box_only(federation)
    out = federation.home / "run"
    settings = f'out="{out}" min-clients=1 round-timeout=90 gathering=600'
    started = federation.flwr("run", "app", "here", "--run-config", settings, "--format", "json")
    (run,) = re.findall(r'"run-id": "(\d+)"', started)

    def played() -> int:
        return max((r["round"] for r in read_rounds(out)), default=-1)

    wait_for(lambda: played() >= 0)
    federation.kill(f"node{KILLED}")  # in the second round, in which another one hangs
    assert played() == 0
    (kept,) = (federation.folder / f"node{KILLED}" / "states").rglob("client-*-round-*.safetensors")
    before = backbone(kept)

    # Meanwhile somebody whose key nobody registered wants to be the client that is missing.
    federation.make_key("stranger", register=False)
    federation.start_node("stranger", f"client-id={KILLED}", brisk=False)
    assert federation.processes["stranger"].wait(300) != 0
    assert "Failed to activate SuperNode" in federation.log("stranger")
    assert "SuperNode ID" not in federation.log("stranger")

    wait_for(lambda: played() >= 2)  # the fourth round has begun
    assert backbone(kept) == before

    def again() -> bool:  # as a supervisor would: turned away until its heartbeat has run out
        name = f"node{KILLED}"
        if name not in federation.processes or federation.processes[name].poll() is not None:
            federation.kill(name)
            federation.start_node(name, f"client-id={KILLED}")
            time.sleep(20)
        return (out / "summary.json").exists() or any(e["event"] == "returned" for e in read_events(out))

    wait_for(again)
    wait_for(lambda: (out / "summary.json").exists())
    check_what_was_told(out)
    log = federation.flwr("log", run, "here", "--show")
    for what in (f"{FALSE} refused", f"{STUCK} timeout", f"{STUCK} returned", f"{KILLED} returned"):
        assert f"client {what}" in log
    check_that_it_went_on_with_its_state(out)
    summary = json.loads((out / "summary.json").read_text())
    local = execute(apply_overrides(quickstart(), SMALL), tmp_path / "local", tmp_path)
    ours, expected = accuracy(summary), accuracy(local)
    print({"with faults": ours, "local": expected, "events": summary["events"]})
    assert expected > GUESS + 2 * MARGIN  # or there would be nothing to lose
    assert ours > expected - MARGIN
    assert SMALL["rounds"] in {r["round"] for r in read_rounds(out) if r["client"] == KILLED}


def check_that_a_key_opens_its_own_box_only(federation: Federation) -> None:
    """A registered node that asks for another's messages, with flwr's own client and its own key, gets none."""
    own, other = (wait_for_number(federation, f"node{client}") for client in (0, 1))
    key = load_ssh_private_key((federation.folder / "node0" / "key").read_bytes(), None)
    assert isinstance(key, EllipticCurvePrivateKey)
    client = FleetHttpClient.from_server_address(
        f"127.0.0.1:{federation.port}",
        insecure=False,
        root_certificates=f"{federation.home}/certificates/ca.crt",
        interceptors=[NodeAuthHttpInterceptor(key, key.public_key())],
    )
    assert not client.PullMessages(PullMessagesRequest(node=Node(node_id=own))).messages_list  # there are none yet
    with pytest.raises(httpx.HTTPStatusError, match="401"):
        client.PullMessages(PullMessagesRequest(node=Node(node_id=other)))


def wait_for_number(federation: Federation, name: str) -> int:
    """By which the SuperLink knows a node."""
    wait_for(lambda: "SuperNode ID" in federation.log(name))
    (number,) = re.findall(r"SuperNode ID: (\d+)", federation.log(name))
    return int(number)


def accuracy(summary: dict[str, Any]) -> float:
    found = [c["accuracy"] for c in summary["clients"] if c["id"] in SHOWN]
    return float(sum(found) / len(SHOWN))


def check_what_was_told(out: Path) -> None:
    events = read_events(out)
    told = [(e["client"], e["round"], e["event"]) for e in events]
    rounds = int(str(SMALL["rounds"]))
    assert {c for c, _, _ in told} == {KILLED, FALSE, STUCK}  # and nobody else, no stranger
    refused = [e for e in events if e["event"] == "refused"]
    turns = [n for n in (0, 2, 5, 10, 19) if n < rounds]  # after pauses of 1, 2, 4 and 8 rounds; nothing in the closing
    assert [(e["client"], e["round"]) for e in refused] == [(FALSE, n) for n in turns]
    assert [(c, n) for c, n, what in told if what == "quarantined"] == [(FALSE, n) for n in turns]
    assert all("NaN or infinity" in e["reason"] for e in refused)
    assert {r["round"] for r in read_rounds(out) if r["client"] == FALSE} == {rounds}
    assert [t for t in told if t[0] == STUCK] == [(STUCK, 1, "timeout"), (STUCK, 2, "returned")]
    away = [n for c, n, what in told if c == KILLED and what in ("lost", "absent", "timeout")]
    assert away[:2] == [1, 2]
    back = [n for c, n, what in told if c == KILLED and what == "returned"]
    assert len(back) == 1
    assert 3 <= back[0] < rounds
    assert away == list(range(1, back[0]))


def check_that_it_went_on_with_its_state(out: Path) -> None:
    """The private backbone it comes back with is the one it had trained in the first round."""
    records = [r for r in read_rounds(out) if r["client"] == KILLED]
    first, second = records[:2]
    (returned,) = [e for e in read_events(out) if e["client"] == KILLED and e["event"] == "returned"]
    assert first["round"] == 0
    assert second["round"] == returned["round"]
    assert "trained last in round 0" in returned["reason"]
    assert second["received.accuracy"] == first["trained.accuracy"]
    assert second["received.loss"] == first["trained.loss"]
