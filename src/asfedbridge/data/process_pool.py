"""Independent pieces of work on all cores: processes that end with the one that started them."""

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from asfedbridge.core.errors import WorkerLost

R = TypeVar("R")


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def spread_over_processes(
    work: Callable[..., R], jobs: Sequence[tuple[Any, ...]], workers: int = 0
) -> Generator[R, None, None]:
    """``work(*job)`` for every job, in the order they are ready; ``workers`` 0: one for each core.

    Who stops asking stops the processes. With one job or one worker there are none.
    """
    workers = min(workers or cores(), len(jobs))
    if workers < 2:
        yield from (work(*job) for job in jobs)
        return
    # Not the fork server: it would be running, without what the pool of workers wants in it, when that pool starts.
    context = multiprocessing.get_context("spawn")
    crew: dict[Connection, Any] = {}
    waiting = iter(jobs)
    try:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited: Ctrl-C is the parent's affair
        try:
            for _ in range(workers):
                ours, theirs = context.Pipe()
                crew[ours] = context.Process(target=_serve, args=(theirs, work), daemon=True)
                crew[ours].start()
                theirs.close()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for connection in crew:
            connection.send(next(waiting))
        asked = set(crew)
        while asked:
            for ready in wait(list(asked)):
                connection = next(c for c in asked if c is ready)
                try:
                    good, answer = connection.recv()
                except (EOFError, ConnectionError):
                    raise WorkerLost(
                        f"a process that decodes data is gone (exit code {_code(crew[connection])}; killed, or out of "
                        f"memory); run it again, it goes on where it stopped"
                    ) from None
                if isinstance(answer, OSError):
                    raise answer
                if not good:
                    raise RuntimeError(f"in a process that decodes data:\n{answer}")
                job = next(waiting, None)
                if job is None:
                    asked.remove(connection)
                else:
                    connection.send(job)
                yield answer
    finally:
        for connection, process in crew.items():
            connection.close()
            process.kill()
            process.join()


def _serve(connection: Connection, work: Callable[..., Any]) -> None:
    """Answer until the other end hangs up, as it does when its process ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(EOFError, ConnectionError):
        while True:
            job = connection.recv()
            try:
                answer: tuple[bool, Any] = (True, work(*job))
            except OSError as error:
                answer = (False, error)
            except Exception:
                answer = (False, traceback.format_exc())
            connection.send(answer)


def _code(process: Any) -> int | None:
    process.join(1.0)
    return process.exitcode
