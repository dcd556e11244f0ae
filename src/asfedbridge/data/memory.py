"""Rejects data sets that do not fit into memory before they are read."""

import os
from pathlib import Path

from asfedbridge.core.errors import BadInput

COPIES = 2  # the data set, and the shards of clients
MEMINFO, CGROUP = "/proc/meminfo", Path("/sys/fs/cgroup")
CONTAINER_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def memory() -> int:
    """The memory of this machine in bytes, or the limit of its container if that is lower."""
    amounts = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in CONTAINER_LIMITS:
        try:
            amounts.append(int(Path(path).read_text()))
        except (OSError, ValueError):  # no container, or "max"
            continue
    return min(amounts)


def free_memory() -> int:
    """Bytes available without swapping; the total memory if the system does not report it."""
    amounts = [memory()]
    try:
        lines = Path(MEMINFO).read_text().splitlines()
        amounts += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    except (OSError, ValueError):
        pass
    try:
        stat = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
        used = int((CGROUP / "memory.current").read_text()) - int(
            stat["inactive_file"]
        )  # page cache that can be dropped
        amounts.append(int((CGROUP / "memory.max").read_text()) - used)
    except (OSError, ValueError, KeyError):  # no container, or no limit
        pass
    return max(0, min(amounts))


def check_memory(what: str, images: int, channels: int, size: int, advice: str) -> None:
    """Rejects this number of images of size x size pixels if they do not fit into memory."""
    check_bytes(f"{what}: {images} images of {size}x{size} pixels", images * channels * size * size, advice)


def check_bytes(what: str, size: int, advice: str) -> None:
    """Rejects arrays of ``size`` bytes if they do not fit into memory."""
    needed = COPIES * size
    if needed > memory():
        room = f"{needed / 2**30:.1f} GB of memory, this machine has {memory() / 2**30:.1f}"
        raise BadInput(f"{what}: reading and partitioning needs {room}: {advice}")
    if needed > free_memory():
        room = f"{needed / 2**30:.1f} GB of memory, {free_memory() / 2**30:.1f} GB are free"
        raise BadInput(f"{what}: reading and partitioning needs {room}: close other programs, or {advice}")
