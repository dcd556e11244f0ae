"""Reads NumPy archives from untrusted sources. The type and size of an array are checked before it is decompressed.

Nothing in the file is unpickled.
"""

import io
import math
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from asfedbridge.core.errors import BadInput, brief, one_line
from asfedbridge.core.reading import open_regular
from asfedbridge.data.memory import check_bytes

MAGIC = b"\x93NUMPY"
MAX_HEADER = 10_000  # bytes; NumPy's limit
MAX_NAME = 1000  # characters per entry of a string array
READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


@dataclass(frozen=True)
class NpzArchive:
    """An open archive that contains the required arrays, all of which fit into memory."""

    path: Path
    declared: dict[str, np.ndarray]  # type and shape of each array, without values or memory; read-only
    source: zipfile.ZipFile

    def read(self, key: str) -> np.ndarray:
        try:
            with self.source.open(f"{key}.npy") as stream:
                return np.lib.format.read_array(stream, allow_pickle=False)
        except Exception as error:  # zipfile and NumPy raise many types of errors for damaged files
            raise _unreadable(self.path, key, brief(error)) from error

    def read_all(self) -> dict[str, np.ndarray]:
        return {key: self.read(key) for key in self.declared}


@contextmanager
def open_npz(path: Path, keys: Sequence[str], optional: Sequence[str] = ()) -> Iterator[NpzArchive]:
    """Opens an archive with the required ``keys`` and those of ``optional`` that it contains."""
    with open_regular(path, "give npz:PATH of an archive written by numpy.savez") as file:
        if file.read(len(MAGIC)) == MAGIC:
            raise BadInput(f"{path}: is a single .npy array: store {', '.join(keys)} with numpy.savez")
        with _open_zip(path, file) as source:
            names = {name.removesuffix(".npy") for name in source.namelist()}
            for key in keys:
                if key not in names:
                    found = one_line(", ".join(name.removesuffix(".npy") for name in source.namelist()), 200)
                    message = f"array {key} is missing (found: {found or 'nothing'}): store {', '.join(keys)}"
                    raise BadInput(f"{path}: {message}")
            declared = {key: _declared(path, source, key) for key in (*keys, *optional) if key in names}
            check_bytes(str(path), sum(array.nbytes for array in declared.values()), "store fewer examples")
            yield NpzArchive(path, declared, source)


def npz_names(path: Path) -> set[str]:
    """Names of the arrays in an archive; empty if the file is not an archive."""
    try:
        with open_regular(path) as file, _open_zip(path, file) as source:
            return {name.removesuffix(".npy") for name in source.namelist()}
    except BadInput:
        return set()


def _open_zip(path: Path, file: io.BufferedReader) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(file)
    except Exception as error:
        raise BadInput(f"{path}: not a readable npz archive ({brief(error)}): copy or write it again") from error


def _declared(path: Path, source: zipfile.ZipFile, key: str) -> np.ndarray:
    """Reads the header of an array and checks it against the size of its entry."""
    try:
        entry = source.getinfo(f"{key}.npy")
        with source.open(entry) as stream:
            start = io.BytesIO(stream.read(MAX_HEADER + 16))
    except Exception as error:
        raise _unreadable(path, key, brief(error)) from error
    try:
        shape, _, dtype = READERS[np.lib.format.read_magic(start)](start)
    except Exception as error:  # NumPy's message would advise allow_pickle=True
        raise _unreadable(path, key, "it has no valid NumPy header") from error
    if dtype.hasobject:
        raise _unreadable(path, key, "it holds Python objects, which are never loaded")
    if dtype.kind not in "biufSU" or dtype.itemsize > 4 * MAX_NAME:
        raise _unreadable(path, key, f"its type is {one_line(str(dtype), 40)}")
    size = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or start.tell() + size != entry.file_size:
        raise _unreadable(path, key, f"its header says {one_line(str(shape), 60)}, but it has {entry.file_size} bytes")
    return np.broadcast_to(np.zeros((), dtype), shape)


def _unreadable(path: Path, key: str, why: str) -> BadInput:
    return BadInput(f"{path}: array {key} cannot be read ({why}): write the file again")
