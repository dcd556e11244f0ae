"""Published archives: downloaded (resumably), verified by MD5, unpacked.

An archive that was put into the data root by hand is used as it is, without a network.
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

from asfedbridge.core.errors import BadInput

Progress = Callable[[str, int, int | None], None]  # file name, bytes so far, bytes in all if known

CHUNK = 1 << 20
TIMEOUT = 60.0  # seconds without a byte
RANGE_NOT_SATISFIABLE = 416


@dataclass(frozen=True)
class Archive:
    url: str
    md5: str

    @property
    def archive(self) -> str:
        """Its file name."""
        return self.url.rpartition("/")[2]


def state(path: Path, expected: str) -> str:
    """ "good", "missing", or what is wrong with the file."""
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    except FileNotFoundError:
        return "missing"
    except OSError as error:
        return f"unreadable ({error.strerror})"
    return "good" if found == expected else f"damaged (md5 {found}, expected {expected})"


def make_folder(path: Path) -> None:
    with _disk(path):
        path.mkdir(parents=True, exist_ok=True)


def obtain(release: Archive, root: Path, progress: Progress) -> Path:
    """The archive in ``root``, verified, downloaded if it is not there."""
    archive = root / release.archive
    if archive.exists():
        _verify(release, archive)
        return archive
    part = archive.with_name(archive.name + ".part")
    download(release, part, archive, progress)
    _verify(release, part)
    with _disk(archive):
        os.replace(part, archive)
    return archive


def download(release: Archive, part: Path, archive: Path, progress: Progress) -> None:
    """Append to `part` until it is the whole archive; a broken connection leaves it to be resumed."""
    try:
        try:
            _transfer(release, part, progress)
        except HTTPError as error:
            if error.code != RANGE_NOT_SATISFIABLE:
                raise
            # Nothing lies beyond our last byte: the part is complete, or it is of something else.
            if state(part, release.md5) != "good":
                with _disk(part):
                    part.unlink()
                _transfer(release, part, progress)
    except (OSError, HTTPException) as error:  # disk errors never get here: _disk has turned them into BadInput
        reason = getattr(error, "reason", None) or error
        raise BadInput(
            f"{release.url} could not be downloaded ({reason}): run again to resume; without internet download it "
            f"elsewhere, put it at {archive} and run again"
        ) from error


def _transfer(release: Archive, part: Path, progress: Progress) -> None:
    done = part.stat().st_size if part.exists() else 0
    request = Request(release.url, headers={"Range": f"bytes={done}-"} if done else {})
    try:
        response = urlopen(request, timeout=TIMEOUT)
    except HTTPError as error:
        error.close()  # it is a response too, and holds the connection
        raise
    with response:
        if done and not response.headers.get("Content-Range", "").startswith(f"bytes {done}-"):
            done = 0  # the server sends the file from its start
        if done == 0:
            with _disk(part):
                part.write_bytes(b"")
        length = response.headers.get("Content-Length")
        total = done + int(length) if length else None
        progress(release.archive, done, total)
        while chunk := response.read(CHUNK):
            # Opened anew for each chunk, so that a full disk shows here and not when some buffer is closed.
            with _disk(part), part.open("ab") as file:
                file.write(chunk)
            done += len(chunk)
            progress(release.archive, done, total)
    if total is not None and done < total:
        raise ConnectionError(f"the connection ended after {done} of {total} bytes")


def extract(archive: Path, folder: Path, wanted: Mapping[str, str]) -> None:
    """Write the wanted files (name -> MD5), found by base name and MD5; no path out of the archive is ever used."""
    missing = dict(wanted)
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                file = Path(member.name).name
                source = tar.extractfile(member) if member.isreg() and file in missing else None
                if source is None:
                    continue
                content = source.read()
                if hashlib.md5(content, usedforsecurity=False).hexdigest() == missing[file]:
                    _write(folder / file, content)
                    del missing[file]
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise BadInput(f"{archive} cannot be unpacked ({error}): delete it and fetch again") from error
    if missing:
        raise BadInput(f"{archive} holds no good {', '.join(missing)}: delete it and fetch again")


def unzip(archive: Path, root: Path, folder: str, progress: Progress) -> None:
    """Write what lies in ``folder`` of the archive, but not in its test/; files that are there already are kept."""
    what = f"unpacking {archive.name}"
    try:
        with zipfile.ZipFile(archive) as source:
            members = [m for m in source.infolist() if not m.is_dir() and _wanted(m.filename, folder)]
            done, total = 0, sum(m.file_size for m in members)
            for member in members:
                path = root / member.filename
                if not (path.is_file() and path.stat().st_size == member.file_size):
                    with _disk(path):
                        path.parent.mkdir(parents=True, exist_ok=True)
                    _write(path, source.read(member))  # which checks its CRC
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
    """Move a wrong archive aside, so that the next fetch starts afresh."""
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
            f"{path} cannot be written ({error.strerror or error}): free space or change --data-root"
        ) from error
