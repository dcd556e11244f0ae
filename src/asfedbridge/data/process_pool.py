"""Runs independent jobs on all cores with ``concurrent.futures``. The worker processes exit with their parent."""

import multiprocessing
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import Any, TypeVar

from asfedbridge.core.errors import WorkerLost
from asfedbridge.core.process import block_terminal_signals, count_cores, end_with_parent

R = TypeVar("R")


def spread_over_processes(
    work: Callable[..., R], jobs: Sequence[tuple[Any, ...]], workers: int = 0
) -> Generator[R, None, None]:
    """Yields ``work(*job)`` for every job, in order of completion. ``workers=0`` uses one process per core.

    Closing the generator stops the workers after their current jobs. With one job or one worker, no process is started.
    """
    workers = min(workers or count_cores(), len(jobs))
    if workers < 2:
        yield from (work(*job) for job in jobs)
        return
    # Not "forkserver": the engine `pool` starts the fork server later with its own preloaded modules, and there is only
    # one per process.
    context = multiprocessing.get_context("spawn")
    waiting = iter(jobs)
    with ProcessPoolExecutor(workers, context, end_with_parent) as pool:

        def submit(count: int) -> set[Future[R]]:
            with block_terminal_signals():  # a worker started here inherits the mask; only the parent handles Ctrl-C
                return {pool.submit(work, *job) for job in islice(waiting, count)}

        try:
            running = submit(workers)  # one job per worker, so that closing waits for few jobs
            while running:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    running |= submit(1)
                    yield future.result()
        except BrokenProcessPool:
            raise WorkerLost(
                "a process that decodes data died (killed or out of memory); run the command again to resume"
            ) from None
