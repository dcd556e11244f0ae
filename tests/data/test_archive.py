"""Downloads from a real HTTP server on the loopback interface."""

import gzip
import hashlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from asfedbridge.core.errors import BadInput
from asfedbridge.data.sources import cifar
from asfedbridge.data.sources.registry import check, fetch, load

Pack = Callable[..., bytes]
ARCHIVE = "cifar-10-python.tar.gz"


@dataclass
class Host:
    """The server's file, its behaviour, and the Range headers it received."""

    url: str = ""
    content: bytes = b""
    ranges: bool = True
    cut: int | None = None  # bytes after which it closes the connection
    error: int | None = None
    asked: list[str | None] = field(default_factory=list)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    monkeypatch.setenv("no_proxy", "*")
    host = Host()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            host.asked.append(wanted)
            if host.error:
                self.send_error(host.error)
                return
            start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and host.ranges else 0
            if start and start >= len(host.content):
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(host.content) - 1}/{len(host.content)}")
            self.send_header("Content-Length", str(len(host.content) - start))
            self.end_headers()
            self.wfile.write(host.content[start : host.cut])

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    host.url = f"http://127.0.0.1:{server.server_port}/{ARCHIVE}"
    yield host
    server.shutdown()
    server.server_close()
    thread.join(10)


def check_rejected(root: Path, *words: str) -> None:
    with pytest.raises(BadInput) as caught:
        fetch("cifar10", root)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_fetch_downloads_verifies_and_unpacks(tmp_path: Path, host: Host, archive: Pack) -> None:
    host.content = archive(host.url)
    seen: list[tuple[str, int, int | None]] = []
    root = tmp_path / "new" / "root"
    assert fetch("cifar10", root, lambda *args: seen.append(args)) == root / "cifar-10-batches-py"
    assert seen[0] == (ARCHIVE, 0, len(host.content))
    assert seen[-1] == (ARCHIVE, len(host.content), len(host.content))
    assert len(load("cifar10", root).y_train) == 100
    assert not list(root.rglob("*.part"))
    fetch("cifar10", root)
    assert len(host.asked) == 1, "nothing is downloaded twice"


def test_interrupted_download_is_resumed(tmp_path: Path, host: Host, archive: Pack) -> None:
    host.content = archive(host.url)
    host.cut = 1000
    check_rejected(
        tmp_path, host.url, f"1000 of {len(host.content)} bytes", "run again to resume", str(tmp_path / ARCHIVE)
    )
    assert (tmp_path / f"{ARCHIVE}.part").read_bytes() == host.content[:1000]
    host.cut = None
    seen: list[int] = []
    fetch("cifar10", tmp_path, lambda name, done, total: seen.append(done))
    assert host.asked == [None, "bytes=1000-"]
    assert (seen[0], seen[-1]) == (1000, len(host.content))
    check("cifar10", tmp_path)


def test_server_without_ranges_restarts_the_download(tmp_path: Path, host: Host, archive: Pack) -> None:
    host.content = archive(host.url)
    host.ranges = False
    (tmp_path / f"{ARCHIVE}.part").write_bytes(b"z" * 1000)
    fetch("cifar10", tmp_path)
    assert host.asked == ["bytes=1000-"]
    assert (tmp_path / ARCHIVE).read_bytes() == host.content


def test_complete_part_is_used(tmp_path: Path, host: Host, archive: Pack) -> None:
    host.content = archive(host.url)
    (tmp_path / f"{ARCHIVE}.part").write_bytes(host.content)
    fetch("cifar10", tmp_path)
    assert host.asked == [f"bytes={len(host.content)}-"]
    check("cifar10", tmp_path)


def test_part_longer_than_the_archive_is_deleted(tmp_path: Path, host: Host, archive: Pack) -> None:
    host.content = archive(host.url)
    (tmp_path / f"{ARCHIVE}.part").write_bytes(host.content + b"more")
    fetch("cifar10", tmp_path)
    assert host.asked == [f"bytes={len(host.content) + 4}-", None]
    check("cifar10", tmp_path)


def test_download_with_wrong_md5_is_renamed(tmp_path: Path, host: Host, archive: Pack) -> None:
    good = archive(host.url)
    host.content = good[:-1] + b"X"
    check_rejected(tmp_path, ARCHIVE, "damaged", cifar.RELEASES["cifar10"].md5, f"{ARCHIVE}.bad", "run again")
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == [f"{ARCHIVE}.bad"]
    host.content = good
    fetch("cifar10", tmp_path)
    assert host.asked == [None, None]


