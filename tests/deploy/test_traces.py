"""The tools that watch the wire see what they are there to see."""

import gzip
import socket
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.deploy.line import Line, bodies
from tests.deploy.traces import SLICE, count_found, slices, tensor_slices

NOISE = np.random.default_rng(0).integers(0, 256, 100_000, dtype=np.uint8).tobytes()


@pytest.mark.parametrize("place", [0, 1, 7, 12_345, 100_000])
def test_a_slice_is_found_wherever_it_is(place: int) -> None:
    tensor = torch.randn(100, generator=torch.Generator().manual_seed(1))
    for kind in (torch.float32, torch.float16):
        piece = tensor.to(kind)[16:32].numpy().tobytes()[:SLICE]
        assert count_found(tensor_slices([tensor]), NOISE[:place] + piece + NOISE[place:]) == 1
        assert count_found(tensor_slices([tensor]), NOISE[:place] + piece[:-1] + NOISE[place:]) == 0


def test_all_of_it_is_found_and_what_tells_nothing_is_not_looked_for() -> None:
    needles = slices(NOISE)
    assert len(needles) == 100_000 // SLICE
    assert count_found(needles, b"x" + NOISE + NOISE) == len(needles)
    assert len(slices(bytes(640), b"\x01\x02\x03\x04" * 64)) == 0


def test_bodies_are_those_that_were_sent() -> None:
    packed = gzip.compress(NOISE[:500])
    stream = b"POST /a HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello"
    stream += b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n"
    stream += b"HTTP/1.1 204 No Content\r\n\r\n"
    stream += b"POST /b HTTP/1.1\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(packed) + packed
    assert list(bodies(stream)) == [
        ("POST /a HTTP/1.1", b"hello"),
        ("HTTP/1.1 200 OK", b"abcde"),
        ("HTTP/1.1 204 No Content", b""),
        ("POST /b HTTP/1.1", NOISE[:500]),
    ]


def test_a_line_keeps_all_that_passes_and_can_be_cut_and_mended() -> None:
    place = Path(tempfile.mkdtemp())  # a path that is short enough for sockets
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(place / "server"))
    server.listen()

    def echo() -> None:
        for _ in range(2):
            near, _ = server.accept()
            while block := near.recv(1 << 16):
                near.sendall(block.upper())
            near.close()

    threading.Thread(target=echo, daemon=True).start()
    line = Line(place / "line", place / "server")

    def call(words: bytes) -> bytes:
        with suppress(ConnectionError), socket.socket(socket.AF_UNIX) as end:
            end.settimeout(10)
            end.connect(str(place / "line"))
            end.sendall(words)
            return end.recv(100)
        return b""

    assert call(b"one") == b"ONE"
    line.cut()
    assert call(b"two") == b""
    line.mend()
    assert call(b"three") == b"THREE"
    assert [(bytes(c.up), bytes(c.down)) for c in line.calls] == [(b"one", b"ONE"), (b"three", b"THREE")]
    line.close()
    server.close()
