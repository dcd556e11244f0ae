"""Runs kernels on several threads: torch's OpenMP threads if accessible, otherwise a thread pool."""

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import torch

MIN_PARALLEL_SIZE = 1 << 15  # elements; smaller work is faster on one thread


def spread(
    kernel: Callable[..., None], length: int, tile: int, rows: int, call: Callable[[int], tuple[Any, ...]]
) -> None:
    """Splits ``length`` into one range of whole tiles per thread and runs the kernel on each. ``call(k)`` returns the
    arguments for range k; ``rows * length`` elements are processed in total."""
    tiles = -(-length // tile)
    threads = min(torch.get_num_threads(), tiles) if rows * length >= MIN_PARALLEL_SIZE else 1
    if threads <= 1:
        kernel(*call(0), 0, length)
        return
    bounds = [min(length, tiles * k // threads * tile) for k in range(threads + 1)]
    parallel(threads, lambda k: kernel(*call(k), bounds[k], bounds[k + 1]))


def parallel(threads: int, work: Callable[[int], None]) -> None:
    """Runs ``work(0)`` .. ``work(threads - 1)`` concurrently.

    Torch's OpenMP threads are preferred: they keep spinning for a while after each convolution, and threads of another
    pool would compete with them for the cores.
    """
    openmp = _openmp()
    if openmp is None:
        list(_threads(threads, os.getpid()).map(work, range(threads)))
        return
    failures: list[BaseException] = []

    def one(_: object) -> None:
        try:
            # OMP_THREAD_LIMIT or OMP_DYNAMIC may provide fewer threads than requested.
            for k in range(openmp.omp_get_thread_num(), threads, openmp.omp_get_num_threads()):
                work(k)
        except BaseException as error:
            failures.append(error)

    openmp.GOMP_parallel(_CALLBACK(one), None, threads, 0)
    if failures:
        raise failures[0]


_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@cache
def _openmp() -> ctypes.CDLL | None:
    """The OpenMP library that ships with torch, if it is GNU's."""
    folders = Path(torch.__file__).parent / "lib", Path(torch.__file__).parent.parent / "torch.libs"
    for path in (p for folder in folders for p in sorted(folder.glob("libgomp*.so*"))):
        library = ctypes.CDLL(str(path))
        if hasattr(library, "GOMP_parallel"):
            return library
    return None


@cache
def _threads(count: int, process: int) -> ThreadPoolExecutor:
    """One pool per process id: a forked process inherits the pool object but not its threads."""
    return ThreadPoolExecutor(count, "kernel")