def test_existing_archive_with_wrong_md5_is_renamed(tmp_path: Path, host: Host, archive: Pack) -> None:
    archive(host.url)
    (tmp_path / ARCHIVE).write_bytes(b"a login page")
    check_rejected(tmp_path, str(tmp_path / ARCHIVE), "damaged", f"{ARCHIVE}.bad", host.url)
    assert (tmp_path / f"{ARCHIVE}.bad").read_bytes() == b"a login page"
    assert host.asked == []


def test_existing_archive_needs_no_network(tmp_path: Path, archive: Pack) -> None:
    (tmp_path / ARCHIVE).write_bytes(archive(f"http://127.0.0.1:1/{ARCHIVE}"))
    fetch("cifar10", tmp_path)
    check("cifar10", tmp_path)
    broken = tmp_path / "cifar-10-batches-py" / "data_batch_5"
    kept = tmp_path / "cifar-10-batches-py" / "data_batch_4"
    before = kept.stat().st_mtime_ns
    broken.write_bytes(b"short")
    fetch("cifar10", tmp_path)
    check("cifar10", tmp_path)
    assert kept.stat().st_mtime_ns == before, "valid files are not written again"


def test_network_error_explains_the_manual_download(
    tmp_path: Path, archive: Pack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "*")
    url = f"http://127.0.0.1:1/{ARCHIVE}"
    archive(url)
    (tmp_path / f"{ARCHIVE}.part").write_bytes(b"kept")
    check_rejected(
        tmp_path, url, "refused", "without internet access, download it", str(tmp_path / ARCHIVE), "run again"
    )
    assert (tmp_path / f"{ARCHIVE}.part").read_bytes() == b"kept"


def test_http_errors_are_reported(tmp_path: Path, host: Host, archive: Pack) -> None:
    archive(host.url)
    for host.error in (404, 416, 503):  # 416 is sent twice: with the part, then without it
        (tmp_path / f"{ARCHIVE}.part").write_bytes(b"begun")
        check_rejected(tmp_path, host.url, str(tmp_path / ARCHIVE), "could not be downloaded")


def test_resumed_part_of_another_file_is_renamed(tmp_path: Path, host: Host, archive: Pack) -> None:
    host.content = archive(host.url)
    (tmp_path / f"{ARCHIVE}.part").write_bytes(b"z" * 1000)
    check_rejected(tmp_path, "damaged", f"{ARCHIVE}.bad")
    fetch("cifar10", tmp_path)
    check("cifar10", tmp_path)


def test_paths_in_the_archive_are_not_used(tmp_path: Path, host: Host, archive: Pack) -> None:
    evil = {"../evil": b"1", "/evil": b"2", "../../data_batch_1": b"3", "cifar-10-batches-py/readme.html": b"4"}
    host.content = archive(host.url, extra=evil)
    root = tmp_path / "a" / "b"
    folder = fetch("cifar10", root)
    assert {p.name for p in folder.iterdir()} == set(cifar.RELEASES["cifar10"].files)
    assert {p.name for p in tmp_path.rglob("*") if p.is_file()} == {ARCHIVE, *cifar.RELEASES["cifar10"].files}
    check("cifar10", root)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"not a tar at all", "cannot be unpacked"),
        (b"", "cannot be unpacked"),
        (gzip.compress(bytes(10240), mtime=0), "contains no valid data_batch_1, "),
    ],
    ids=["text", "nothing", "empty"],
)
def test_archive_without_the_files_is_rejected(
    tmp_path: Path, forge: Callable[..., object], monkeypatch: pytest.MonkeyPatch, content: bytes, problem: str
) -> None:
    forge("cifar10")
    release = replace(cifar.RELEASES["cifar10"], md5=hashlib.md5(content).hexdigest())
    monkeypatch.setitem(cifar.RELEASES, "cifar10", release)
    (tmp_path / ARCHIVE).write_bytes(content)
    check_rejected(tmp_path, str(tmp_path / ARCHIVE), problem)


def test_disk_errors_name_the_path(tmp_path: Path, host: Host, archive: Pack) -> None:
    host.content = archive(host.url)
    blocked = tmp_path / "file"
    blocked.write_text("")
    check_rejected(blocked, str(blocked), "Not a directory", "data_root")
    (tmp_path / f"{ARCHIVE}.part").mkdir()
    check_rejected(tmp_path, str(tmp_path / f"{ARCHIVE}.part"), "Is a directory")


@pytest.mark.parametrize("name", ["digits", "cifar", "npz:x"])
def test_only_published_sets_can_be_fetched(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInput, match=f"data '{name}' cannot be fetched: choose from cifar10, cifar100"):
        fetch(name, tmp_path)
