"""Files that are either whole or not there, and tensor files that are what they were."""

import fcntl
import hashlib
import os
from pathlib import Path
from typing import IO

import safetensors
import safetensors.numpy
import safetensors.torch

from asfedbridge.core.errors import BadInput
from asfedbridge.core.payload import Payload


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


def append_through(path: Path, content: bytes) -> None:
    with path.open("ab") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def take_lock(path: Path) -> IO[str] | None:
    """A lock that one process holds until it closes the file or ends, however it ends; None if another one has it."""
    lock = path.open("a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    return lock


def sync_folder(path: Path) -> None:
    """Make a rename in this folder last through a power cut."""
    flush_file(path)


def write_tensors(path: Path, tensors: Payload, flush: bool = True) -> str:
    """Write, and flush to the disk if it is to outlast a power cut; return the SHA-256 that reading it asks for."""
    # The same bytes as safetensors.torch.save, in half the time.
    content = safetensors.numpy.save({name: t.numpy() for name, t in tensors.items()})
    if flush:
        write_through(path, content)
    else:
        path.write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def flush_file(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_tensors(path: Path, sha256: str) -> Payload:
    try:
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != sha256:
            raise damaged(path, "its checksum differs")
        return dict(safetensors.torch.load(content))
    except (OSError, safetensors.SafetensorError) as error:
        raise damaged(path, type(error).__name__) from None


def verify(path: Path, sha256: str) -> None:
    """Read the file through without keeping it."""
    try:
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                raise damaged(path, "its checksum differs")
    except OSError as error:
        raise damaged(path, type(error).__name__) from None


def damaged(path: Path, why: str) -> BadInput:
    return BadInput(f"{path}: this checkpoint is damaged ({why}); restore the file, or start again in another out")
