"""Atomic, durable file operations for run folders.

Only the functions here modify a run folder, and only through this module's ``os``, which tests replace by a disk that
fails or loses power (tests/fuzz/disk.py). A file is created or appended to, never overwritten. Symbolic links are not
followed, and anything but a regular file is refused, so a FIFO or a device cannot block a reader.
"""

import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BufferedReader
from pathlib import Path
from typing import IO

import safetensors
import safetensors.numpy
import safetensors.torch

from asfedbridge.core.errors import BadInput, Damaged
from asfedbridge.core.payload import Payload
from asfedbridge.core.reading import MAX_BYTES, MB
from asfedbridge.data.memory import memory

GUARDED = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
NOT_A_FILE = (errno.ELOOP, errno.ENXIO, errno.EISDIR)  # a link, a FIFO or socket, a folder
AT_ONCE = 16  # files and folders that are flushed side by side
PIECE = 65536  # bytes of one write: in larger pieces, ext4 of Linux 6.18 takes two to eight times as long
KINDS = {stat.S_IFLNK: "symbolic link", stat.S_IFDIR: "folder", stat.S_IFIFO: "FIFO", stat.S_IFSOCK: "socket"}


def write_atomic(path: Path, content: bytes, after: Sequence[Path] = ()) -> None:
    """Write a temporary file, flush it to disk, rename it: a reader sees the old file or the new one, also after a
    crash. Files and folders in ``after``, to which the new file refers, are flushed together with it."""
    beside = path.with_name(path.name + ".partial")
    write_through(beside, content, flush=not after)
    if after:
        flush([beside, *after])
    is_there(path)
    os.replace(beside, path)
    sync_folder(path.parent)


def write_through(path: Path, content: bytes, flush: bool = True) -> None:
    """Create or replace a file. ``flush``: its content, not its name, then survives a power cut."""
    try:
        handle = _open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    except FileExistsError:  # removed, not overwritten: it may have hard links
        remove_file(path)
        handle = _open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    _write(handle, content, flush)


def append_through(path: Path, content: bytes, flush: bool = True) -> None:
    """Append to a file, which is created if needed. Without ``flush``, the content may be lost in a power cut."""
    try:
        handle, new = _open(path, os.O_WRONLY | os.O_APPEND), False
    except FileNotFoundError:
        handle, new = _open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), True
    _write(handle, content, flush)
    if new:
        sync_folder(path.parent)


def _write(handle: int, content: bytes, flush: bool = True) -> None:
    try:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(handle, rest[:PIECE]) :]
        if flush:
            os.fsync(handle)
    finally:
        os.close(handle)


def read_file(path: Path, most: int = MAX_BYTES) -> bytes:
    with _reader(path, most) as file:
        return file.read(most)


def is_there(path: Path) -> bool:
    """Whether the file exists; BadInput if the path is something else."""
    return _is_there(path, stat.S_IFREG, "file")


def is_folder(path: Path) -> bool:
    """Whether the folder exists; BadInput if the path is something else."""
    return _is_there(path, stat.S_IFDIR, "folder")


def _is_there(path: Path, kind: int, place: str) -> bool:
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return False
    if stat.S_IFMT(mode) != kind:
        raise foreign(path, mode, place)
    return True


def foreign(path: Path, mode: int, place: str) -> BadInput:
    kind = KINDS.get(stat.S_IFMT(mode), "regular file" if stat.S_ISREG(mode) else "device")
    return BadInput(f"{path}: is a {kind}, expected a {place} of the run; move it away, or use another out")


def remove_file(path: Path) -> None:
    """Remove the file if it exists. A symbolic link is removed itself, not its target."""
    if is_there(path):
        os.unlink(path)


def make_folder(path: Path, mode: int = 0o777, flush: bool = True) -> None:
    """Create the folder and its parents durably, also if an earlier process created it and was killed before
    flushing. Without ``flush``, the caller flushes the folder that contains it."""
    try:
        os.mkdir(path, mode)
    except FileExistsError:
        is_folder(path)
    except FileNotFoundError:
        make_folder(path.parent, mode)
        os.mkdir(path, mode)
    if flush:
        sync_folder(path.parent)


