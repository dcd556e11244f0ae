"""A disk that fails, or loses power: it takes the place of ``os`` in engines/files.py, which makes every change of a
run folder.

Every change is a step: a file is created, written, flushed, renamed, linked or removed, a folder is made, flushed or
removed. One of the steps may fail. Before every step and after the last, ``Disk`` notes what a power cut could leave:
what was flushed is there, and of the rest what `SURVIVORS` says. POSIX promises no more: the content of a file lasts
when the file is flushed, its name when the folder is.
"""

import errno
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asfedbridge.engines import files

Tree = dict[str, bytes | None]  # by path: the content of a file, None of a folder


@dataclass(eq=False)
class File:
    content: bytes = b""
    flushed: bytes = b""


@dataclass(eq=False)
class Folder:
    names: "dict[str, File | Folder]" = field(default_factory=dict)
    flushed: "dict[str, File | Folder]" = field(default_factory=dict)
    pending: "list[dict[str, File | Folder | None]]" = field(default_factory=list)  # changes since the last flush

    def change(self, **names: "File | Folder | None") -> None:
        """All of them or none survives."""
        self.pending.append(names)
        self.names = changed(self.names, names)


SIDE_BY_SIDE = files.side_by_side
Names = Callable[[Folder], dict[str, File | Folder]]


def changed(names: dict[str, File | Folder], change: "dict[str, File | Folder | None]") -> dict[str, File | Folder]:
    return {name: one for name, one in (names | change).items() if one is not None}


def some(removals: bool) -> Names:
    """Of the changes that were not flushed, only those that remove a name survive, or only the others."""

    def choose(folder: Folder) -> dict[str, File | Folder]:
        names = folder.flushed
        for change in folder.pending:
            if all(one is None for one in change.values()) == removals:
                names = changed(names, change)
        return names

    return choose


def zeros(file: File) -> bytes:
    """The size survived, the data did not."""
    return file.flushed + bytes(len(file.content) - len(file.flushed))


