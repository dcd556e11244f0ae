"""Executes docs/deployment.md literally: its blocks in order, one folder per machine, one shell per terminal. Only
ports, and the number and kind of each node, are replaced."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

ROOT, BIN = Path(__file__).parents[1], Path(sys.executable).parent
PAGE = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
BLOCKS = [block.split("\n", 1) for block in re.findall(r"```bash\n# (.*?)```", PAGE, flags=re.DOTALL)]
KINDS = ("ann", "ann", "snn", "snn")
OWN = "in a terminal of its own"
ACTIVATE = ". bridge/bin/activate\n"
FORKING = (1, 2, 3)  # nodes that take the blocks "instead" and "beside it": turns of others import torch each time


def test_every_block_says_where_it_is_typed() -> None:
    assert len(BLOCKS) == PAGE.count("```bash")
    places = {head.partition(",")[0] for head, _ in BLOCKS}
    assert places == {"every machine", "every terminal", "server", "node", "simulation"}


def free_ports(count: int) -> int:
    """The first of ``count`` consecutive free ports."""
    for first in range(18000, 60000, 97):
        try:
            with ExitStack() as held:
                for port in range(first, first + count):
                    held.enter_context(socket.create_server(("127.0.0.1", port)))
            return first
        except OSError:
            continue
    raise AssertionError("no ports are free")


class Terminal:
    """A shell that keeps its folder and variables between blocks; it ends at the first command that fails."""

    def __init__(self, folder: Path, name: str, bare: bool) -> None:
        self.folder, self.name, self._count = folder, name, 0
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        if bare:
            env.pop("PYTHONPATH", None)
        else:
            env["PATH"] = f"{BIN}{os.pathsep}{env['PATH']}"
        with (folder / f"{name}.log").open("wb") as log:
            self._shell = subprocess.Popen(
                ["bash"], cwd=folder, env=env, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
            )
        self._say("set -eo pipefail")

    def type(self, block: str, seconds: float = 900) -> None:
        self._count += 1
        self._say(f"{block}\necho done-{self._count}")
        self.wait_for(lambda: f"done-{self._count}\n" in self.text(), seconds)

    def ask(self, command: str) -> str:
        before = len(self.text())
        self.type(command)
        return self.text()[before:]

    def leave_running(self, block: str) -> Path:
        """Returns its log."""
        self._count += 1
        log = self.folder / f"{self.name}-{self._count}.log"
        self._say(f"{{\n{block}\n}} > '{log}' 2>&1 < /dev/null &")
        return log

    def wait_for(self, condition: Callable[[], bool], seconds: float = 1200) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert self._shell.poll() is None, f"{self.name} ended:\n{self.text()[-3000:]}"
            assert time.monotonic() < deadline, f"{self.name} is late:\n{self.text()[-3000:]}"
            time.sleep(0.2)

    def text(self) -> str:
        return (self.folder / f"{self.name}.log").read_text(errors="replace")

    def signal(self, how: signal.Signals) -> None:
        """To its shell and all that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self._shell.pid, how)

    def wait(self) -> None:
        self._shell.wait()

    def _say(self, text: str) -> None:
        assert self._shell.stdin
        self._shell.stdin.write(f"{text}\n".encode())
        self._shell.stdin.flush()


class Machines:
    """Machines with nothing installed (``bare``), or with this test's environment."""

    bare = False

    def __init__(self, folder: Path) -> None:
        first = free_ports(6)
        self.folder, self._ports = folder, {"8000": first, "8001": first + 1, "9100": first + 2}
        self.terminals: dict[str, Terminal] = {}
        self._everywhere: list[str] = []

    def follow(self, head: str, block: str) -> None:
        for port, ours in self._ports.items():
            block = block.replace(port, str(ours))
        where, _, how = head.partition(", ")
        if where == "every machine":
            if self.bare:
                self._terminal(where).type(block, 3600)
        elif where == "every terminal":
            self._everywhere.append(block if self.bare else block.replace(ACTIVATE, ""))
        elif where == "node":
            for number, kind in enumerate(KINDS):
                if how == "" or (how != OWN) == (number in FORKING):
                    own = block.replace("N=0 KIND=ann", f"N={number} KIND={kind}")
                    self._type(self._terminal(f"node{number}"), how, own)
        else:
            self._type(self._terminal(where), how, block)

    def _terminal(self, name: str) -> Terminal:
        if name not in self.terminals:
            self.terminals[name] = Terminal(self.folder, name, self.bare)
            for block in self._everywhere:
                self.terminals[name].type(block)
        return self.terminals[name]

    def _type(self, terminal: Terminal, how: str, block: str) -> None:
        if how.startswith(OWN):
            log = terminal.leave_running(block)
            if "flower-superlink" in block:  # the next terminal is used once it is ready
                terminal.wait_for(lambda: log.exists() and "Uvicorn running" in log.read_text(errors="replace"))
        else:
            if how.startswith("once "):
                terminal.wait_for(lambda: ready(self.folder / "federation" / "run", how))
            terminal.type(block)


def ready(run: Path, how: str) -> bool:
    if "summary.json" in how:
        return (run / "summary.json").exists()
    return (run / "rounds.jsonl").exists() and (run / "rounds.jsonl").stat().st_size > 0


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    pytest.importorskip("flwr")
    made = Machines(tmp_path)
    yield made
    for how in (signal.SIGTERM, signal.SIGKILL):
        for terminal in made.terminals.values():
            terminal.signal(how)
        time.sleep(1)
    for terminal in made.terminals.values():
        terminal.wait()


@pytest.mark.long
@pytest.mark.timeout(5400)
def test_the_guide_works_as_it_stands(machines: Machines, tmp_path: Path) -> None:
    for head, block in BLOCKS:
        print(time.strftime("%X"), head, "|", block.splitlines()[0], flush=True)
        if not head.startswith("simulation"):
            machines.follow(head, block)
    assert (tmp_path / "federation" / "report.html").stat().st_size > 10_000
    assert "round 1/3" in machines.terminals["server"].text()  # of `flwr log`
    for number in range(4):
        assert list((tmp_path / f"node{number}" / "states").rglob("client-*.safetensors"))


@pytest.mark.exhaustive
@pytest.mark.timeout(9000)
def test_the_guide_works_where_nothing_is_installed(machines: Machines, tmp_path: Path) -> None:
    """Installs from the package index into a virtual environment, then follows the whole guide with its programs."""
    (tmp_path / "asfedbridge").mkdir()
    for name in ("pyproject.toml", "constraints.txt", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / "asfedbridge")
    shutil.copytree(
        ROOT / "src", tmp_path / "asfedbridge" / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg*")
    )
    machines.bare = True
    test_the_guide_works_as_it_stands(machines, tmp_path)
    assert str(tmp_path / "bridge") in machines.terminals["server"].ask("command -v flwr")


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_the_simulation_of_the_guide_works_as_it_stands(machines: Machines, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    for head, block in BLOCKS:
        if head.startswith(("simulation", "every")):
            machines.follow(head, block)
    assert (tmp_path / "simulation" / "run" / "summary.json").exists()
