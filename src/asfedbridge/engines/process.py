"""How a process that trains begins and ends: threads, what happens to freed memory, nobody left behind."""

import ctypes
import fcntl
import multiprocessing
import multiprocessing.resource_tracker
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4  # <malloc.h>
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
STRETCH = 64 << 20
# What torch loads with the first optimiser, and our machine code: seconds that each process would take for itself.
# A module that cannot be imported (no numba) is passed over.
PRELOAD = (
    "asfedbridge.kernels.norm_lif",
    "asfedbridge.kernels.sparse_conv",
    "asfedbridge.kernels.crop",
    "torch._dynamo",
)


def prepare_process(threads: int = 0) -> None:
    """Set torch's threads (0: as they are) and keep freed memory."""
    if threads:
        torch.set_num_threads(threads)
    keep_freed_memory()


def count_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def keep_freed_memory() -> bool:
    """Have malloc reuse large blocks instead of giving them back to the system; True where that is possible.

    Activations are tens of megabytes and live for milliseconds. By default glibc maps such a block anew each time and
    unmaps it when it is freed, and the system then clears each page again on first touch: in a training step of a
    spiking network that can take longer than the arithmetic. The price: a process stays as large as it once was.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, -1), (M_TOP_PAD, STRETCH))
    results = [mallopt(name, value) for name, value in settings]  # each one, whatever the others say
    return all(result == 1 for result in results)


def worker_context(*modules: str) -> Any:
    """Processes are forked from a server that has loaded these modules but never run: quick to start, and without the
    threads and locks of this process."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*modules, *PRELOAD])
    multiprocessing.resource_tracker.ensure_running()  # its start would end the deafness below
    return context


@contextmanager
def deaf_to_ctrl_c() -> Iterator[None]:
    """What is started meanwhile inherits a blocked SIGINT: a process that is not up yet would die of it in noise."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_with_parent() -> None:
    """Nobody is left behind when the parent is killed.

    Linux signals a hang-up on the pipe that the parent holds; SIGIO ends who does not handle it, also in the middle
    of C code that keeps Python's lock, where a thread would wait in vain. Elsewhere a thread has to do.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    if sys.platform == "linux":
        fcntl.fcntl(parent.sentinel, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(parent.sentinel, fcntl.F_SETFL, fcntl.fcntl(parent.sentinel, fcntl.F_GETFL) | os.O_ASYNC)
        if not parent.is_alive():  # it died before we listened
            os._exit(1)
    else:
        threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()


def end_after(seconds: float) -> None:
    """The kernel ends this process then, wherever it hangs; the process is one turn's own."""
    if threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, max(1.0, seconds))


def die_with(parent: int) -> None:
    """End at once when process ``parent`` ends, which has forked this one; Linux only, elsewhere nothing happens."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before we asked
            os._exit(1)
