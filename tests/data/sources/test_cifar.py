import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from asfedbridge.core.errors import BadInput
from asfedbridge.data.sources import cifar
from asfedbridge.data.sources.registry import check, describe, load


def test_cifar10_official_layout(tmp_path: Path, forge: Any) -> None:
    contents = forge("cifar10", tmp_path)
    data = load("cifar10", tmp_path)
    assert data.x_train.shape == (100, 3, 32, 32)
    assert data.x_test.shape == (20, 3, 32, 32)
    assert (data.x_train.dtype, data.y_train.dtype) == (torch.uint8, torch.int64)
    third = pickle.loads(contents["data_batch_3"])  # noqa: S301 - made by this test
    row = third[b"data"][5]
    assert data.y_train[45] == third[b"labels"][5]
    # An image is stored as 1024 red, 1024 green and 1024 blue values, each row by row.
    assert data.x_train[45, 1, 2, 3] == row[1024 + 2 * 32 + 3]
    assert (data.classes[3], data.augment) == ("class3", "crop+flip")
    assert data.mean == (0.4914, 0.4822, 0.4465)
    assert data.std == (0.2470, 0.2435, 0.2616)


def test_cifar100_uses_the_fine_labels(tmp_path: Path, forge: Any) -> None:
    forge("cifar100", tmp_path)
    data = load("cifar100", tmp_path, image_size=16)
    assert data.x_train.shape == (200, 3, 16, 16)
    assert data.y_train[150] == 50
    assert (len(data.classes), data.classes[99]) == (100, "class99")


def test_missing_files_explain_how_to_fetch_them(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        load("cifar10", tmp_path)
    for word in (
        str(tmp_path / "cifar-10-batches-py" / "data_batch_1"),
        "asfedbridge data fetch cifar10",
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        str(tmp_path / "cifar-10-python.tar.gz"),
    ):
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("damage", ["truncate", "tamper"])
def test_damaged_files_are_named_with_both_checksums(tmp_path: Path, forge: Any, damage: str) -> None:
    content = forge("cifar10", tmp_path)["test_batch"]
    path = tmp_path / "cifar-10-batches-py" / "test_batch"
    bad = content[:-100] if damage == "truncate" else content[:-100] + b"X" + content[-99:]
    path.write_bytes(bad)
    for look in (load, check):
        with pytest.raises(BadInput) as caught:
            look("cifar10", tmp_path)
        for word in (
            str(path),
            cifar.RELEASES["cifar10"].test["test_batch"],
            cifar.state(path, "")[13:45],
            "data fetch",
        ):
            assert word in str(caught.value)


def test_unreadable_file_is_named(tmp_path: Path, forge: Any) -> None:
    forge("cifar10", tmp_path)
    path = tmp_path / "cifar-10-batches-py" / "data_batch_2"
    path.unlink()
    path.mkdir()
    for look in (load, check):
        with pytest.raises(BadInput, match="data_batch_2"):
            look("cifar10", tmp_path)


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch exploded",)


@pytest.mark.parametrize(
    "forged",
    [
        pickle.dumps({b"data": Bomb()}, protocol=2),
        pickle.dumps({b"data": Bomb()}, protocol=5),
        b'cbuiltins\neval\n(S\'open("exploded", "w")\'\ntR.',
        b"cnumpy\nload\n(S'exploded'\ntR.",
        b"cnumpy.core.multiarray\nscalar\n.",
    ],
)
def test_malicious_pickle_is_rejected(
    tmp_path: Path, forge: Any, monkeypatch: pytest.MonkeyPatch, forged: bytes
) -> None:
    monkeypatch.chdir(tmp_path)
    forge("cifar10", tmp_path, data_batch_1=forged)  # its MD5 is valid, so only the unpickler can reject it
    with pytest.raises(BadInput, match=r"data_batch_1 is rejected \(it requests "):
        load("cifar10", tmp_path)
    assert not (tmp_path / "exploded").exists()


def test_pickles_of_python_2(tmp_path: Path, forge: Any) -> None:
    """The published files contain Python 2 strings, which Python 3 cannot write, so the pickle is built by hand."""

    def text(s: bytes) -> bytes:
        return b"T" + struct.pack("<i", len(s)) + s

    pixels = np.arange(2 * 3072, dtype=np.int64).astype(np.uint8).reshape(2, 3072)
    dtype = b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R(K\x03" + text(b"|") + b"NNNJ" + b"\xff" * 4
    dtype += b"J" + b"\xff" * 4 + b"K\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R"
    array += b"(K\x01K\x02M\x00\x0c\x86" + dtype + b"\x89" + text(pixels.tobytes()) + b"tb"
    batch = b"\x80\x02}(" + text(b"data") + array + text(b"labels") + b"](K\x06K\x09e" + b"u."
    forge("cifar10", tmp_path, test_batch=batch)
    data = load("cifar10", tmp_path)
    assert torch.equal(data.x_test.view(2, -1), torch.from_numpy(pixels))
    assert data.y_test.tolist() == [6, 9]


def test_check_lists_valid_files_or_names_all_errors(tmp_path: Path, forge: Any) -> None:
    forge("cifar10", tmp_path)
    folder = tmp_path / "cifar-10-batches-py"
    lines = check("cifar10", tmp_path)
    assert f"{folder / 'data_batch_1'}: good" in lines
    assert lines[-1] == "cifar10: 100 training and 20 test images, 3x32x32, 10 classes: good"
    assert {row[0]: row[2] for row in describe(tmp_path)}["cifar10"] == f"in {tmp_path}"
    (folder / "data_batch_4").unlink()
    (folder / "batches.meta").write_bytes(b"short")
    with pytest.raises(BadInput) as caught:
        check("cifar10", tmp_path)
    assert f"{folder / 'data_batch_4'} is missing" in str(caught.value)
    assert f"{folder / 'batches.meta'} is damaged" in str(caught.value)
