"""Flower's programs as functions, for processes forked from one that has loaded everything.

Flower starts a new process for each message, which imports torch every time. `serve_tasks` replaces `flower-superexec`
and forks that process instead.
"""

import gc
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Queue
from typing import Any

import torch

from asfedbridge.core import BadInput
from asfedbridge.deploy import apps
from asfedbridge.deploy.flwr_internals import (
    ExecutionSpec,
    LaunchResult,
    SubprocessExecutor,
    TaskType,
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
from asfedbridge.deploy.polling import LONGEST_SLEEP, BriskTime, be_patient, quicken
from asfedbridge.deploy.processes import CROWD
from asfedbridge.deploy.sockets import use_sockets
from asfedbridge.engines import die_with

quicken()
WATCHED = 60  # timeout factor of a local cluster, which notices by other means when a program ends


class ForkingExecutor(SubprocessExecutor):  # type: ignore[misc]
    """Replaces the executor that starts programs: a task is a fork of this process."""

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        runs: dict[TaskType, Callable[..., None]] = {
            TaskType.CLIENT_APP: run_clientapp,
            TaskType.SERVER_APP: _run_server,
        }
        if spec.task_type not in runs:
            return super().launch(spec)
        parent = os.getpid()
        if apps.CACHE:
            apps.CACHE.refresh()
        if os.fork() == 0:
            with suppress(BaseException):
                die_with(parent)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # flwr ends a task
                # that lost its token with SIGINT; blocked, the task would hang
                exit_handler.registered_exit_handlers.clear()  # the parent's handlers
                if warm := sys.modules.get("asfedbridge.deploy.preload"):
                    torch.set_num_threads(warm.THREADS)
                certificates = validate_and_resolve_root_certificates(spec.root_certificates_path, spec.insecure)
                runs[spec.task_type](
                    runtime_api_address=spec.runtime_api_address,
                    token=spec.token,
                    insecure=spec.insecure,
                    certificates=certificates,
                    parent_pid=None,
                    runtime_dependency_install=False,
                )
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
        return LaunchResult.accepted()


def _run_server(**options: Any) -> None:
    lines: Queue[str | None] = Queue()
    mirror_output_to_queue(lines)  # for `flwr log`
    run_serverapp(log_queue=lines, **options)


def serve_tasks(address: str, certificates: Path | None = None, secret: Path | None = None) -> None:
    """Fork a process for each task of the SuperLink or SuperNode at ``address``. ``secret``: the file that
    authenticates us."""
    try:
        known_by = load_superexec_auth_secret(str(secret) if secret else None)
    except ValueError as error:
        raise BadInput(f"--superexec-auth-secret-file {secret}: {error}") from None
    gc.freeze()  # exclude loaded objects from garbage collection, which would touch and so copy every page after a fork
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are not waited for
    sys.argv = ["tasks"]  # tells a turn that it has a process of its own
    apps.start_cache()
    executor = ForkingExecutor()
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
            start_client_internal.time = BriskTime(crowd * LONGEST_SLEEP)
            flower_supernode()
        case "flwr":
            flwr_command()
        case "tasks":
            serve_tasks(words[0])
