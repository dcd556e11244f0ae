"""Independent pieces of work on all cores: ``concurrent.futures``, with processes that end with their parent."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import islice
from typing import Any, TypeVar

from asfedbridge.core.errors import WorkerLost

R = TypeVar("R")


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def spread_over_processes(
    work: Callable[..., R], jobs: Sequence[tuple[Any, ...]], workers: int = 0
) -> Generator[R, None, None]:
    """``work(*job)`` for every job, in the order they are ready; ``workers`` 0: one for each core.

    Closing the generator stops the workers after the jobs they have begun. With one job or one worker there are none.
    """
    workers = min(workers or cores(), len(jobs))
    if workers < 2:
        yield from (work(*job) for job in jobs)
        return
    # Not the fork server: it would be running, without what the pool of workers wants in it, when that pool starts.
    context = multiprocessing.get_context("spawn")
    waiting = iter(jobs)
    with ProcessPoolExecutor(workers, context, _end_with_parent) as pool:

        def submit(count: int) -> set[Future[R]]:
            with _interrupts_blocked():  # a worker may be started here, and inherits it: Ctrl-C is for the parent alone
                return {pool.submit(work, *job) for job in islice(waiting, count)}

        try:
            running = submit(workers)  # no more at a time, so that closing waits for as few
            while running:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    running |= submit(1)
                    yield future.result()
        except BrokenProcessPool:
            raise WorkerLost(
                "a process that decodes data is gone (killed, or out of memory); run it again, it goes on where it "
                "stopped"
            ) from None


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with_parent() -> None:
    """Workers of an executor wait for jobs for ever when their parent is killed: watch it, and end when it ends."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
