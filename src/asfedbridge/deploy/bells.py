"""Wakes the programs of one machine that wait for each other.

flwr's programs find out by polling that there is something to do. Where they share a folder of sockets (``sockets``),
a program that waits has a bell there, a datagram socket, and the one that has work for it rings. Only their user can
enter the folder. A ring that is lost costs one polling interval.
"""

import os
import select
import socket
import time
from contextlib import suppress
from pathlib import Path

from asfedbridge.deploy.sockets import FOLDER

SERVER, NODE = "server", "node-{}"  # names of bells; a node's tasks have its name and TASKS
TASKS, SUFFIX = "-tasks", ".bell"


def ring(name: str) -> None:
    """Wake a program, or all programs that match ``name`` (``*``), if they are on this machine."""
    if not (folder := os.environ.get(FOLDER)):
        return
    paths = list(Path(folder).glob(name + SUFFIX)) if "*" in name else [Path(folder) / (name + SUFFIX)]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as caller:
        caller.setblocking(False)
        for path in paths:
            with suppress(OSError):  # nobody listens, or it has been rung often enough
                caller.sendto(b"1", str(path))


class Bell:
    """A program's own bell. Without a folder of sockets nobody can ring it, and ``wait`` only sleeps."""

    def __init__(self, name: str) -> None:
        self._socket: socket.socket | None = None
        if folder := os.environ.get(FOLDER):
            path = Path(folder) / (name + SUFFIX)
            path.unlink(missing_ok=True)
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)
            self._socket.bind(str(path))

    def __bool__(self) -> bool:
        """Whether it can be rung."""
        return self._socket is not None

    def wait(self, seconds: float) -> None:
        """Return after so many seconds, or at once if it has been rung since the last call."""
        if self._socket is None:
            time.sleep(seconds)
            return
        select.select([self._socket], [], [], seconds)
        with suppress(BlockingIOError):
            while True:
                self._socket.recv(1)
