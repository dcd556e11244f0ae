"""`run --engine flower` beside other users of the machine: none gets in, and the run ends with the same bits."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.deploy.test_local_run import TINY, await_line, marked, start

pytest.importorskip("flwr")
from asfedbridge.cli.commands import resolve
from asfedbridge.deploy.local_cluster import Loopback
from asfedbridge.runs.record_files import read_rounds
from asfedbridge.runs.run import execute

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
NOBODY = 65534
SCRIPT = Path(__file__).with_name("intruder.py")


def listeners(processes: set[int]) -> list[str]:
    """Every address on which one of these processes listens."""
    inodes = set()
    for process in processes:
        for handle in Path(f"/proc/{process}/fd").glob("*"):
            try:
                inodes.update(re.findall(r"socket:\[(\d+)\]", os.readlink(handle)))
            except OSError:
                continue
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in inodes:
                found.append(f"tcp:{int(words[1].rpartition(':')[2], 16)}")
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        words = line.split()
        if int(words[3], 16) & 0x10000 and words[6] in inodes:
            found.append(f"unix:{words[7]}" if len(words) > 7 else "unix:")
    return sorted(found)


def intrude(endpoints: list[str], files: list[str], user: int = NOBODY) -> dict[str, Any]:
    told = subprocess.run(
        [sys.executable, SCRIPT, str(user)],
        input=json.dumps({"endpoints": endpoints, "files": files}),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert told.returncode == 0, told.stderr
    found: dict[str, Any] = json.loads(told.stdout)
    return found


def flowers(endpoints: list[str]) -> list[Path]:
    return [Path(e.removeprefix("unix:")) for e in endpoints if "asfedbridge-flower-" in e]


def check_folders(sockets: list[Path]) -> None:
    for socket in sockets:
        mode = socket.parent.stat()
        assert (mode.st_mode & 0o777, mode.st_uid) == (0o700, os.getuid())


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_another_user_gets_in_nowhere(tmp_path: Path) -> None:
    out = tmp_path / "run"
    process, mark = start(out)
    await_line(process, "round 1/3")
    endpoints = listeners(set(marked(mark)))
    assert not [e for e in endpoints if e.startswith("tcp")]
    assert {socket.name for socket in flowers(endpoints)} == {"superlink", "node-0", "node-1"}
    check_folders(flowers(endpoints))
    words = b" ".join(Path(f"/proc/{p}/cmdline").read_bytes() for p in marked(mark))
    assert b"superlink" not in words  # nor any token: programs are forks, their options are in no command line
    if os.getuid() == 0:
        states = list((out / "nodes").rglob("*.safetensors"))
        assert states
        found = intrude(endpoints, [str(file) for file in states])
        assert found["in"] == []
        assert found["tried"] >= 6 * 3 + 2 * len(states)
    _, errors = process.communicate(timeout=1200)
    assert process.returncode == 0, errors
    spec = resolve(TINY)
    execute(spec, tmp_path / "local", tmp_path)

    def records(folder: Path) -> list[dict[str, Any]]:
        return [{k: v for k, v in r.items() if k != "seconds"} for r in read_rounds(folder)]

    assert records(out) == records(tmp_path / "local")


def test_a_superlink_is_its_users_alone(tmp_path: Path) -> None:
    fleet = Loopback(tmp_path / "flower", {})
    try:
        ours = {process.pid for process in fleet._processes.values() if process.pid}
        endpoints = [e for e in listeners(ours) if "listener-" not in e]  # but that of multiprocessing
        assert endpoints == [f"unix:{fleet.sockets}/superlink"]
        check_folders(flowers(endpoints))
        log = str(tmp_path / "flower" / "superlink.log")
        assert len(intrude(endpoints, [log], user=-1)["in"]) > 4  # its user does get in: the attempts are real
        if os.getuid() == 0:
            assert intrude(endpoints, [log])["in"] == []
    finally:
        fleet.close()
    assert not fleet.sockets.exists()
