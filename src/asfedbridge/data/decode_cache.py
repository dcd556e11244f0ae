"""A disk cache of decoded examples. Files are decoded once, on all cores, and memory-mapped from then on.

    folder/rows.npy     the arrays of all items, in order; zeros for damaged items
    folder/done.jsonl   during a build: one line for each chunk of items that is on disk
    folder/index.json   after the build: the inputs of the cache, and its damaged items

A build that was interrupted, by Ctrl-C or a power failure, resumes after its last chunk. If another process is building
the same cache, this one waits for it.
"""

import fcntl
import hashlib
import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from asfedbridge.core.errors import BadInput
from asfedbridge.core.reading import MAX_DIGITS, is_there, parse_json, read_bytes, read_json
from asfedbridge.data.process_pool import spread_over_processes

Decode = Callable[[str], np.ndarray]
Progress = Callable[[str, int, int], None]  # what, items done, total items

CHUNK = 64  # items decoded, flushed and logged together
ROWS, DONE, INDEX = "rows.npy", "done.jsonl", "index.json"


@dataclass(frozen=True)
class Decoded:
    rows: np.ndarray  # [N, *shape], memory-mapped copy-on-write: writing to it does not change the file
    damaged: dict[int, str]  # item number -> error message; empty unless ``skip_damaged``

    @property
    def kept(self) -> np.ndarray:
        """Numbers of the items that are not damaged."""
        return np.setdiff1d(np.arange(len(self.rows)), np.fromiter(self.damaged, np.int64, len(self.damaged)))


@dataclass(frozen=True)
class Layout:
    """Reads and writes rows.npy. It is written with ordinary file writes: on a full disk these raise an error, while a
    write to a memory map would kill the process with SIGBUS."""

    path: Path
    count: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def header(self) -> bytes:
        buffer = io.BytesIO()
        described = {"descr": self.dtype, "fortran_order": False, "shape": (self.count, *self.shape)}
        np.lib.format.write_array_header_1_0(buffer, described)
        return buffer.getvalue()

    @property
    def row_bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize

    def create(self) -> None:
        with self.path.open("wb") as file:
            file.write(self.header)
            file.truncate(len(self.header) + self.count * self.row_bytes)
            os.fsync(file.fileno())

    def write(self, first: int, rows: np.ndarray) -> None:
        with self.path.open("r+b") as file:
            file.seek(len(self.header) + first * self.row_bytes)
            file.write(rows.tobytes())
            file.flush()
            os.fsync(file.fileno())

    def whole(self) -> bool:
        """True if the size and header of the file are correct. The rows have no checksum."""
        if not self.path.is_file() or self.path.stat().st_size != len(self.header) + self.count * self.row_bytes:
            return False
        with self.path.open("rb") as file:
            return file.read(len(self.header)) == self.header


def print_progress(what: str, done: int, total: int) -> None:
    """Prints progress to stderr: one updated line on a terminal, otherwise a line for every 10 %."""
    text = f"{what}: {done} of {total} decoded"
    if sys.stderr.isatty():
        print(f"\r\x1b[2K{text}", end="\n" if done == total else "", file=sys.stderr, flush=True)
    elif done == total or done * 10 // total != max(0, done - CHUNK) * 10 // total:
        print(text, file=sys.stderr, flush=True)


def decoded(
    folder: Path,
    items: Sequence[str],
    decode: Decode,
    shape: tuple[int, ...],
    dtype: Any,
    made_from: Mapping[str, Any],
    skip_damaged: bool = False,
    workers: int = 0,
    progress: Progress = print_progress,
) -> Decoded:
    """``decode(item)`` of all items, from a cache in a subfolder of ``folder``, which is built if it does not exist.

    ``decode`` must be picklable (a module-level function, or a ``partial`` of one) and return an array of ``shape`` and
    ``dtype``. For a damaged item it must raise BadInput with one line that names the item; this stops the build unless
    ``skip_damaged``. ``made_from`` holds everything else the arrays depend on, as JSON; another value uses another
    cache. ``workers=0`` uses one process per core.
    """
    plain = {**made_from, "items": len(items), "shape": list(shape), "dtype": np.dtype(dtype).str}
    digest = hashlib.sha256(json.dumps([plain, list(items)], sort_keys=True).encode()).hexdigest()
    store = folder / digest[:16]
    layout = Layout(store / ROWS, len(items), shape, np.dtype(dtype).str)
    try:
        index = _read_index(store, len(items))
        if index is None or not layout.whole():
            store.mkdir(parents=True, exist_ok=True)
            with _locked(store):
                index = _read_index(store, len(items))  # another process may have built it in the meantime
                if index is None or not layout.whole():
                    damaged = _build(layout, items, decode, skip_damaged, workers, progress)
                    index = {"made_from": plain, "damaged": {str(n): why for n, why in sorted(damaged.items())}}
                    _write_index(store, index)
    except OSError as error:
        raise BadInput(
            f"{store} cannot be written ({error.strerror or error}): free space or change data_root"
        ) from error
    damaged = {int(number): why for number, why in index["damaged"].items()}
    if damaged and not skip_damaged:
        raise refusal(next(iter(damaged.values())), len(damaged))
    return Decoded(np.load(layout.path, mmap_mode="c", allow_pickle=False), damaged)


