"""How a process that trains is set up: threads, and what happens to freed memory."""

import ctypes
import sys

import torch

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4  # <malloc.h>
STRETCH = 64 << 20


def prepare_process(threads: int = 0) -> None:
    """Set torch's threads (0: as they are) and keep freed memory."""
    if threads:
        torch.set_num_threads(threads)
    keep_freed_memory()


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
