"""Temporary folders of runs on this machine: accessible to their user only, removed even if their owner was killed."""

import os
import shutil
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from asfedbridge.engines import take_lock

PREFIX, LOCK = "asfedbridge-flower-", ".lock"
YOUNG = 3600.0  # seconds: a folder without a lock may be one that is just being created


class Scratch:
    """A new folder with mode 0700; ``close`` removes it."""

    def __init__(self) -> None:
        sweep(Path(tempfile.gettempdir()))
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._lock = take_lock(self.path / LOCK)  # held until this process ends

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock:
            self._lock.close()

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *error: object) -> None:
        self.close()


def sweep(place: Path) -> None:
    """Remove folders left behind by killed runs of this user."""
    for folder in place.glob(f"{PREFIX}*"):
        with suppress(OSError):  # removed by another one, or not ours to remove
            if _abandoned(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _abandoned(folder: Path) -> bool:
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        return False
    try:
        kind = (folder / LOCK).lstat()
    except FileNotFoundError:
        return time.time() - found.st_mtime > YOUNG
    if not stat.S_ISREG(kind.st_mode):
        return False
    lock = take_lock(folder / LOCK)
    if lock is None:
        return False
    lock.close()
    return True
