"""Keeps a node's data in memory between messages.

Every message is handled by a process forked from the node's task server. The first such process reads and splits the
data set, and asks the task server through a pipe to do the same once; processes forked later inherit the result.
"""

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Generic, TypeVar

D = TypeVar("D")
Request = Mapping[str, Any]  # plain values that determine the data: the run, its specification, the node's config
MAX_REQUEST = 4096  # bytes; POSIX: a write of at most this size to a pipe is never split


class DataCache(Generic[D]):
    """Holds the data of the latest run. ``read`` runs in the task server, which forks: it must not start threads."""

    def __init__(self, read: Callable[[Request], D]) -> None:
        self._read = read
        self._pipe = os.pipe()
        for end in self._pipe:
            os.set_blocking(end, False)
        self._entry: tuple[str, D] | None = None

    def find(self, request: Request) -> D | None:
        """In a forked process: the data; None on the first request, after which the next fork will have them."""
        key = json.dumps(request, sort_keys=True)
        if self._entry and self._entry[0] == key:
            return self._entry[1]
        line = key.encode() + b"\n"
        if len(line) <= MAX_REQUEST:
            with suppress(BlockingIOError):  # the pipe is full of requests
                os.write(self._pipe[1], line)
        return None

    def refresh(self) -> None:
        """In the task server, before a fork: read the data that were requested last."""
        received = b""
        with suppress(BlockingIOError):
            while chunk := os.read(self._pipe[0], 65536):
                received += chunk
        if not received:
            return
        key = received.splitlines()[-1].decode()
        if self._entry and self._entry[0] == key:
            return
        self._entry = None  # first: two data sets may not fit into memory
        with suppress(Exception):  # the forked process gets the same error and reports it
            self._entry = key, self._read(json.loads(key))