def remove_folder(path: Path) -> None:
    """Remove the folder if it is empty: files that are not ours stay."""
    try:
        os.rmdir(path)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
            raise


def rename_folder(path: Path, to: Path) -> None:
    """Rename durably: files removed afterwards were no longer under the old name, also after a power cut."""
    os.rename(path, to)
    sync_folder(to.parent)


def add_name(path: Path, other: Path) -> None:
    """A hard link to a file that is never modified; a flushed copy where the file system has no hard links."""
    is_there(path)
    try:
        os.link(path, other)
    except OSError:
        write_through(other, read_state(path))


def take_lock(path: Path) -> IO[str] | None:
    """An exclusive lock, held until the file is closed or the process ends; None if another process has it."""
    lock = os.fdopen(_open(path, os.O_RDWR | os.O_CREAT), "r+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    return lock


def flush(paths: Iterable[Path]) -> None:
    """Flush files and folders to disk concurrently: the file system commits concurrent requests together, so ten files
    take little longer than one."""
    side_by_side(_flush, list(dict.fromkeys(paths)))


def _flush(path: Path) -> None:
    if stat.S_ISDIR(os.lstat(path).st_mode):
        sync_folder(path)
    else:
        flush_file(path)


def side_by_side(work: Callable[[Path], None], paths: Sequence[Path]) -> None:
    """Call ``work`` on each path in threads, in no order; raise the first error after all have finished."""
    if not paths:
        return
    with ThreadPoolExecutor(min(len(paths), AT_ONCE)) as pool:
        list(pool.map(work, paths))


def sync_folder(path: Path) -> None:
    """Flush the folder's entries: files created, renamed or removed in it stay so after a power cut."""
    _sync(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))


def flush_file(path: Path) -> None:
    _sync(_open(path, os.O_RDONLY))


def _sync(handle: int) -> None:
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _reader(path: Path, most: int) -> BufferedReader:
    """Read a file of at most ``most`` bytes: a larger one is not ours and could exhaust memory."""
    file = os.fdopen(_open(path, os.O_RDONLY), "rb")
    if os.fstat(file.fileno()).st_size > most:
        file.close()
        raise damaged(path, f"it is larger than {most / MB:,.0f} MB")
    return file


def _open(path: Path, flags: int) -> int:
    """Open a regular file; anything else is BadInput, without blocking."""
    try:
        handle = os.open(path, flags | GUARDED, 0o666)
    except OSError as error:
        if error.errno in NOT_A_FILE:
            raise foreign(path, os.lstat(path).st_mode, "file") from None
        raise
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        raise foreign(path, mode, "file")
    return handle


def write_tensors(path: Path, tensors: Payload, flush: bool = True) -> str:
    """Write a file of tensors, flushed if it must survive a power cut; return the SHA-256 that `read_tensors`
    checks."""
    # The same bytes as safetensors.torch.save, in half the time.
    content = safetensors.numpy.save({name: t.detach().cpu().contiguous().numpy() for name, t in tensors.items()})
    write_through(path, content, flush)
    return hashlib.sha256(content).hexdigest()


def read_state(path: Path) -> bytes:
    """The content of a file of tensors, not yet parsed."""
    return read_file(path, _largest_state())


def _largest_state() -> int:
    """The largest file of tensors that is read, in bytes: while it is read it is in memory twice, as a file and as
    tensors."""
    return memory() // 2


def read_tensors(path: Path, sha256: str) -> Payload:
    try:
        content = read_state(path)
        if hashlib.sha256(content).hexdigest() != sha256:
            raise damaged(path, "its checksum differs")
        return dict(safetensors.torch.load(content))
    except (OSError, safetensors.SafetensorError) as error:
        raise damaged(path, type(error).__name__) from None


def verify(path: Path, sha256: str) -> None:
    """Verify a file's checksum without keeping its content in memory."""
    try:
        with _reader(path, _largest_state()) as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                raise damaged(path, "its checksum differs")
    except OSError as error:
        raise damaged(path, type(error).__name__) from None


def damaged(path: Path, why: str) -> Damaged:
    return Damaged(f"{path}: this checkpoint is damaged ({why}); restore the file, or start again with another out")
