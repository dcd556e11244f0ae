"""A whole federation on this machine, for trying out and for tests: a SuperLink and its SuperNodes on loopback."""

import json
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from asfedbridge.core import WorkerLost
from asfedbridge.deploy.processes import start

HERE = "127.0.0.1"
PATIENCE = 300.0  # seconds for a program to answer; the first one may have to compile
LAST_LINES = 15  # of a log, when a program dies


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HERE, 0))
        return int(probe.getsockname()[1])


class Loopback:
    """``nodes`` are node configs by client; every program has its own folder and log below ``folder``."""

    def __init__(self, folder: Path, nodes: Mapping[int, Mapping[str, Any]], preload: Sequence[str] = ()) -> None:
        self.folder, self._preload = folder, preload
        self._processes: dict[str, BaseProcess] = {}
        self.address = f"{HERE}:{free_port()}"
        try:
            self._start("superlink", "superlink", ["--insecure", "--isolation=process", *_at(self.address)])
            self._start("tasks", "server", [self.address])
            ports = {client: f"{HERE}:{free_port()}" for client in nodes}
            for client, config in nodes.items():
                self.start_node(client, config, ports[client])
        except BaseException:
            self.close()
            raise

    def start_node(self, client: int, config: Mapping[str, Any], address: str, superlink: str | None = None) -> None:
        """``superlink``: by another way to it than the direct one."""
        pairs = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
        words = ["--insecure", "--isolation=process", *_at(address)]
        self._start(
            "supernode", f"node-{client}", [*words, "--superlink", superlink or self.address, "--node-config", pairs]
        )
        self._start("tasks", f"tasks-{client}", [address])

    def restart_server(self) -> None:
        """Kill the server of every run, as a crash would; what is submitted next gets a new one."""
        process = self._processes.pop("server")
        process.kill()
        process.join()
        self._start("tasks", "server", [self.address])

    def submit(self, app: Path) -> None:
        """Start the run that an app folder describes."""
        self._await(self.address, "superlink")
        home = self.folder / "flwr"
        home.mkdir(exist_ok=True)
        connection = f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "{self.address}"\ninsecure = true\n'
        (home / "config.toml").write_text(connection)
        self._start("flwr", "flwr", ["run", str(app), "here"])
        process = self._processes.pop("flwr")
        process.join(PATIENCE)
        if process.exitcode != 0:
            raise WorkerLost(f"flwr run failed: {self._tail('flwr')}")

    def check(self) -> None:
        """WorkerLost if a program is no longer there."""
        for name, process in self._processes.items():
            if not process.is_alive():
                raise WorkerLost(f"Flower's {name} ended by itself: {self._tail(name)}")

    def close(self) -> None:
        """At once: what is on the disk bears that."""
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.join()
        self._processes = {}

    def _start(self, program: str, name: str, words: Sequence[str]) -> None:
        home = self.folder / name
        home.mkdir(parents=True, exist_ok=True)
        env = {"FLWR_HOME": str(home)}
        self._processes[name] = start(program, words, env, self.folder / f"{name}.log", self._preload)

    def _await(self, address: str, name: str) -> None:
        host, _, port = address.partition(":")
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            self.check()
            with suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
                return
            time.sleep(0.1)
        raise WorkerLost(f"Flower's {name} does not answer: {self._tail(name)}")

    def _tail(self, name: str) -> str:
        log = self.folder / f"{name}.log"
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        return " | ".join(line.strip() for line in lines[-LAST_LINES:] if line.strip())


def _at(address: str) -> list[str]:
    host, _, port = address.partition(":")
    return ["--host", host, "--port", port]
