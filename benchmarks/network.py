"""Whole runs on each engine, for `latency.py --network`: time per round, and memory of the server's process.

The method is AS-FedBridge with a Bridge of realistic size (3.93 MB each way) and few images, so that payload transfer
dominates. Every run starts and ends all its processes: idle nodes poll for work and would slow down the next
contender.
"""

import argparse
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from asfedbridge.core.errors import WorkerLost
from asfedbridge.core.task import Round
from asfedbridge.engines.process import die_with
from asfedbridge.runs.callback import Callback, Run
from asfedbridge.runs.recipes import quickstart
from asfedbridge.runs.run import execute
from asfedbridge.runs.spec import Spec, apply_overrides
from sidebyside import Answer, Case, Contender, Work

BIN = Path(sys.executable).parent
# Appended to the app: the same apps, whose server reports the end of every round and its memory.
WEIGHED = """

class Weighed(Progress):
    def on_round_end(self, run, rnd, records):
        super().on_round_end(run, rnd, records)
        if not rnd.closing:
            self._line("server: end of a round")
        for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
            if line.startswith(("Rss:", "Pss:")):
                self._line("server: " + line)


apps = make_apps(Path(__file__).with_name("spec.toml"), Weighed)
server = apps[0]
client = apps[1]
"""
NAMES = ("local", "pool of 2", "flower forked", "flower as shipped", "flower simulated")
Tell = Callable[[str], None]


@dataclass
class Diary(Callback):
    """The end times of rounds for each run, and the server's memory at those times."""

    ends: list[list[float]] = field(default_factory=list)
    held: dict[str, list[int]] = field(
        default_factory=dict
    )  # bytes: resident (RSS), and with shared pages counted in proportion (PSS)

    def begin(self) -> None:
        self.ends.append([])

    def tell(self, line: str) -> None:
        if line == "server: end of a round":
            self.ends[-1].append(time.perf_counter())
        if found := re.match(r"server: (Rss|Pss):\s+(\d+) kB", line):
            self.held.setdefault(found[1].upper(), []).append(1024 * int(found[2]))

    def on_round_end(self, run: Run, rnd: Round, records: Sequence[Mapping[str, Any]]) -> None:
        self.ends[-1].append(time.perf_counter())

    def facts(self, rounds: int) -> dict[str, Any]:
        """Mean seconds of the rounds after the first one, which includes setup."""
        each = [(ends[rounds - 1] - ends[0]) / (rounds - 1) for ends in self.ends]
        held = {f"server's {kind} in bytes": int(np.median(values)) for kind, values in self.held.items()}
        return {"seconds a round": round(float(np.median(each)), 3), **held}


def check(names: str) -> str:
    if not re.fullmatch(r"([2-9]|[1-9]\d+)(x[1-9])?(,([2-9]|[1-9]\d+)(x[1-9])?)*", names):
        raise argparse.ArgumentTypeError(f"{names}: give numbers of clients such as 4,10,4x4")
    return names


def cases(names: str, quick: bool) -> list[Case]:
    """``names`` such as 4,10,4x4: numbers of clients, and after an x the factor of the width of private models."""
    found: list[Case] = []
    for name in names.split(","):
        clients, _, wider = name.partition("x")
        found.append({"clients": int(clients), "width": 0.125 * int(wider or 1), "rounds": 3 if quick else 5})
    return found


def make_spec(case: Case) -> Spec:
    half = case["clients"] // 2
    kinds = f"{half}*resnet18@{case['width']:g}:ann,{case['clients'] - half}*resnet18@{case['width']:g}:snn"
    changes = {
        "fleet": kinds, "T": 2, "rounds": case["rounds"], "train_per_class": 20, "test_per_class": case["clients"],
        "partition": "iid", "batch_size": 16, "method.bridge_width": 1.0, "threads": 1,
    }  # fmt: skip
    return apply_overrides(quickstart(), changes)


def contenders(case: Case) -> list[Contender]:
    def over(start: "Start") -> Callable[[Case], Work]:
        return lambda case: work(case, lambda spec, out, diary: play_over(start, spec, out, diary.tell))

    def inside(engine: str) -> Callable[[Case], Work]:
        return lambda case: work(
            case, lambda spec, out, diary: execute(spec, out, out, [diary], engine=engine, workers=2)
        )

    few = "starts a process of several seconds for each message; with 4 nodes only" if case["clients"] > 4 else ""
    local, pool, forked, shipped, simulated = NAMES
    return [
        Contender(local, inside("local"), threads=1),
        Contender(pool, inside("pool"), threads=1),
        Contender(forked, over(start_forked), needs=["flwr"], threads=1),
        Contender(shipped, over(start_shipped), needs=["flwr"], threads=1, skip=few),
        Contender(simulated, over(start_simulation), needs=["flwr", "ray"], threads=1),
    ]


