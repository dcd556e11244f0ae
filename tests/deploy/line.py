"""A line between a SuperNode and its SuperLink on Unix sockets: all that passes is kept, and it can be cut."""

import socket
import threading
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

BLOCK = 1 << 16


@dataclass
class Call:
    """One connection: what went either way, as it was on the wire."""

    up: bytearray = field(default_factory=bytearray)  # from the node
    down: bytearray = field(default_factory=bytearray)


class Line:
    """Listens at ``path`` and passes everything on to ``target``."""

    def __init__(self, path: Path, target: Path) -> None:
        self._target = target
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self.calls: list[Call] = []
        self._sockets: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._whole = True
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Break what is connected; whoever calls is hung up on."""
        with self._lock:
            self._whole = False
            self._hang_up()

    def mend(self) -> None:
        self._whole = True

    def close(self) -> None:
        self._listener.close()
        self.cut()

    def _hang_up(self) -> None:
        for end in self._sockets:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._sockets = set()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                if not self._whole:
                    near.close()
                    continue
                far = socket.socket(socket.AF_UNIX)
                try:
                    far.connect(str(self._target))
                except OSError:
                    near.close()
                    far.close()
                    continue
                self._sockets |= {near, far}
                call = Call()
                self.calls.append(call)
            for one, other, kept in ((near, far, call.up), (far, near, call.down)):
                threading.Thread(target=self._pass_on, args=(one, other, kept), daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket, kept: bytearray) -> None:
        with suppress(OSError):
            while block := one.recv(BLOCK):
                kept += block
                other.sendall(block)
        with suppress(OSError):  # the other direction may still have something to say
            other.shutdown(socket.SHUT_WR)


def bodies(stream: bytes) -> Iterator[tuple[str, bytes]]:
    """First line and body of each HTTP message of one direction of a call; chunking and compression are undone."""
    while stream:
        head, _, rest = stream.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if fields.get("transfer-encoding") == "chunked":
            body, stream = _join_chunks(rest)
        else:
            length = int(fields.get("content-length", 0))
            body, stream = rest[:length], rest[length:]
        if fields.get("content-encoding", "identity") != "identity":
            body = zlib.decompress(body, wbits=47)  # gzip or deflate
        yield first, body


def _join_chunks(rest: bytes) -> tuple[bytes, bytes]:
    parts: list[bytes] = []
    while True:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size.partition(b";")[0], 16) if size else 0
        if not length:
            return b"".join(parts), rest.partition(b"\r\n")[2]
        parts.append(rest[:length])
        rest = rest[length + 2 :]
