"""A complete federation on this machine, for trials and tests: a SuperLink and its SuperNodes.

They communicate over Unix sockets that only their user can reach (``sockets``).
"""

import json
import time
from collections.abc import Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from asfedbridge.core import WorkerLost
from asfedbridge.deploy.bells import NODE
from asfedbridge.deploy.processes import CROWD, TASK_POLL, start
from asfedbridge.deploy.scratch import Scratch
from asfedbridge.deploy.sockets import FOLDER, PATIENCE, address_of, answers, path_of

LAST_LINES = 15  # lines of a program's log that are shown when it dies
FULL_RATE_NODES = 10  # up to this many nodes poll at full rate; with more, each polls less often
TASK_PAUSE = 2.0  # seconds between a node's requests for tasks, if its SuperNode did not ring


class Loopback:
    """``nodes`` are node configs by client; every program has its own folder and log below ``folder``."""

    def __init__(self, folder: Path, nodes: Mapping[int, Mapping[str, Any]], preload: Sequence[str] = ()) -> None:
        self.folder, self._preload = folder, preload
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._processes: dict[str, BaseProcess] = {}
        self._scratch = Scratch()  # its own folder: the path of a socket must be short
        self.sockets = self._scratch.path
        crowd = max(1.0, len(nodes) / FULL_RATE_NODES)
        self._env = {FOLDER: str(self.sockets), CROWD: str(crowd)}
        self._node_env = {TASK_POLL: str(crowd * TASK_PAUSE)}
        self.address = address_of("superlink")
        try:
            self._start("superlink", "superlink", ["--insecure", "--isolation=process", *_at(self.address)])
            self._start("tasks", "server", [self.address])
            self._await("superlink")  # otherwise they would all retry while it starts
            for client, config in nodes.items():
                self.start_node(client, config)
        except BaseException:
            self.close()
            raise

    def start_node(self, client: int, config: Mapping[str, Any], superlink: str | None = None) -> None:
        """``superlink``: another address of it, for example a proxy."""
        pairs = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
        address = address_of(NODE.format(client))
        words = ["--insecure", "--isolation=process", *_at(address)]
        self._start(
            "supernode", f"node-{client}", [*words, "--superlink", superlink or self.address, "--node-config", pairs]
        )
        self._start("tasks", f"tasks-{client}", [address], self._node_env)

    def restart_server(self) -> None:
        """Kill the server of every run, as a crash would; the next submitted run gets a new one."""
        process = self._processes.pop("server")
        process.kill()
        process.join()
        self._start("tasks", "server", [self.address])

    def submit(self, app: Path) -> None:
        """Start the run that an app folder describes."""
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
        """Raise WorkerLost if a program has ended."""
        for name, process in self._processes.items():
            if not process.is_alive():
                raise WorkerLost(f"Flower's {name} ended unexpectedly: {self._tail(name)}")

    def close(self) -> None:
        """Stop everything at once, which atomic files tolerate."""
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.join()
        self._processes = {}
        self._scratch.close()

    def _start(self, program: str, name: str, words: Sequence[str], more: Mapping[str, str] | None = None) -> None:
        home = self.folder / name
        home.mkdir(exist_ok=True)
        env = {"FLWR_HOME": str(home), **self._env, **(more or {})}
        self._processes[name] = start(program, words, env, self.folder / f"{name}.log", self._preload)

    def _await(self, name: str) -> None:
        path = path_of(self.sockets, address_of(name))
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            self.check()
            if answers(path):
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
