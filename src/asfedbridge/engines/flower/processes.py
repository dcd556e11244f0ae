"""Flower's programs as processes of ours: forked from one that has loaded everything, and never left behind.

Flower starts a new process for each message, which loads torch anew each time. `serve_tasks` takes the place of its
`flower-superexec` and forks that process instead. This leans on flwr's inner parts: the version is pinned.
"""

import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from queue import Queue
from typing import Any

from flwr.cli.app import app as flwr_command
from flwr.supercore.constant import TaskType
from flwr.supercore.exit import exit_handler
from flwr.supercore.superexec import run_superexec as superexec
from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor
from flwr.supercore.superexec.executor.types import ExecutionSpec, LaunchResult
from flwr.supercore.tls import validate_and_resolve_root_certificates
from flwr.superlink.cli import flower_superlink
from flwr.superlink.runtime.run_serverapp import run_serverapp
from flwr.supernode.cli import flower_supernode
from flwr.supernode.runtime.run_clientapp import run_clientapp

from asfedbridge.engines.process import deaf_to_ctrl_c, die_with, end_with_parent, worker_context

QUIET = {  # no calls home, nothing installed, nothing but loopback
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}


class ForkingExecutor(SubprocessExecutor):
    """Takes the place of the executor that starts programs: a task is a fork of this process."""

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        runs: dict[TaskType, Callable[..., None]] = {TaskType.CLIENT_APP: run_clientapp, TaskType.SERVER_APP: _run_server}
        if spec.task_type not in runs:
            return super().launch(spec)
        parent = os.getpid()
        if os.fork() == 0:
            with suppress(BaseException):
                die_with(parent)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                exit_handler.registered_exit_handlers.clear()  # those of the parent
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
    executor = ForkingExecutor()
    superexec.get_executor = lambda *args, **options: executor
    superexec.run_superexec(
        runtime_api_address=address,
        insecure=certificates is None,
        root_certificates_path=certificates,
        runtime_dependency_install=False,
    )


PROGRAMS: dict[str, Callable[[], Any]] = {"superlink": flower_superlink, "supernode": flower_supernode, "flwr": flwr_command}


def start(
    name: str, words: Sequence[str], env: Mapping[str, str], log: Path, preload: Sequence[str] = ()
) -> BaseProcess:
    """A program of Flower's (`superlink`, `supernode`, `flwr`), or `tasks ADDRESS [CERTIFICATES]`.

    ``preload`` are modules that apps will import; they must not start threads.
    """
    os.environ.update(QUIET)  # what is forked reads some of it when it is loaded
    context = worker_context(__name__, "sklearn.datasets", *preload)
    process = context.Process(target=_begin, args=(name, list(words), dict(env), str(log)), daemon=True)
    with deaf_to_ctrl_c():
        process.start()
    return process


def _begin(name: str, words: list[str], env: dict[str, str], log: str) -> None:
    end_with_parent()
    os.environ.update(env)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.argv = [name, *words]
    if name == "tasks":
        serve_tasks(words[0], words[1] if len(words) > 1 else None)
    else:
        PROGRAMS[name]()
