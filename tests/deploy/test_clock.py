"""Clocks that differ: a node is refused with a bare 401, and `asfedbridge flower check` says why."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from asfedbridge import cli
from asfedbridge.core.errors import BadInput
from asfedbridge.runs.recipes import quickstart

pytest.importorskip("flwr")
from tests.deploy.ports import free_port

from asfedbridge.deploy import clock
from asfedbridge.deploy.app_folder import write_deployment
from asfedbridge.deploy.processes import QUIET

# A SuperNode on a machine whose clock is so many seconds ahead.
NODE = """
import datetime, sys
from flwr.supernode import node_auth_http_interceptor as signing
from flwr.supernode.cli import flower_supernode
real, ahead = signing.now, float(sys.argv.pop(1))
signing.now = lambda: real() + datetime.timedelta(seconds=ahead)
flower_supernode()
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A SuperLink with TLS and node keys: its folder and its address."""
    home, port = tmp_path_factory.mktemp("server") / "federation", free_port()
    write_deployment(home, quickstart())
    subprocess.run(["sh", "certificates.sh", "127.0.0.1"], cwd=home, check=True, capture_output=True)
    command = [
        sys.executable, "-c", "from flwr.superlink.cli import flower_superlink as f; f()", "--host=127.0.0.1",
        f"--port={port}", "--isolation=process", "--ssl-certfile=certificates/server.pem",
        "--ssl-keyfile=certificates/server.key", "--ssl-ca-certfile=certificates/ca.crt",
    ]  # fmt: skip
    env = {**os.environ, **QUIET, "FLWR_HOME": str(home / "flower-home")}
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=home, env=env, stdout=log, stderr=log)
    while b"Uvicorn running" not in (home / "log").read_bytes():
        assert process.poll() is None, (home / "log").read_text()
    yield home, f"127.0.0.1:{port}"
    process.kill()
    process.wait()


def test_the_difference_is_told(
    server: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    home, address = server
    authority = home / "certificates" / "ca.crt"
    words = ["flower", "check", address, "--root-certificates", str(authority)]
    assert cli.main(words) == 0
    assert "its certificate is valid" in capfd.readouterr().err
    real = clock.time.time
    for seconds, how in ((20, "(19|20|21) seconds ahead"), (-20, "(19|20|21) seconds behind")):
        with monkeypatch.context() as patch:
            patch.setattr(clock.time, "time", lambda seconds=seconds: real() + seconds)
            assert cli.main(words) == 2
        told = capfd.readouterr().err
        assert re.search(how, told)
        assert "the clock of this machine differs from the SuperLink's: set it (NTP)" in told
        assert told.count("\n") == 1
    with pytest.raises(BadInput, match="no SuperLink with TLS answers"):
        clock.check_superlink(f"127.0.0.1:{free_port()}", authority)
    with pytest.raises(BadInput, match="its certificate was not issued by"):
        clock.check_superlink(address, None)  # type: ignore[arg-type]  # the authorities of the system
    with pytest.raises(BadInput, match="no such file"):
        clock.check_superlink(address, home / "nothing")


def test_a_node_whose_clock_is_ahead_is_refused(server: tuple[Path, str], tmp_path: Path) -> None:
    """What the check is for; if flwr gives a reason one day, the check has had its time."""
    home, address = server
    told = subprocess.run(
        [
            sys.executable, "-c", NODE, "20", "--superlink", address, "--root-certificates",
            str(home / "certificates" / "ca.crt"), "--host=127.0.0.1", f"--port={free_port()}", "--isolation=process",
        ],
        env={**os.environ, **QUIET, "FLWR_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )  # fmt: skip
    print(told.stdout, told.stderr)
    assert "SuperNode ID" not in told.stdout + told.stderr
    assert "clock" not in told.stdout + told.stderr
    assert '/v1/fleet/register-node HTTP/1.1" 401' in (home / "log").read_text()
