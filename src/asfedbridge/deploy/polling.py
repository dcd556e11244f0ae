"""Polling intervals and timeouts. Flower polls every few seconds where milliseconds suffice, and gives up after half a
minute, too early on a machine with dozens of nodes. Programs of one machine ring each other's bells (``bells``) and
poll only in case a ring was lost. Depends on flwr's internals."""

import time
from functools import cache
from typing import Any

from asfedbridge.deploy.bells import SERVER, TASKS, Bell, ring
from asfedbridge.deploy.flwr_internals import (
    in_memory_corestate,
    in_memory_linkstate,
    pull_and_inflate_object_from_tree,
    pull_objects,
    sql_corestate,
    sql_linkstate,
)

POLL = 0.2  # seconds between polls for replies; Flower itself polls every 3
UNRUNG = 1.0  # the same if nodes ring
LONGEST_SLEEP = 2.0  # seconds between polls of a SuperNode for messages, if the server did not ring
WITHOUT_MESSAGE = 3.0  # seconds for which flwr's SuperNode sleeps if there is no message; less during a turn
FIRST_PAUSE = 0.05  # seconds before a missing part of a message is requested again; doubled each time


def quicken() -> None:
    """A message is announced before its parts have arrived. A forked turn, which asks for them at once, and the server,
    which reads one reply after the other, would wait a second each time."""
    for pull in (pull_objects, pull_and_inflate_object_from_tree):
        pull.__kwdefaults__ = {**(pull.__kwdefaults__ or {}), "initial_backoff": FIRST_PAUSE}


@cache
def server_bell() -> Bell:
    """In the server of a run: rung by nodes that have sent a reply."""
    return Bell(SERVER)


def be_patient(factor: float) -> None:
    """Multiply flwr's heartbeat timeouts, where many processes share few cores. By default a node or a task counts as
    dead after a minute without a heartbeat, and a task must send its first within half a minute."""
    for tasks in (in_memory_corestate, sql_corestate):
        tasks.HEARTBEAT_DEFAULT_INTERVAL *= factor
    for nodes in (in_memory_linkstate, sql_linkstate):
        nodes.HEARTBEAT_PATIENCE *= factor


class BriskTime:
    """Replaces the module `time` in Flower's programs: sleeps are shorter, and end when the bell is rung."""

    def __init__(self, longest: float = LONGEST_SLEEP, bell: Bell | None = None) -> None:
        self._longest, self._bell = longest, bell

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def sleep(self, seconds: float) -> None:
        (self._bell.wait if self._bell else time.sleep)(min(seconds, self._longest))


class NodeTime(BriskTime):
    """For a SuperNode: it sleeps during a turn, whose task server it rings before, and until the next message. In
    between it has sent a reply, and rings the server."""

    def __init__(self, longest: float, name: str) -> None:
        super().__init__(longest, Bell(name))
        self._name, self._in_turn = name, False

    def sleep(self, seconds: float) -> None:
        in_turn = seconds < WITHOUT_MESSAGE
        if in_turn != self._in_turn:
            ring(self._name + TASKS if in_turn else SERVER)
            self._in_turn = in_turn
        super().sleep(seconds)
