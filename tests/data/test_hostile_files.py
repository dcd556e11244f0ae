"""Malicious data files are rejected before they consume memory or time."""

import io
import os
import struct
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from asfedbridge.core.errors import BadInput
from asfedbridge.data import memory
from asfedbridge.data.dataset import MAX_PIXELS, take_per_class
from asfedbridge.data.event_formats import read_aedat2, read_nmnist
from asfedbridge.data.npz import class_names, labels
from asfedbridge.data.sources.registry import load

pytestmark = pytest.mark.timeout(120)  # a reader that opens a FIFO would block for ever
MB = 2**20
SMALL = {
    **{f"x_{half}": np.zeros((4, 8, 8), np.uint8) for half in ("train", "test")},
    **{f"y_{half}": np.arange(4) % 2 for half in ("train", "test")},
}


def header(descr: str, shape: tuple[int, ...]) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_2_0(buffer, {"descr": descr, "fortran_order": False, "shape": shape})
    return buffer.getvalue()


def write_bomb(path: Path, key: str, start: bytes, zeros: int) -> Path:
    """An archive with one array of ``zeros`` bytes, which compress to a thousandth on disk."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, array in SMALL.items():
            if name != key:
                buffer = io.BytesIO()
                np.save(buffer, array)
                archive.writestr(f"{name}.npy", buffer.getvalue())
        with archive.open(f"{key}.npy", "w", force_zip64=True) as entry:
            entry.write(start)
            for _ in range(zeros // MB):
                entry.write(bytes(MB))
    assert path.stat().st_size < zeros / 100 + 100_000
    return path


SIZE = 128 * MB


@pytest.mark.parametrize(
    ("key", "start", "words"),
    [
        ("x_train", header("<f8", (SIZE // 512, 8, 8)), "x_train is float64"),
        ("x_train", header("|u1", (SIZE // 64, 8, 8)), f"x_train has {SIZE // 64} images but y_train has 4 labels"),
        ("x_train", header("|u1", (4, SIZE // 16, 4)), f"{SIZE // 16}x4 pixels"),
        ("x_train", header("|u1", (4, 8, 8, SIZE // 256)), f"{SIZE // 256} channels"),
        ("x_train", header("|u1", (10**15, 8, 8)), "its header says"),
        ("x_train", header("|u1", (-1, 8, 8)), "its header says"),
        ("y_train", header("<i8", (SIZE // 8,)), f"but y_train has {SIZE // 8} labels"),
        ("y_train", header("<U33554432", (1,)), "its type is"),
        ("y_train", header("|O", (4,)), "Python objects"),
        ("y_train", b"\x93NUMPY\x02\x00" + struct.pack("<I", SIZE) + b"{", "valid NumPy header"),
        ("y_train", b"\x93NUMPY\x01\x00" + struct.pack("<H", 9000) + b"(" * 9000, "valid NumPy header"),
    ],
)
def test_arrays_are_rejected_before_decompression(tmp_path: Path, key: str, start: bytes, words: str) -> None:
    path = write_bomb(tmp_path / "set.npz", key, start, SIZE)
    tracemalloc.start()
    try:
        with pytest.raises(BadInput) as caught:
            load(f"npz:{path}", tmp_path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert words in str(caught.value)
    assert "pickle" not in str(caught.value)
    assert peak < 16 * MB


def test_free_memory_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < memory.free_memory() <= memory.memory()
    (tmp_path / "meminfo").write_text("MemTotal: 999 kB\nMemAvailable:       3 kB\n")
    monkeypatch.setattr(memory, "MEMINFO", str(tmp_path / "meminfo"))
    assert memory.free_memory() == 3072
    np.savez(tmp_path / "set.npz", **SMALL | {"x_train": np.zeros((4, 64, 64), np.uint8)})
    with pytest.raises(BadInput, match=r"set\.npz: .*0\.0 GB are free: close other programs, or store fewer"):
        load(f"npz:{tmp_path / 'set.npz'}", tmp_path)


def test_60_000_classes_take_linear_time(tmp_path: Path) -> None:
    count = 60_000
    y = labels("x", "y", np.arange(count))
    names = np.array([f"class {n}" for n in range(count)])
    assert len(class_names("x", names, y, y)) == count
    with pytest.raises(BadInput, match="contains 'class 7' twice"):
        class_names("x", np.array([*names[:-1], "class 7"]), y, y)
    pixels = np.zeros((2 * count, 8, 8), np.uint8)
    twice = np.arange(2 * count) % count
    np.savez(tmp_path / "set.npz", x_train=pixels, y_train=twice, x_test=pixels, y_test=twice, classes=names)
    data = take_per_class(load(f"npz:{tmp_path / 'set.npz'}", tmp_path), 1, 1)
    assert data.y_train.tolist() == list(range(count))


def write_png(path: Path, side: int) -> None:
    """A black image with one bit per pixel: 13,000 x 13,000 pixels take 20 kB."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    packer = zlib.compressobj(1)
    row = bytes(1 + (side + 7) // 8)
    pixels = b"".join(packer.compress(row) for _ in range(side)) + packer.flush()
    start = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + start + chunk(b"IDAT", pixels) + chunk(b"IEND", b""))


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    for half in ("train", "test"):
        for label in "ab":
            (tmp_path / "set" / half / label).mkdir(parents=True)
            Image.new("L", (32, 32)).save(tmp_path / "set" / half / label / "1.png")
    return tmp_path / "set"


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_folder(path: Path) -> None:
    path.mkdir()


def make_large_picture(path: Path) -> None:
    write_png(path, 13_000)


def make_loop(path: Path) -> None:
    path.symlink_to(path.name)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (make_large_picture, f"13000x13000 pixels, more than {MAX_PIXELS // 10**6} million"),
        (make_fifo, "a pipe or a device"),
        (make_folder, "is a folder"),
        (make_loop, "symbolic links"),
    ],
)
def test_files_that_are_not_images(pictures: Path, make: Callable[[Path], None], words: str) -> None:
    make(pictures / "train" / "a" / "2.png")
    with pytest.raises(BadInput) as caught:
        load(f"folder:{pictures}", pictures, 16)
    assert str(pictures / "train" / "a" / "2.png") in str(caught.value)
    assert words in str(caught.value)


def test_class_folders_that_are_links(pictures: Path) -> None:
    for half, target in (("train", "loop"), ("test", "..")):
        (pictures / half / "loop").symlink_to(target)
    with pytest.raises(BadInput, match="class 'loop' is missing"):
        load(f"folder:{pictures}", pictures, 16)
    (pictures / "train" / "loop").unlink()
    (pictures / "train" / "loop").symlink_to("..")
    with pytest.raises(BadInput, match="loop: contains no image"):
        load(f"folder:{pictures}", pictures, 16)


@pytest.mark.parametrize("read", [read_aedat2, read_nmnist])
def test_huge_recordings_and_pipes(tmp_path: Path, read: Callable[[Path], Any]) -> None:
    with (tmp_path / "recording").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(BadInput, match="recording: is larger than the limit of 64 MB"):
        read(tmp_path / "recording")
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(BadInput, match="a pipe or a device"):
        read(tmp_path / "fifo")


@pytest.mark.parametrize("make", [make_fifo, make_folder, make_loop])
def test_paths_that_are_not_archives(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "set.npz")
    with pytest.raises(BadInput, match=r"set\.npz: "):
        load(f"npz:{tmp_path / 'set.npz'}", tmp_path)
