"""Flower's programs as functions, for processes that are forked from one that has loaded everything.

Flower starts a new process for each message, which loads torch anew each time. `serve_tasks` takes the place of its
`flower-superexec` and forks that process instead. This leans on flwr's inner parts: the version is pinned.
"""

import gc
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from queue import Queue
from typing import Any

import torch
from flwr.cli.app import app as flwr_command
from flwr.supercore.constant import TaskType
from flwr.supercore.exit import exit_handler
from flwr.supercore.superexec import run_superexec as superexec
from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor
from flwr.supercore.superexec.executor.types import ExecutionSpec, LaunchResult
from flwr.supercore.tls import validate_and_resolve_root_certificates
from flwr.superlink.cli import flower_superlink
from flwr.superlink.runtime.run_serverapp import run_serverapp
from flwr.supernode import start_client_internal
from flwr.supernode.cli import flower_supernode
from flwr.supernode.runtime.run_clientapp import run_clientapp

from asfedbridge.deploy import apps
from asfedbridge.deploy.polling import BriskTime, quicken
from asfedbridge.engines import die_with

quicken()


class ForkingExecutor(SubprocessExecutor):
    """Takes the place of the executor that starts programs: a task is a fork of this process."""

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
                exit_handler.registered_exit_handlers.clear()  # those of the parent
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
    run_serverapp(log_queue=Queue(), **options)


def serve_tasks(address: str, certificates: str | None) -> None:
    """Fork a process for each task that the SuperLink or SuperNode at ``address`` has."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    sys.argv = ["tasks"]  # by which a turn knows that its process is its own
    apps.start_cache()
    executor = ForkingExecutor()
    superexec.get_executor = lambda *args, **options: executor
    superexec.run_superexec(
        runtime_api_address=address,
        insecure=certificates is None,
        root_certificates_path=certificates,
        runtime_dependency_install=False,
    )


def run_program(name: str, words: list[str]) -> None:
    """A program of Flower's (`superlink`, `supernode`, `flwr`), or `tasks ADDRESS [CERTIFICATES]`."""
    gc.freeze()  # what is loaded stays: else it is gone through again and again, and every page of it copied
    sys.argv = [name, *words]
    match name:
        case "superlink":
            flower_superlink()
        case "supernode":
            start_client_internal.time = BriskTime()  # type: ignore[assignment]
            flower_supernode()
        case "flwr":
            flwr_command()
        case "tasks":
            serve_tasks(words[0], words[1] if len(words) > 1 else None)
