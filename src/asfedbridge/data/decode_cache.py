"""A store of decoded examples: what takes long to decode is decoded once, on all cores, and memory-mapped after that.

    folder/rows.npy     every item's array, in the order of the items; zeros where one is damaged
    folder/done.jsonl   while it is built: one line for each chunk of items that is on the disk
    folder/index.json   when it is whole: what it was made from, and which items are damaged

A build that was stopped, by Ctrl-C or by a power cut, goes on after its last chunk. One that finds another at work
waits for it.
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
from asfedbridge.data.process_pool import spread_over_processes

Decode = Callable[[str], np.ndarray]
Progress = Callable[[str, int, int], None]  # what, items done, items in all

CHUNK = 64  # items decoded, flushed and noted together
ROWS, DONE, INDEX = "rows.npy", "done.jsonl", "index.json"


@dataclass(frozen=True)
class Decoded:
    rows: np.ndarray  # [N, *shape], mapped copy-on-write: the file never changes
    damaged: dict[int, str]  # number of the item -> what is wrong with it; empty unless damaged items may be skipped

    @property
    def kept(self) -> np.ndarray:
        """Numbers of the good items."""
        return np.setdiff1d(np.arange(len(self.rows)), np.fromiter(self.damaged, np.int64, len(self.damaged)))


@dataclass(frozen=True)
class Layout:
    """Where an item's array stands in rows.npy, which is written as a plain file: a full disk is then an error that
    can be told, and not a signal that kills."""

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
        """Of the right size and kind; the rows have no checksum."""
        if not self.path.is_file() or self.path.stat().st_size != len(self.header) + self.count * self.row_bytes:
            return False
        with self.path.open("rb") as file:
            return file.read(len(self.header)) == self.header


def print_progress(what: str, done: int, total: int) -> None:
    """Progress on stderr: a moving line on a terminal, a line for each tenth elsewhere."""
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
    """``decode(item)`` for all items, from the store in a subfolder of ``folder``, which is built if it is not there.

    ``decode`` must be importable by name (a function at the top of a module, or a ``partial`` of one), give an array
    of ``shape`` and ``dtype``, and raise BadInput, naming the item in one line, for one that is damaged: that stops
    the build unless ``skip_damaged``. ``made_from`` is all that the arrays depend on, as JSON: another source, or
    another parameter, is another store. ``workers`` 0: one process for each core.
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
                index = _read_index(store, len(items))  # another process may have built it meanwhile
                if index is None or not layout.whole():
                    damaged = _build(layout, items, decode, skip_damaged, workers, progress)
                    index = {"made_from": plain, "damaged": {str(n): why for n, why in sorted(damaged.items())}}
                    _write_index(store, index)
    except OSError as error:
        raise BadInput(
            f"{store} cannot be written ({error.strerror or error}): free space or change --data-root"
        ) from error
    damaged = {int(number): why for number, why in index["damaged"].items()}
    if damaged and not skip_damaged:
        raise refusal(next(iter(damaged.values())), len(damaged))
    return Decoded(np.load(layout.path, mmap_mode="c", allow_pickle=False), damaged)


def refusal(why: str, count: int = 1) -> BadInput:
    others = f" ({count} damaged in all)" if count > 1 else ""
    return BadInput(f"{why}{others}; to go on without what is damaged, set skip_damaged=true")


def stamp(files: Sequence[Path]) -> str:
    """The state of files on disk, in a few bytes: their names, sizes and times of change."""
    digest = hashlib.sha256()
    for file in files:
        found = file.stat()
        digest.update(f"{file.parent.name}/{file.name}\0{found.st_size}\0{found.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _build(
    layout: Layout, items: Sequence[str], decode: Decode, skip_damaged: bool, workers: int, progress: Progress
) -> dict[int, str]:
    """Decode all chunks that are not on the disk yet; the damaged items by number."""
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
            # Only now, when the rows are on the disk: what is noted here is never looked at again.
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
    """First item and damaged items of each chunk. Whole lines only; one that a crash cut off is cut off the file too,
    so that the next does not continue it. A line that says something else is passed over: its chunk is decoded again.
    """
    content = path.read_bytes() if path.exists() else b""
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        path.write_bytes(whole)
    for line in whole.splitlines():
        try:
            record = json.loads(line)
            first, damaged = record["first"], record["damaged"]
        except (ValueError, KeyError, TypeError):
            continue
        if type(first) is int and 0 <= first < items and _are_damaged(damaged, items):
            yield first, damaged


def _are_damaged(found: Any, items: int) -> bool:
    """Whether it says what is wrong with which items."""
    return isinstance(found, dict) and all(
        number.isdecimal() and int(number) < items and isinstance(why, str) and len(why.splitlines()) == 1
        for number, why in found.items()
    )


def _read_index(store: Path, items: int) -> dict[str, Any] | None:
    try:
        index = dict(json.loads((store / INDEX).read_text()))
        if _are_damaged(index.get("damaged"), items):
            return index
    except FileNotFoundError:
        return None
    except (ValueError, TypeError):
        pass
    raise BadInput(f"{store / INDEX} is damaged: delete the folder {store}, it is made again")


def _write_index(store: Path, index: dict[str, Any]) -> None:
    beside = store / f"{INDEX}.partial"
    with beside.open("w") as file:
        json.dump(index, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(store / INDEX)
    (store / DONE).unlink(missing_ok=True)


@contextmanager
def _locked(store: Path) -> Iterator[None]:
    """One builder at a time; the lock goes with its process, however that ends."""
    with (store / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"{store.parent.name}: another process is decoding it, waiting ...", file=sys.stderr, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