def half(file: File) -> bytes:
    """A part of the data survived, in the middle of something."""
    return file.content[: (len(file.flushed) + len(file.content) + 1) // 2]


FLUSHED: Names = lambda folder: folder.flushed  # noqa: E731
ALL: Names = lambda folder: folder.names  # noqa: E731
SURVIVORS: dict[str, tuple[Names, Callable[[File], bytes]]] = {
    "nothing that was not flushed": (FLUSHED, lambda file: file.flushed),
    "everything, as after kill -9": (ALL, lambda file: file.content),
    "names but no data": (ALL, lambda file: file.flushed),
    "names and sizes but no data": (ALL, zeros),
    "names and half of the data": (ALL, half),
    "data but no names": (FLUSHED, lambda file: file.content),
    "removals only": (some(removals=True), lambda file: file.flushed),
    "all but removals": (some(removals=False), lambda file: file.flushed),
    "all data, and names but for removals": (some(removals=False), lambda file: file.content),
}


def flatten(folder: Folder, names: Names, data: Callable[[File], bytes], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, one in names(folder).items():
        if isinstance(one, File):
            yield prefix + name, data(one)
        else:
            yield prefix + name, None
            yield from flatten(one, names, data, f"{prefix}{name}/")


class Disk:
    """What is below ``root`` when it begins is on the disk for good. ``fail_at``: this step fails with ``error``."""

    def __init__(self, root: Path, fail_at: int = 0, error: int = errno.EIO, cuts: bool = True) -> None:
        self.root, self.fail_at, self.error, self.cuts = root, fail_at, error, cuts
        self.top = self._load(root)
        self.steps: list[str] = []
        self.left: dict[str, tuple[Tree, int, str]] = {}  # what power cuts leave, with `reached` and how, by checksum
        self.considered = 0
        self.reached = 0  # a number that the test counts up: what is promised to be there
        self._handles: dict[int, File | Folder] = {}

    def __enter__(self) -> "Disk":
        files.os, files.side_by_side = self, self.side_by_side  # type: ignore[assignment]
        return self

    def __exit__(self, *_: object) -> None:
        files.os, files.side_by_side = os, SIDE_BY_SIDE
        self._cut()

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: Path, flags: int, mode: int = 0o777) -> int:
        there = self._find(path)
        if flags & os.O_CREAT and not os.path.lexists(path):
            self._step("create", path)
            handle = os.open(path, flags, mode)
            there = File()
            self._parent(path).change(**{Path(path).name: there})
        else:
            handle = os.open(path, flags, mode)
        self._handles.pop(handle, None)
        if there is not None:
            self._handles[handle] = there
        return handle

    def write(self, handle: int, content: bytes) -> int:
        file = self._handles[handle]
        assert isinstance(file, File)
        self._step("write", handle)
        written = os.write(handle, content)
        file.content += bytes(content[:written])
        return written

    def fsync(self, handle: int) -> None:
        """Of a file or a folder. The real one is left out: it takes long, and nobody cuts the power here."""
        self._step("fsync", handle)
        if (one := self._handles.get(handle)) is not None:
            self._flush(one)

    def _flush(self, one: File | Folder) -> None:
        if isinstance(one, File):
            one.flushed = one.content
        else:
            one.flushed, one.pending = one.names, []

    def side_by_side(self, work: Callable[[Path], None], paths: Sequence[Path]) -> None:
        """What is flushed at the same time is flushed in any order: each one may be the only one that was."""
        for one in filter(None, map(self._find, paths)):
            before = copy(one)
            self._flush(one)
            self._cut()
            vars(one).update(vars(before))
        for path in paths:
            work(path)

    def mkdir(self, path: Path, mode: int = 0o777) -> None:
        if os.path.lexists(path):
            os.mkdir(path, mode)  # raises
        self._step("mkdir", path)
        os.mkdir(path, mode)
        self._parent(path).change(**{Path(path).name: Folder()})

    def rename(self, path: Path, to: Path) -> None:
        self._step("rename", path)
        os.rename(path, to)
        one = self._find(path)
        assert Path(path).parent == Path(to).parent
        self._parent(path).change(**{Path(path).name: None, Path(to).name: one})

    replace = rename

    def link(self, path: Path, other: Path) -> None:
        self._step("link", other)
        os.link(path, other)
        self._parent(other).change(**{Path(other).name: self._find(path)})

    def unlink(self, path: Path) -> None:
        self._step("unlink", path)
        os.unlink(path)
        self._parent(path).change(**{Path(path).name: None})

    def rmdir(self, path: Path) -> None:
        if not os.path.isdir(path) or os.listdir(path):
            os.rmdir(path)  # raises
        self._step("rmdir", path)
        os.rmdir(path)
        self._parent(path).change(**{Path(path).name: None})

    def _step(self, what: str, where: Any) -> None:
        self._cut()
        self.steps.append(what)
        if len(self.steps) == self.fail_at:
            name = str(where) if isinstance(where, Path) else None
            raise OSError(self.error, os.strerror(self.error), *([name] if name else []))

    def _cut(self) -> None:
        if not self.cuts:
            return
        for how, (names, data) in SURVIVORS.items():
            self.considered += 1
            tree = dict(sorted(flatten(self.top, names, data)))
            mark = hashlib.sha256(repr([(n, c and hashlib.sha256(c).digest()) for n, c in tree.items()]).encode())
            known = self.left.get(mark.hexdigest())
            if known is None or known[1] < self.reached:  # the same folder, of which more is asked
                self.left[mark.hexdigest()] = (tree, self.reached, f"step {len(self.steps)}: {how}")

    def _find(self, path: Path) -> Any:
        found: Any = self.top
        try:
            for name in Path(path).relative_to(self.root).parts:
                found = found.names[name]
        except (ValueError, KeyError):
            return None
        return found

    def _parent(self, path: Path) -> Folder:
        found = self._find(Path(path).parent)
        assert isinstance(found, Folder), path
        return found

    def _load(self, path: Path) -> Any:
        if path.is_file():
            content = path.read_bytes()
            return File(content, content)
        names = {one.name: self._load(one) for one in path.iterdir()}
        return Folder(names, names)


def restore(tree: Tree, root: Path) -> None:
    """A folder as a power cut left it."""
    root.mkdir()
    for name, content in tree.items():
        if content is None:
            (root / name).mkdir()
        else:
            (root / name).write_bytes(content)
