"""Processes that are Flower's programs: one is loaded, all others are forked from it, none is left behind.

This module does not import flwr: who starts programs need not load them.
"""

import importlib
import os
from collections.abc import Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

from asfedbridge.engines import deaf_to_ctrl_c, end_with_parent, worker_context

PROGRAMS, WARM = "asfedbridge.deploy.programs", "asfedbridge.deploy.preload"
QUIET = {  # no calls home, nothing installed, nothing but loopback
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}


def start(
    name: str, words: Sequence[str], env: Mapping[str, str], log: Path, preload: Sequence[str] = ()
) -> BaseProcess:
    """Start a program of ``programs.run_program``.

    ``preload`` are modules that apps will import; they must not start threads.
    """
    os.environ.update(QUIET)  # some of it is read when flwr is loaded
    context = worker_context(PROGRAMS, WARM, *preload)
    process: BaseProcess = context.Process(target=_begin, args=(name, list(words), dict(env), str(log)), daemon=True)
    with deaf_to_ctrl_c():
        process.start()
    return process


def _begin(name: str, words: list[str], env: dict[str, str], log: str) -> None:
    end_with_parent()
    os.environ.update(env)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)
    importlib.import_module(PROGRAMS).run_program(name, words)
