"""Files that are either whole or not there."""

import os
from pathlib import Path


def write_atomic(path: Path, content: bytes) -> None:
    """Write beside, flush to the disk, rename: a reader or a crash sees the old file or the new one."""
    beside = path.with_name(path.name + ".partial")
    write_through(beside, content)
    beside.replace(path)
    sync_folder(path.parent)


def write_through(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Make a rename in this folder last through a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
