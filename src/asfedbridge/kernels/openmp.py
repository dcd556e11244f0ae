"""Kernels on several threads: torch's own, where they can be reached."""

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import torch

ALONE = 1 << 15  # elements: below this, a second thread costs more than it brings


def spread(
    kernel: Callable[..., None], length: int, tile: int, rows: int, call: Callable[[int], tuple[Any, ...]]
) -> None:
    """Run a kernel over stretches of whole tiles, one per thread; ``call(k)`` gives the arguments of stretch k."""
    tiles = -(-length // tile)
    threads = min(torch.get_num_threads(), tiles) if rows * length >= ALONE else 1
    if threads <= 1:
        kernel(*call(0), 0, length)
        return
    bounds = [min(length, tiles * k // threads * tile) for k in range(threads + 1)]
    parallel(threads, lambda k: kernel(*call(k), bounds[k], bounds[k + 1]))


def parallel(threads: int, work: Callable[[int], None]) -> None:
    """``work(0)`` .. ``work(threads - 1)`` at the same time.

    On torch's own OpenMP threads where they can be reached: after each convolution these keep spinning for a while,
    and threads of our own would have to fight them for the cores.
    """
    openmp = _openmp()
    if openmp is None:
        list(_threads(threads, os.getpid()).map(work, range(threads)))
        return
    failures: list[BaseException] = []

    def one(_: object) -> None:
        try:
            # OMP_THREAD_LIMIT or OMP_DYNAMIC may give fewer threads than asked for.
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
    """The OpenMP library that torch has loaded, if it is GNU's."""
    folders = Path(torch.__file__).parent / "lib", Path(torch.__file__).parent.parent / "torch.libs"
    for path in (p for folder in folders for p in sorted(folder.glob("libgomp*.so*"))):
        library = ctypes.CDLL(str(path))
        if hasattr(library, "GOMP_parallel"):
            return library
    return None


@cache
def _threads(count: int, process: int) -> ThreadPoolExecutor:
    """One pool per process: a fork inherits the object, not its threads."""
    return ThreadPoolExecutor(count, "kernel")
