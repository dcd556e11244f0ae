import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from asfedbridge.core.errors import BadInput
from asfedbridge.data.sources.registry import load


def arrays(**changed: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    whole = {
        "x_train": rng.integers(0, 256, (30, 12, 12, 3), dtype=np.uint8),
        "y_train": np.arange(30) % 3,
        "x_test": rng.integers(0, 256, (6, 12, 12, 3), dtype=np.uint8),
        "y_test": np.arange(6) % 3,
    } | changed
    return {key: value for key, value in whole.items() if value is not None}


def write(tmp_path: Path, **changed: Any) -> Path:
    path = tmp_path / "set.npz"
    np.savez_compressed(path, **arrays(**changed))
    return path


def check_rejected(path: Path, *words: str, image_size: int = 0) -> None:
    with pytest.raises(BadInput) as caught:
        load(f"npz:{path}", path.parent, image_size)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    for word in words:
        assert word in message


def test_arrays_become_channels_first(tmp_path: Path) -> None:
    path = write(tmp_path)
    data = load(f"npz:{path}", tmp_path)
    assert data.name == f"npz:{path}"
    assert torch.equal(data.x_train, torch.from_numpy(arrays()["x_train"].transpose(0, 3, 1, 2).copy()))
    assert data.x_train.is_contiguous()
    assert (data.y_train.dtype, data.y_train.tolist()) == (torch.int64, arrays()["y_train"].tolist())
    assert (data.classes, data.augment) == (("0", "1", "2"), "crop+flip")
    np.testing.assert_allclose(data.mean, arrays()["x_train"].mean((0, 1, 2)) / 255)


def test_grey_images_names_and_small_integer_labels(tmp_path: Path) -> None:
    changed: dict[str, Any] = {key: arrays()[key][..., 0] for key in ("x_train", "x_test")}
    changed["y_train"] = (np.arange(30) % 3).astype(np.uint8)
    data = load(f"npz:{write(tmp_path, classes=np.array(['cat', 'dog', 'owl']), **changed)}", tmp_path)
    assert (data.channels, data.classes) == (1, ("cat", "dog", "owl"))
    assert load(f"npz:{write(tmp_path, classes=np.array([b'a', b'b', b'c']))}", tmp_path).classes == ("a", "b", "c")


def test_image_size_makes_any_shape_fit(tmp_path: Path) -> None:
    wide = np.zeros((30, 100, 130, 3), np.uint8)
    data = load(f"npz:{write(tmp_path, x_train=wide)}", tmp_path, image_size=16)
    assert data.x_train.shape == (30, 3, 16, 16)
    assert data.x_test.shape == (6, 3, 16, 16)


X, Y = arrays()["x_train"], arrays()["y_train"]
NAN = np.full(X.shape, np.nan, np.float32)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"x_train": X / 255}, ["x_train", "float64", "uint8 0..255"]),
        ({"x_train": X.astype(np.int32)}, ["x_train", "int32", "uint8 0..255"]),
        ({"x_test": NAN}, ["x_test", "float32", "uint8"]),
        ({"y_train": Y.astype(np.float32)}, ["y_train", "float32", "integers"]),
        ({"y_train": np.where(Y == 0, np.nan, Y)}, ["y_train", "float64"]),
        ({"y_train": Y - 1}, ["y_train", "negative label -1"]),
        ({"y_train": Y[:, None]}, ["y_train", "(30, 1)"]),
        ({"y_train": Y[:-1]}, ["x_train has 30", "y_train has 29"]),
        ({"x_test": X[:0]}, ["x_test", "empty"]),
        ({"y_test": Y[:0]}, ["y_test", "empty"]),
        ({"x_train": X.reshape(30, -1)}, ["x_train", "(30, 432)"]),
        ({"x_train": X.transpose(0, 3, 1, 2)}, ["x_train", "channels-first"]),
        ({"x_train": X[:, :10]}, ["10x12", "not square", "image_size"]),
        ({"x_train": X[:, :7, :7], "x_test": X[:6, :7, :7]}, ["7x7", "8 to 256"]),
        ({"x_train": np.zeros((30, 257, 257, 3), np.uint8)}, ["257x257", "8 to 256"]),
        ({"x_test": X[:6, :10, :10]}, ["12 pixels", "10", "image_size"]),
        ({"x_test": X[:6, ..., 0]}, ["3 channels", "1"]),
        ({"y_test": None}, ["y_test is missing", "found: x_train, y_train, x_test"]),
        ({"y_train": np.where(Y == 1, 0, Y)}, ["class 1 of 3", "training"]),
        ({"y_test": np.zeros(6, int)}, ["class 1 of 3", "test"]),
        ({"y_train": np.where(Y == 2, 2**31 - 1, Y)}, ["class 2 of", "training"]),
        ({"y_train": np.where(Y == 2, 2**63, Y).astype(np.uint64)}, ["label 9223372036854775808"]),
        ({"classes": np.array(["a", "b"])}, ["label 2", "2 names"]),
        ({"classes": np.array(["a", "b", "c", "d"])}, ["class 3 of 4", "training"]),
        ({"classes": np.array(["a", "b", "a"])}, ["'a' twice"]),
        ({"classes": np.array([["a", "b", "c"]])}, ["classes", "(1, 3)"]),
        ({"classes": np.array(["a", "b", None], dtype=object)}, ["classes", "cannot be read"]),
        ({"y_train": Y * 0, "y_test": np.zeros(6, int)}, ["only 1 class"]),
    ],
)
def test_invalid_arrays_are_rejected(tmp_path: Path, changed: dict[str, Any], words: list[str]) -> None:
    check_rejected(write(tmp_path, **changed), *words)


def test_files_that_are_not_archives(tmp_path: Path) -> None:
    path = tmp_path / "set.npz"
    check_rejected(path, "no such file")
    check_rejected(tmp_path, "is a folder, not a file")
    for content in (b"", b"plain text", b"PK\x03\x04 and no more"):
        path.write_bytes(content)
        check_rejected(path, "not a readable npz")
    with path.open("wb") as file:
        np.save(file, X)
    check_rejected(path, "single .npy array")


def test_truncated_and_tampered_archives(tmp_path: Path) -> None:
    path = write(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    check_rejected(path, "not a readable npz")
    tampered = bytearray(whole)
    tampered[200:260] = bytes(60)
    path.write_bytes(tampered)
    check_rejected(path, "x_train", "cannot be read")


@pytest.mark.parametrize("content", [b"", b"plain text", b"\x93NUMPY\x01\x00\x02\x00{}", b"\x93NUMPY\x09\x00"])
def test_entries_that_are_not_arrays(tmp_path: Path, content: bytes) -> None:
    path = write(tmp_path)
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, entry in (entries | {"y_train.npy": content}).items():
            archive.writestr(name, entry)
    check_rejected(path, "y_train", "cannot be read")


def test_names_in_a_message_are_shortened(tmp_path: Path) -> None:
    path = tmp_path / "set.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a\x1b[2J\u2028" + "b" * 5000 + ".npy", b"")
    with pytest.raises(BadInput, match="array x_train is missing") as caught:
        load(f"npz:{path}", tmp_path)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < len(str(path)) + 400
