"""Refuses data sets that do not fit into memory, before they are read."""

import os
from pathlib import Path

from asfedbridge.core.errors import BadInput

COPIES = 2  # the set as it is read, and once more as the shards of clients
LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")  # of a container


def memory() -> int:
    """The memory of this machine in bytes, or the limit of its container if that is lower."""
    amounts = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in LIMITS:
        try:
            amounts.append(int(Path(path).read_text()))
        except (OSError, ValueError):  # no container, or "max"
            continue
    return min(amounts)


def check_memory(what: str, images: int, channels: int, size: int, advice: str) -> None:
    """Refuse so many images of size x size pixels, where they clearly have no room."""
    check_bytes(f"{what}: {images} images of {size}x{size} pixels", images * channels * size * size, advice)


def check_bytes(what: str, size: int, advice: str) -> None:
    """Refuse arrays of so many bytes."""
    needed = COPIES * size
    if needed > memory():
        room = f"{needed / 2**30:.1f} GB of memory, this machine has {memory() / 2**30:.1f}"
        raise BadInput(f"{what}: to read and divide them takes {room}: {advice}")
