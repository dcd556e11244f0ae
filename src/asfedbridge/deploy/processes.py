"""Starts Flower's programs as processes forked from one that has loaded everything, and leaves no orphans.

This module does not import flwr: the process that starts programs need not load them.
"""

import importlib
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path

from asfedbridge.core import block_terminal_signals, end_with_parent
from asfedbridge.engines import die_with, worker_context

CROWD = "ASFEDBRIDGE_CROWD"  # environment variable: factor on all timeouts, as many processes share the machine
TASK_POLL = "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"  # environment variable: seconds between requests for tasks
PROGRAMS, WARM = "asfedbridge.deploy.programs", "asfedbridge.deploy.preload"
QUIET = {  # no telemetry, no installations, loopback only
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    TASK_POLL: "0.25",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}


def start(
    name: str, words: Sequence[str], env: Mapping[str, str], log: Path, preload: Sequence[str] = ()
) -> BaseProcess:
    """Start a program of ``programs.run_program``.

    ``preload``: modules that apps will import; they must not start threads.
    """
    os.environ.update(QUIET)  # flwr reads some of it on import
    context = worker_context(PROGRAMS, WARM, *preload)
    process: BaseProcess = context.Process(target=_begin, args=(name, list(words), dict(env), str(log)), daemon=True)
    with block_terminal_signals():
        process.start()
    return process


def fork(work: Callable[[], object]) -> int:
    """Do ``work`` in a forked process that ends with this one; returns the process id. Only for the main thread."""
    parent = os.getpid()
    if child := os.fork():
        return child
    with suppress(BaseException):
        die_with(parent)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # flwr ends a task that lost its token with
        # SIGINT; blocked, the task would hang
        work()
    with suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)


def _begin(name: str, words: list[str], env: dict[str, str], log: str) -> None:
    end_with_parent()
    os.environ.update(env)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)
    importlib.import_module(PROGRAMS).run_program(name, words)