def work(case: Case, play: Callable[[Spec, Path, Any], object]) -> Work:
    spec, diary = make_spec(case), Diary()
    digest: list[bytes] = []

    def step() -> None:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
            diary.begin()
            play(spec, Path(place) / "run", diary)
            server = f"checkpoint/round-{spec.rounds:06d}/server.safetensors"
            digest[:] = [(Path(place) / "run" / server).read_bytes()]

    def answer() -> Answer:
        diary.ends.clear()  # discards the warm-up run
        diary.held.clear()
        return {"server's state": np.frombuffer(digest[0], np.uint8)}

    return Work(step, answer, facts=lambda: diary.facts(spec.rounds))


class Programs:
    """Flower's programs, started by its own commands, and their child processes."""

    def __init__(self, folder: Path) -> None:
        from asfedbridge.deploy.processes import QUIET

        self.folder = folder
        (folder / "ray_bootstrap_config.yaml").write_text(
            "provider: {type: local}\n"
        )  # prevents requests to cloud providers
        path = {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "HOME": str(folder), "FLWR_HOME": str(folder)}
        self._env = {**os.environ, **QUIET, **path, "OMP_NUM_THREADS": "1"}
        self._env.pop("FLWR_SUPEREXEC_TASK_POLL_INTERVAL")  # as shipped
        self._env["RAY_worker_niceness"] = "0"  # the default would yield to any other load
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        log, parent = (self.folder / "log").open("ab"), os.getpid()
        options: dict[str, Any] = {"stdout": log, "stderr": log, "preexec_fn": lambda: die_with(parent)}
        process = subprocess.Popen(words, env=self._env, cwd=self.folder, **options)
        self._running.append(process)
        return process

    def submit(self, app: Path, address: str, *words: str) -> None:
        connection = f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "{address}"\ninsecure = true\n'
        (self.folder / "config.toml").write_text(connection)
        host, _, port = address.partition(":")
        while True:
            self.check()
            with suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
                break
            time.sleep(0.2)
        if self.start("flwr", "run", str(app), "here", *words).wait(300):
            self.fail()
        self._running.pop()

    def check(self) -> None:
        if any(process.poll() is not None for process in self._running):
            self.fail()

    def fail(self) -> NoReturn:
        self.close()
        raise WorkerLost((self.folder / "log").read_text(errors="replace")[-1000:])

    def close(self) -> None:
        """Child processes end with their parent, which they watch."""
        for process in self._running:
            process.terminate()
        for process in self._running:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


Start = Callable[[Path, Spec, Path], Any]  # folder, specification, app folder; returns a handle to close


def play_over(start: Start, spec: Spec, out: Path, tell: Tell) -> None:
    from asfedbridge.deploy.app_folder import write_app
    from asfedbridge.deploy.local_run import follow

    with tempfile.TemporaryDirectory(prefix="asfedbridge-", ignore_cleanup_errors=True) as name:
        place = Path(name)
        (place / "reports").mkdir()
        write_app(place / "app", spec, {"out": str(out), "report-to": str(place / "reports"), "gathering": 600.0})
        module = place / "app" / "bridge_app" / "__init__.py"
        module.write_text(module.read_text() + WEIGHED)
        (place / "flower").mkdir()
        fleet = start(place / "flower", spec, place / "app")
        try:
            follow(fleet, place / "reports", tell)
        finally:
            fleet.close()


def node_configs(folder: Path, spec: Spec) -> dict[int, dict[str, Any]]:
    from asfedbridge.runs.fleet import parse_fleet

    return {c.id: {"client-id": c.id, "state-dir": str(folder / "states")} for c in parse_fleet(spec.fleet, spec.T)}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_forked(folder: Path, spec: Spec, app: Path) -> Any:
    """As in `asfedbridge run --engine flower`."""
    from asfedbridge.deploy.local_cluster import Loopback
    from asfedbridge.deploy.local_run import PRELOAD

    fleet = Loopback(folder, node_configs(folder, spec), PRELOAD)
    fleet.submit(app)
    return fleet


def start_shipped(folder: Path, spec: Spec, app: Path) -> Any:
    programs, port = Programs(folder), free_port()
    programs.start("flower-superlink", "--insecure", "--host=127.0.0.1", f"--port={port}")
    for client, config in node_configs(folder, spec).items():
        pairs = f'client-id={client} state-dir="{config["state-dir"]}"'
        words = ["--insecure", f"--superlink=127.0.0.1:{port}", "--host=127.0.0.1", f"--port={free_port()}"]
        programs.start("flower-supernode", *words, "--node-config", pairs)
    programs.submit(app, f"127.0.0.1:{port}")
    return programs


def start_simulation(folder: Path, spec: Spec, app: Path) -> Any:
    programs, port = Programs(folder), free_port()
    programs.start("flower-superlink", "--simulation", "--insecure", "--host=127.0.0.1", f"--port={port}")
    sizes = f"num-supernodes={len(node_configs(folder, spec))} client-resources-num-cpus=1 init-args-num-cpus=2"
    programs.submit(app, f"127.0.0.1:{port}", "--federation-config", sizes)
    return programs
