"""Downloads published archives (with resume), verifies their MD5 and unpacks them.

An archive that already is in the data root is used without network access.
"""

import hashlib
import os
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from asfedbridge.core.errors import BadInput, printable
from asfedbridge.core.reading import is_there, open_regular

Progress = Callable[[str, int, int | None], None]  # file name, bytes so far, total bytes if known

CHUNK = 1 << 20
MAX_MEMBER = 512 << 20  # bytes per file in an archive; CIFAR-100's training images take 155 MB
TIMEOUT = 60.0  # seconds without receiving data
RANGE_NOT_SATISFIABLE = 416


@dataclass(frozen=True)
class Archive:
    url: str
    md5: str

    @property
    def archive(self) -> str:
        """The file name."""
        return self.url.rpartition("/")[2]


def state(path: Path, expected: str) -> str:
    """Returns "good", "missing", or a description of the error."""
    if not is_there(path):
        return "missing"
    try:
        with open_regular(path) as file:
            found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    except OSError as error:
        return f"unreadable ({error.strerror})"
    return "good" if found == expected else f"damaged (md5 {found}, expected {expected})"


def make_folder(path: Path) -> None:
    with _disk(path):
        path.mkdir(parents=True, exist_ok=True)


def obtain(release: Archive, root: Path, progress: Progress) -> Path:
    """Verifies the archive in ``root`` and returns its path; downloads it if it is missing."""
    archive = root / release.archive
    if is_there(archive):
        _verify(release, archive)
        return archive
    part = archive.with_name(archive.name + ".part")
    download(release, part, archive, progress)
    _verify(release, part)
    with _disk(archive):
        os.replace(part, archive)
    return archive


def download(release: Archive, part: Path, archive: Path, progress: Progress) -> None:
    """Downloads to `part`, and resumes a previous download that was interrupted."""
    try:
        try:
            _transfer(release, part, progress)
        except HTTPError as error:
            if error.code != RANGE_NOT_SATISFIABLE:
                raise
            # The server has no bytes after the end of `part`: it is complete, or it belongs to another file.
            if state(part, release.md5) != "good":
                with _disk(part):
                    part.unlink()
                _transfer(release, part, progress)
    except (OSError, HTTPException) as error:  # not disk errors: _disk converts those to BadInput
        reason = getattr(error, "reason", None) or error
        raise BadInput(
            f"{release.url} could not be downloaded ({reason}): run again to resume; without internet access, download "
            f"it on another machine, put it at {archive} and run again"
        ) from error


def _transfer(release: Archive, part: Path, progress: Progress) -> None:
    done = part.stat().st_size if part.exists() else 0
    request = Request(release.url, headers={"Range": f"bytes={done}-"} if done else {})
    try:
        response = urlopen(request, timeout=TIMEOUT)
    except HTTPError as error:
        error.close()  # the error is also a response that keeps the connection open
        raise
    with response:
        if done and not response.headers.get("Content-Range", "").startswith(f"bytes {done}-"):
            done = 0  # the server does not support ranges and sends the whole file
        if done == 0:
            with _disk(part):
                part.write_bytes(b"")
        length = response.headers.get("Content-Length")
        total = done + int(length) if length else None
        progress(release.archive, done, total)
        while chunk := response.read(CHUNK):
            # The file is opened for each chunk, so that a full disk is detected here and not when a buffer is flushed.
            with _disk(part), part.open("ab") as file:
                file.write(chunk)
            done += len(chunk)
            progress(release.archive, done, total)
    if total is not None and done < total:
        raise ConnectionError(f"the connection ended after {done} of {total} bytes")


def extract(archive: Path, folder: Path, wanted: Mapping[str, str]) -> None:
    """Writes the wanted files (name -> MD5) to ``folder``. Members are matched by base name and MD5; their paths in the
    archive are not used."""
    missing = dict(wanted)
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                file = Path(member.name).name
                wanted_size = member.isreg() and member.size <= MAX_MEMBER
                source = tar.extractfile(member) if wanted_size and file in missing else None
                if source is None:
                    continue
                content = source.read()
                if hashlib.md5(content, usedforsecurity=False).hexdigest() == missing[file]:
                    _write(folder / file, content)
                    del missing[file]
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise BadInput(f"{archive} cannot be unpacked ({error}): delete it and fetch again") from error
    if missing:
        raise BadInput(f"{archive} contains no valid {', '.join(missing)}: delete it and fetch again")


def unzip(archive: Path, root: Path, folder: str, progress: Progress) -> None:
    """Extracts ``folder`` of the archive, without its test/, to ``root``. Existing files of the right size are kept."""
    what = f"unpacking {archive.name}"
    try:
        with zipfile.ZipFile(archive) as source:
            members = [m for m in source.infolist() if not m.is_dir() and _wanted(m.filename, folder)]
            done, total = 0, sum(m.file_size for m in members)
            for member in members:
                path = root / member.filename
                if member.file_size > MAX_MEMBER:
                    raise zipfile.BadZipFile(f"{printable(member.filename)} has {member.file_size} bytes")
                if not (path.is_file() and path.stat().st_size == member.file_size):
                    with _disk(path):
                        path.parent.mkdir(parents=True, exist_ok=True)
                    _write(path, source.read(member))  # checks the CRC
                done += member.file_size
                if done == total or done // CHUNK > (done - member.file_size) // CHUNK:
                    progress(what, done, total)
    except (zipfile.BadZipFile, EOFError, OSError, zlib.error) as error:
        raise BadInput(f"{archive} cannot be unpacked ({error}): delete it and fetch again") from error


def _wanted(name: str, folder: str) -> bool:
    parts = name.split("/")
    return len(parts) > 1 and parts[0] == folder and parts[1] != "test" and not {"", ".", ".."} & set(parts)


def _write(path: Path, content: bytes) -> None:
    part = path.with_name(path.name + ".part")
    with _disk(path):
        part.write_bytes(content)
        os.replace(part, path)


def _verify(release: Archive, path: Path) -> None:
    """Renames an archive with a wrong MD5, so that the next fetch downloads it again."""
    found = state(path, release.md5)
    if found != "good":
        aside = path.with_name(release.archive + ".bad")
        with _disk(aside):
            os.replace(path, aside)
        raise BadInput(f"{path} is {found}: moved to {aside.name}; run again to download it from {release.url}")


@contextmanager
def _disk(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BadInput(
            f"{path} cannot be written ({error.strerror or error}): free space or change data_root"
        ) from error
