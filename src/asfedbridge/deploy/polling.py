"""Polling intervals and timeouts. Flower polls every few seconds where milliseconds suffice, and gives up after half a
minute, too early on a machine with dozens of nodes. Depends on flwr's internals."""

import time
from typing import Any

from asfedbridge.deploy.flwr_internals import (
    in_memory_corestate,
    in_memory_linkstate,
    pull_and_inflate_object_from_tree,
    pull_objects,
    sql_corestate,
    sql_linkstate,
)

POLL = 0.2  # seconds between polls for replies; Flower itself polls every 3
LONGEST_SLEEP = 1.0  # seconds between a SuperNode's polls for messages
FIRST_PAUSE = 0.05  # seconds before a missing part of a message is requested again; doubled each time


def quicken() -> None:
    """A message is announced before its parts have arrived. A forked turn, which asks for them at once, and the server,
    which reads one reply after the other, would wait a second each time."""
    for pull in (pull_objects, pull_and_inflate_object_from_tree):
        pull.__kwdefaults__ = {**(pull.__kwdefaults__ or {}), "initial_backoff": FIRST_PAUSE}


def be_patient(factor: float) -> None:
    """Multiply flwr's heartbeat timeouts, where many processes share few cores. By default a node or a task counts as
    dead after a minute without a heartbeat, and a task must send its first within half a minute."""
    for tasks in (in_memory_corestate, sql_corestate):
        tasks.HEARTBEAT_DEFAULT_INTERVAL *= factor
    for nodes in (in_memory_linkstate, sql_linkstate):
        nodes.HEARTBEAT_PATIENCE *= factor


class BriskTime:
    """Replaces the module `time` in Flower's SuperNode, which otherwise polls for messages every 3 seconds."""

    def __init__(self, longest: float = LONGEST_SLEEP) -> None:
        self._longest = longest

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def sleep(self, seconds: float) -> None:
        time.sleep(min(seconds, self._longest))
