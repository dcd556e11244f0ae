"""`asfedbridge run --engine flower` in real processes: it ends with a summary, and leaves nobody behind."""

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

TINY = [
    "fleet=1*resnet18@0.125:ann,1*resnet18@0.125:snn", "T=2", "train_per_class=2", "test_per_class=1", "batch_size=8",
    "feature_dim=16", "partition=iid", "rounds=3", "method=fedavg", "threads=1",
]  # fmt: skip
MARK = "ASFEDBRIDGE_TEST"


def start(out: Path, *words: str, place: str | None = None) -> tuple[subprocess.Popen[str], str]:
    """The command, and a word that is in the environment of everything it starts; ``place``: its TMPDIR."""
    mark = uuid.uuid4().hex
    command = [sys.executable, "-m", "asfedbridge", "run", *TINY, "--engine", "flower", "--out", str(out), *words]
    pipe: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    pipe["start_new_session"] = True  # a process group of its own, as in a terminal
    env = {**os.environ, MARK: mark, **({"TMPDIR": place} if place else {})}
    return subprocess.Popen(command, env=env, **pipe), mark


def marked(mark: str) -> dict[int, str]:
    """The command lines of those that have the mark, by their numbers."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (process / "environ").read_bytes():
                state = (process / "stat").read_text().rpartition(")")[2].split()[0]
                if state != "Z":
                    words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    found[int(process.name)] = words[:80]
        except OSError:
            continue
    return found


def alive(mark: str) -> list[str]:
    return list(marked(mark).values())


def await_line(process: subprocess.Popen[str], text: str) -> None:
    assert process.stderr
    for line in process.stderr:
        if text in line:
            return
    raise AssertionError(f"it ended without saying {text!r}")


def gone(mark: str, seconds: float = 60) -> bool:
    deadline = time.monotonic() + seconds
    while alive(mark) and time.monotonic() < deadline:
        time.sleep(0.2)
    return not alive(mark)


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.timeout(1800)
def test_it_is_stopped_in_four_ways_and_goes_on_to_its_end(tmp_path: Path) -> None:
    out = tmp_path / "run"
    short = tempfile.mkdtemp()  # tmp_path is too long for sockets
    ways = ((signal.SIGKILL, -9), (signal.SIGTERM, 130), (signal.SIGHUP, 130), (signal.SIGINT, 130))
    for how, code in ways:
        process, mark = start(out, *(["--resume"] if (out / "spec.toml").exists() else []), place=short)
        await_line(process, "round 1/3" if how == signal.SIGKILL else "resumed")
        assert len(alive(mark)) > 5
        process.send_signal(how)
        assert process.wait(120) == code
        assert gone(mark), alive(mark)
        left = sorted(Path(short).glob("asfedbridge-flower-*"))
        assert len(left) == (2 if how == signal.SIGKILL else 0)  # which the next start removes
    process, mark = start(out, "--resume", "--json", place=short)
    text, errors = process.communicate(timeout=1200)
    assert process.returncode == 0, errors
    summary = json.loads(text)
    assert summary["engine"] == "flower"
    assert summary["events"] == {}
    assert gone(mark), alive(mark)
    assert list(Path(short).glob("asfedbridge-*")) == []
    assert not [p for p in Path(out).rglob("*") if p.suffix in (".pt", ".pkl", ".bin")]


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.timeout(1200)
def test_ctrl_c_names_the_command_that_continues_the_run(tmp_path: Path) -> None:
    out = tmp_path / "my run"
    options = ["--min-clients", "1", "--round-timeout", "300"]
    process, mark = start(out, *options)
    await_line(process, "round 1/3")
    os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to all processes of the group
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    hint = errors.splitlines()[-1]
    named = ["asfedbridge", "run", "--resume", "--out", str(out), "--engine", "flower", *options]
    assert hint == f"interrupted; continue with: {shlex.join(named)}"
    assert gone(mark), alive(mark)
    assert not (out / "summary.json").exists()
    words = shlex.split(hint.partition("continue with: ")[2])
    done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    assert "resumed" in done.stderr
    assert json.loads((out / "summary.json").read_text())["engine"] == "flower"


def test_options_of_flower_are_flowers_alone() -> None:
    from asfedbridge.cli import main

    assert main(["run", "--min-clients", "2"]) == 2


def test_a_server_that_was_killed_is_not_waited_for(tmp_path: Path) -> None:
    """Its process is a fork of one that we started: that it is gone is not seen by looking at ours."""
    from asfedbridge.core.errors import WorkerLost
    from asfedbridge.deploy.app_folder import PROCESS
    from asfedbridge.deploy.local_run import follow

    class Alive:
        def check(self) -> None: ...

    server = subprocess.Popen(["sleep", "1000"])
    (tmp_path / PROCESS).write_text(str(server.pid))

    def end() -> None:
        server.kill()
        server.wait()

    threading.Timer(0.5, end).start()
    with pytest.raises(WorkerLost, match="killed"):
        follow(Alive(), tmp_path, print)  # type: ignore[arg-type]
