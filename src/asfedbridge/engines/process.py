"""Set-up and termination of training processes: threads, memory allocation, no orphans."""

import ctypes
import gc
import math
import multiprocessing
import multiprocessing.resource_tracker
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import torch

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4  # <malloc.h>
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
STRETCH = 64 << 20
# Loaded once before forking: our kernels, and modules that torch imports with the first optimiser, take seconds.
# A module that cannot be imported (no numba) is skipped.
PRELOAD = (
    "asfedbridge.kernels.norm_lif",
    "asfedbridge.kernels.sparse_conv",
    "asfedbridge.kernels.crop",
    "torch._dynamo",
)


def prepare_process(threads: int = 0) -> None:
    """Set torch's number of threads (0: unchanged) and keep freed memory."""
    if threads:
        torch.set_num_threads(threads)
    keep_freed_memory()


def keep_freed_memory() -> bool:
    """Make malloc reuse large blocks instead of returning them to the system; True where that is possible.

    Activations are tens of megabytes and live for milliseconds. By default glibc maps such a block for each allocation
    and unmaps it when it is freed, and the kernel clears each page again on first touch: in a training step of a
    spiking network that can take longer than the arithmetic. The price: a process never shrinks.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, -1), (M_TOP_PAD, STRETCH))
    results = [mallopt(name, value) for name, value in settings]  # set all of them, also if one fails
    return all(result == 1 for result in results)


def release_freed_memory() -> None:
    """Return to the system what `keep_freed_memory` kept, before a long pause."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim:
        trim(0)


def worker_context(*modules: str) -> Any:
    """Fork processes from a server that has loaded these modules and has no threads: fast to start, and without the
    threads and locks of this process."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*modules, *PRELOAD])
    multiprocessing.resource_tracker.ensure_running()  # starting it later would undo the blocked signals below
    return context


def is_stopped(process: int | None) -> bool:
    """Whether the process is stopped by a signal or a debugger; False where /proc does not tell."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] in ("T", "t")


def end_after(seconds: float) -> None:
    """Have the kernel end this process after so many seconds, wherever it hangs; infinity cancels it. Only for a
    process that runs one turn at a time."""
    if threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, 0.0 if math.isinf(seconds) else max(1.0, seconds))


def die_with(parent: int) -> None:
    """End at once when ``parent``, which forked this process, ends. Linux only; elsewhere it has no effect."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent died before we asked
            os._exit(1)
