"""Flower's programs as functions, for processes forked from one that has loaded everything.

Flower starts a new process for each message, which imports torch every time. `serve_tasks` replaces `flower-superexec`:
it forks the server of a run, and one process for all turns of a run (`turn_process`).
"""

import gc
import math
import os
import signal
import sys
from pathlib import Path
from queue import Queue
from typing import Any

import torch

from asfedbridge.core import BadInput
from asfedbridge.deploy import apps, node  # noqa: F401  (apps: loaded before the first fork)
from asfedbridge.deploy.bells import TASKS, Bell, ring
from asfedbridge.deploy.flwr_internals import (
    AutoExecPlugin,
    ExecutionSpec,
    LaunchResult,
    SubprocessExecutor,
    TaskType,
    clientapp_runtime,
    exit_handler,
    flower_superlink,
    flower_supernode,
    flwr_command,
    load_superexec_auth_secret,
    mirror_output_to_queue,
    run_clientapp,
    run_serverapp,
    start_client_internal,
    superexec,
    validate_and_resolve_root_certificates,
)
from asfedbridge.deploy.polling import LONGEST_SLEEP, BriskTime, NodeTime, be_patient, quicken
from asfedbridge.deploy.processes import CROWD, QUIET, TASK_POLL, fork
from asfedbridge.deploy.sockets import use_sockets
from asfedbridge.deploy.turn_process import TurnProcess
from asfedbridge.engines import end_after, release_freed_memory

quicken()
WATCHED = 60  # timeout factor of a local cluster, which notices by other means when a program ends


class RunPlugin(AutoExecPlugin):  # type: ignore[misc]
    """Tells the executor the run of a task, which the description of a task lacks."""

    def launch_task(self, token: str, task: Any) -> LaunchResult:
        self.executor.run = task.run_id
        return super().launch_task(token, task)


class ForkingExecutor(SubprocessExecutor):  # type: ignore[misc]
    """Replaces the executor that starts programs: a task is run by a fork of this process."""

    def __init__(self) -> None:
        self.run = 0
        self._turns: TurnProcess | None = None

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        if spec.task_type == TaskType.CLIENT_APP:
            self._turns = self._turns or TurnProcess(lambda token: take_turn(spec, token))
            self._turns.start(self.run, spec.token)
        elif spec.task_type == TaskType.SERVER_APP:
            fork(lambda: _run_server(spec))
        else:
            return super().launch(spec)
        return LaunchResult.accepted()


def take_turn(spec: ExecutionSpec, token: str) -> float:
    """Answer one message; return the seconds to wait for the next one in this process."""
    if node.MEMORY is None:
        node.MEMORY = node.Memory()
        _prepare_fork()
        clientapp_runtime.flwr_exit = _end_turn
    run_clientapp(token=token, **_task_options(spec))
    ring(spec.runtime_api_address.rpartition(":")[0])
    end_after(math.inf)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)  # the handlers of this turn
    release_freed_memory()
    sys.stdout.flush()
    sys.stderr.flush()
    return node.MEMORY.patience


def _end_turn(code: int, message: str | None = None, **telemetry: Any) -> None:
    """Replaces flwr's exit at the end of a turn, which ends the process five seconds later."""
    for early in (True, False):
        exit_handler.trigger_exit_handlers(run_before_force_exit=early)
    if code:
        raise SystemExit(message)


def _prepare_fork() -> None:
    exit_handler.registered_exit_handlers.clear()  # the parent's handlers
    if warm := sys.modules.get("asfedbridge.deploy.preload"):
        torch.set_num_threads(warm.THREADS)


def _task_options(spec: ExecutionSpec) -> dict[str, Any]:
    return {
        "runtime_api_address": spec.runtime_api_address,
        "insecure": spec.insecure,
        "certificates": validate_and_resolve_root_certificates(spec.root_certificates_path, spec.insecure),
        "parent_pid": None,
        "runtime_dependency_install": False,
    }


def _run_server(spec: ExecutionSpec) -> None:
    _prepare_fork()
    lines: Queue[str | None] = Queue()
    mirror_output_to_queue(lines)  # for `flwr log`
    run_serverapp(log_queue=lines, token=spec.token, **_task_options(spec))


def serve_tasks(address: str, certificates: Path | None = None, secret: Path | None = None) -> None:
    """Fork processes for the tasks of the SuperLink or SuperNode at ``address``. ``secret``: the file that
    authenticates us."""
    try:
        known_by = load_superexec_auth_secret(str(secret) if secret else None)
    except ValueError as error:
        raise BadInput(f"--superexec-auth-secret-file {secret}: {error}") from None
    gc.freeze()  # exclude loaded objects from garbage collection, which would touch and so copy every page after a fork
    os.environ.setdefault(TASK_POLL, QUIET[TASK_POLL])
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are not waited for
    sys.argv = ["tasks"]  # tells a turn that it has a process of its own
    executor = ForkingExecutor()
    superexec.AutoExecPlugin = RunPlugin
    superexec.time = BriskTime(math.inf, Bell(address.rpartition(":")[0] + TASKS))
    superexec.get_executor = lambda *args, **options: executor
    superexec.run_superexec(
        runtime_api_address=address,
        insecure=certificates is None,
        root_certificates_path=str(certificates) if certificates else None,
        superexec_auth_secret=known_by,
        runtime_dependency_install=False,
    )


def run_program(name: str, words: list[str]) -> None:
    """Run one of Flower's programs (`superlink`, `supernode`, `flwr`), or `tasks ADDRESS`."""
    gc.freeze()
    sys.argv = [name, *words]
    use_sockets(os.environ)
    crowd = float(os.environ.get(CROWD, 1))
    match name:
        case "superlink":
            be_patient(WATCHED)
            flower_superlink()
        case "supernode":
            be_patient(crowd)
            start_client_internal.time = NodeTime(crowd * LONGEST_SLEEP, words[words.index("--host") + 1])
            flower_supernode()
        case "flwr":
            flwr_command()
        case "tasks":
            serve_tasks(words[0])
