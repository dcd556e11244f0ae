"""A program that has no business with a run and tries all of Flower's doors: python intruder.py USER < what it found.

It reads JSON: the endpoints of a run (``tcp:PORT``, ``unix:PATH``) and files. It becomes user USER (a number; -1: it
stays who it is) and prints what let it in: every answer other than 401 and 403 counts.
"""

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from flwr.proto.control_pb2 import ListRunsRequest, StartRunRequest
from flwr.proto.fab_pb2 import Fab
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest, RegisterNodeFleetRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import AcquireTaskRequest, PullAppMessagesRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.interceptors.http import RuntimeTokenHttpInterceptor
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.supercore.protobuf.client import ProtobufClient
from flwr.supercore.runtime.runtime_http_client import RuntimeHttpClient
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

Attempt = tuple[str, Callable[[], Any]]


def connect(kind: type[ProtobufClient], endpoint: str, interceptors: Any = ()) -> Any:
    way, _, place = endpoint.partition(":")
    client = kind.from_server_address(f"127.0.0.1:{place if way == 'tcp' else 1}", True, None, interceptors)
    if way == "unix":
        client._client = httpx.Client(transport=httpx.HTTPTransport(uds=place), timeout=10)
    return client


def attempts(endpoint: str) -> list[Attempt]:
    private, public = generate_key_pairs()
    key = public_key_to_bytes(public)
    control = connect(ControlHttpClient, endpoint)
    fleet = connect(FleetHttpClient, endpoint, [NodeAuthHttpInterceptor(private, public)])
    runtime = connect(RuntimeHttpClient, endpoint)
    server = connect(RuntimeHttpClient, endpoint, [RuntimeTokenHttpInterceptor("guess")])

    def join() -> None:
        fleet.RegisterNode(RegisterNodeFleetRequest(public_key=key))
        fleet.ActivateNode(ActivateNodeRequest(public_key=key, heartbeat_interval=30))

    return [
        (f"submit an app to {endpoint}", lambda: control.StartRun(StartRunRequest(fab=Fab(content=b"an app")))),
        (f"list runs of {endpoint}", lambda: control.ListRuns(ListRunsRequest())),
        (f"join {endpoint} as a node", join),
        (f"pull a task from {endpoint}", lambda: runtime.AcquireTask(AcquireTaskRequest())),
        (f"pull a node's messages from {endpoint}", lambda: fleet.PullMessages(PullMessagesRequest(node=Node()))),
        (f"pull the server's messages from {endpoint}", lambda: server.PullMessages(PullAppMessagesRequest())),
    ]


def let_in(attempt: Callable[[], Any]) -> bool:
    try:
        attempt()
    except httpx.HTTPStatusError as error:
        return error.response.status_code not in (401, 403, 404)  # 404: a node has no such API
    except (httpx.TransportError, PermissionError):
        return False
    return True


def main() -> None:
    found, user = json.load(sys.stdin), int(sys.argv[1])
    plan = [attempt for endpoint in found["endpoints"] for attempt in attempts(endpoint)]
    plan += [(f"read {file}", Path(file).read_bytes) for file in found["files"]]
    plan += [(f"list {Path(file).parent}", partial(os.listdir, Path(file).parent)) for file in found["files"]]
    for _, rehearsed in attempts("unix:/nonexistent"):  # loads what another user may not be able to read
        assert not let_in(rehearsed)
    if user >= 0:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
    print(json.dumps({"tried": len(plan), "in": [name for name, attempt in plan if let_in(attempt)]}))


if __name__ == "__main__":
    main()
