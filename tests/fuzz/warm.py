"""A process that has loaded everything and forks a real `asfedbridge` command when told to: each saves seconds.

Requests and answers are lines of JSON on its standard input and output: {"do": "start" | "wait" | "kill", ...}.
"""

import json
import multiprocessing.forkserver
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import sklearn.datasets  # noqa: F401  where the digits are
import torch

from asfedbridge.cli import main
from asfedbridge.engines import pool  # noqa: F401
from asfedbridge.engines.process import worker_context
from asfedbridge.models.zoo import compile_kernels
from asfedbridge.report import progress, tables  # noqa: F401
from asfedbridge.runs import run  # noqa: F401

SERVER: Any = multiprocessing.forkserver._forkserver  # Python's only one
WRITES = os.O_WRONLY | os.O_RDWR
CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate")


def start(words: list[str], out: str, log: str, stop_at: int = 0, count_to: str = "") -> int:
    """The process of a command, in a group of its own. It kills itself before its ``stop_at``-th change below ``out``;
    how many there were is written to ``count_to``."""
    if SERVER._forkserver_pid:
        # Who is killed between calling Python's fork server and speaking takes it along; here it outlives a run.
        multiprocessing.forkserver.ensure_running()
    child = os.fork()
    if child:
        return child
    with suppress(BaseException):
        os.setpgid(0, 0)
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(file, 1)
        os.dup2(file, 2)
        if SERVER._forkserver_pid:
            # It is the parent's child, and runs: whoever is no parent cannot ask.
            SERVER.ensure_running = lambda: None
        seen = count_changes(out, stop_at)
        code = 99
        try:
            code = main(words)
        finally:
            if count_to:
                Path(count_to).write_text(str(len(seen)))
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    os._exit(98)


def count_changes(out: str, stop_at: int) -> list[str]:
    """Python tells of every file that is about to be opened, renamed or removed."""
    seen: list[str] = []

    def hook(event: str, args: tuple[Any, ...]) -> None:
        writes = event == "open" and isinstance(args[2], int) and args[2] & WRITES
        if (writes or event in CHANGES) and str(args[0]).startswith(out):
            seen.append(event)
            if len(seen) == stop_at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    return seen


def wait(process: int, seconds: float) -> int | None:
    """Its exit code, if it ends by then."""
    end = time.monotonic() + seconds
    while True:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= end:
            return None
        time.sleep(0.001)


def kill(process: int) -> None:
    """It and all that it started, as far as they do not end by themselves."""
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
    server = SERVER._forkserver_pid
    while started := children(server) if server else []:
        for one in started:
            with suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
        time.sleep(0.01)
    with suppress(ChildProcessError):
        os.waitpid(process, 0)


def children(parent: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, owner = stat.read_text().rpartition(")")[2].split()[:2]
            if int(owner) == parent and state != "Z":
                found.append(int(stat.parent.name))
    return found


def flower() -> tuple[str, ...]:
    """What Flower's processes are forked from."""
    from asfedbridge.deploy.local_run import PRELOAD
    from asfedbridge.deploy.processes import PROGRAMS, QUIET, WARM

    os.environ.update(QUIET)
    return PROGRAMS, WARM, *PRELOAD


def serve(engine: str) -> None:
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    if engine != "local":
        worker_context("asfedbridge.engines.worker", *(flower() if engine == "flower" else ()))
        multiprocessing.forkserver.ensure_running()
    torch.set_num_threads(1)  # so that none is lost in a fork
    compile_kernels()
    print(json.dumps(os.getpid()), file=answers, flush=True)
    for request in requests:
        told = json.loads(request)
        work: Any = {"start": start, "wait": wait, "kill": kill}[told.pop("do")]
        print(json.dumps(work(**told)), file=answers, flush=True)


if __name__ == "__main__":
    serve(sys.argv[1])
