"""Connects Flower's programs on one machine through Unix sockets, in a folder that no other user can enter.

flwr listens on TCP ports, where any user of the machine could submit an app (code that all nodes execute), join as a
node, take tasks and read messages: its open-source version has no login. The folder's permissions replace one. Here the
address NAME:1 means the socket NAME in the folder given by an environment variable; nothing listens on the network.
"""

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from asfedbridge.core import BadInput

FOLDER = "ASFEDBRIDGE_SOCKETS"  # in the environment of Flower's programs
LONGEST_PATH = 100  # bytes; Linux has room for 107, macOS for 103
# Timeout of a request in seconds. A local socket is closed when its process ends, so a slow reply only means a busy
# machine. flwr's 30 seconds are too short when dozens of nodes start at once: the node retries, is told that it is
# already registered, and gives up. With flwr's 5 seconds for a heartbeat a busy SuperLink drops nodes that are alive.
PATIENCE = 300.0


def address_of(name: str) -> str:
    return f"{name}:1"


def path_of(folder: Path, address: str) -> Path:
    path = folder / address.rpartition(":")[0]
    if len(os.fsencode(path)) > LONGEST_PATH:
        raise BadInput(f"TMPDIR: {folder} is too long for the path of a socket; set TMPDIR to a shorter one, e.g. /tmp")
    return path


def answers(path: Path) -> bool:
    """Whether a process listens on the socket."""
    with suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
        probe.connect(str(path))
        return True
    return False


def use_sockets(environment: Mapping[str, str]) -> None:
    """If the environment names a folder, redirect all of flwr's connections in this process to sockets there."""
    if not environment.get(FOLDER):
        return
    import httpx
    import uvicorn

    from asfedbridge.deploy.flwr_internals import ProtobufClient

    class Patient(httpx.HTTPTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            request.extensions["timeout"] = httpx.Timeout(PATIENCE).as_dict()
            return super().handle_request(request)

    folder = Path(environment[FOLDER])
    listen, call = uvicorn.Config.__init__, ProtobufClient.__init__

    def listen_at_socket(self: uvicorn.Config, app: Any, *, host: str, **options: Any) -> None:
        listen(self, app, host=host, **{**options, "uds": str(folder / host)})

    def call_socket(self: ProtobufClient, base_url: str, **options: Any) -> None:
        call(self, base_url, **options)
        self._client.close()
        path = path_of(folder, base_url.rpartition("/")[2])
        self._client = httpx.Client(transport=Patient(uds=str(path), verify=False))  # reading certificates takes 20 ms

    uvicorn.Config.__init__ = listen_at_socket  # type: ignore[method-assign,assignment]
    ProtobufClient.__init__ = call_socket