def refusal(why: str, count: int = 1) -> BadInput:
    others = f" ({count} damaged in total)" if count > 1 else ""
    return BadInput(f"{why}{others}; to continue without damaged items, set skip_damaged=true")


def stamp(files: Sequence[Path]) -> str:
    """A digest of the names, sizes and modification times of files."""
    digest = hashlib.sha256()
    for file in files:
        found = file.stat()
        digest.update(f"{file.parent.name}/{file.name}\0{found.st_size}\0{found.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _build(
    layout: Layout, items: Sequence[str], decode: Decode, skip_damaged: bool, workers: int, progress: Progress
) -> dict[int, str]:
    """Decodes all chunks that are not on disk yet. Returns the error messages of damaged items by item number."""
    done = layout.path.with_name(DONE)
    if not (done.exists() and layout.whole()):
        done.unlink(missing_ok=True)
        layout.create()
    finished = {first: damaged for first, damaged in _read_lines(done, len(items)) if first % CHUNK == 0}
    starts = [first for first in range(0, len(items), CHUNK) if first not in finished]
    jobs = [(layout, decode, first, list(items[first : first + CHUNK])) for first in starts]
    count, begun = len(items) - sum(len(job[3]) for job in jobs), time.monotonic()
    what = layout.path.parent.parent.name
    with done.open("ab") as log, closing(spread_over_processes(_decode_chunk, jobs, workers)) as chunks:
        for first, damaged in chunks:
            if damaged and not skip_damaged:
                raise refusal(damaged[min(damaged, key=int)])
            # The rows are on disk now. A chunk in the log is not decoded again.
            log.write(json.dumps({"first": first, "damaged": damaged}).encode() + b"\n")
            log.flush()
            os.fsync(log.fileno())
            finished[first] = damaged
            count += min(CHUNK, len(items) - first)
            if time.monotonic() - begun > 1:  # nothing is printed for small sets
                progress(what, count, len(items))
    return {int(number): why for damaged in finished.values() for number, why in damaged.items()}


def _decode_chunk(layout: Layout, decode: Decode, first: int, items: list[str]) -> tuple[int, dict[str, str]]:
    rows = np.zeros((len(items), *layout.shape), layout.dtype)
    damaged = {}
    for number, item in enumerate(items):
        try:
            row = decode(item)
        except BadInput as error:
            damaged[str(first + number)] = str(error)
            continue
        if row.shape != layout.shape or row.dtype != rows.dtype:
            raise ValueError(f"{item} was decoded to {row.dtype} {row.shape}, not {rows.dtype} {layout.shape}")
        rows[number] = row
    layout.write(first, rows)
    return first, damaged


def _read_lines(path: Path, items: int) -> Iterator[tuple[int, dict[str, str]]]:
    """Yields the first item and the damaged items of each logged chunk. Truncates the file after the last complete
    line, so that the next line does not continue an incomplete one. Invalid lines are ignored; their chunks are
    decoded again.
    """
    content = read_bytes(path) if is_there(path) else b""
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        path.write_bytes(whole)
    for line in whole.splitlines():
        try:
            record = parse_json(line)
            first, damaged = record["first"], record["damaged"]
        except (ValueError, KeyError, TypeError):
            continue
        if type(first) is int and 0 <= first < items and _are_damaged(damaged, items):
            yield first, damaged


def _are_damaged(found: Any, items: int) -> bool:
    """True for a valid mapping from item number to a message of one line."""
    return isinstance(found, dict) and all(
        len(number) < MAX_DIGITS
        and number.isdecimal()
        and int(number) < items
        and isinstance(why, str)
        and len(why.splitlines()) == 1
        for number, why in found.items()
    )


def _read_index(store: Path, items: int) -> dict[str, Any] | None:
    file, fix = store / INDEX, f"delete the folder {store} and run again to rebuild it"
    if not is_there(file):
        return None
    index = read_json(file, fix)
    if isinstance(index, dict) and _are_damaged(index.get("damaged"), items):
        return index
    raise BadInput(f"{file} is damaged: {fix}")


def _write_index(store: Path, index: dict[str, Any]) -> None:
    temporary = store / f"{INDEX}.partial"
    with temporary.open("w") as file:
        json.dump(index, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(store / INDEX)
    (store / DONE).unlink(missing_ok=True)


@contextmanager
def _locked(store: Path) -> Iterator[None]:
    """Holds an exclusive lock for building. The kernel releases it when the process ends for any reason."""
    with (store / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"{store.parent.name}: another process is decoding it, waiting ...", file=sys.stderr, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
