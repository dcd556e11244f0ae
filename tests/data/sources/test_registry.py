from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from asfedbridge.core.errors import BadInput
from asfedbridge.data.sources.registry import SOURCES, check, data_root, describe, load


def test_digits_are_split_80_20_in_every_class(tmp_path: Path) -> None:
    data = load("digits", tmp_path)
    assert (data.channels, data.height, data.width, data.augment) == (1, 8, 8, "crop")
    assert len(data.classes) == 10
    train, test = torch.bincount(data.y_train), torch.bincount(data.y_test)
    assert (train + test).tolist() == np.bincount(load_digits().target).tolist()
    assert ((test / (train + test) - 0.2).abs() < 0.005).all()


def test_digits_hold_every_image_once(tmp_path: Path) -> None:
    data = load("digits", tmp_path)
    ours = torch.cat([data.x_train, data.x_test]).flatten(1).numpy()
    theirs = np.rint(load_digits().data * 255 / 16).astype(np.uint8)
    assert sorted(map(bytes, ours)) == sorted(map(bytes, theirs))
    assert ours.max() == 255


def test_digits_never_change(tmp_path: Path) -> None:
    assert load("digits", tmp_path).fingerprint() == (
        "ff5a32a9630fa296c4c297e96c5881030286d7b4e5cf7261956edac7b053365f"
    )


def test_image_size_resizes_and_is_checked(tmp_path: Path) -> None:
    assert load("digits", tmp_path, image_size=16).x_test.shape == (359, 1, 16, 16)
    with pytest.raises(BadInput, match="image_size=4"):
        load("digits", tmp_path, image_size=4)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("cifar-10", "did you mean cifar10?"),
        ("CIFAR100", "did you mean cifar100?"),
        ("digit", "did you mean digits?"),
        ("npz", "did you mean npz:PATH?"),
        ("npz:", "did you mean npz:PATH?"),
        ("foldr:x", "did you mean folder:PATH?"),
        ("tiny_imagenet", "did you mean tiny-imagenet?"),
        ("", "choose from digits"),
    ],
)
def test_unknown_names_get_the_nearest_and_the_list(tmp_path: Path, name: str, hint: str) -> None:
    with pytest.raises(BadInput) as caught:
        load(name, tmp_path)
    message = str(caught.value)
    assert repr(name) in message
    assert hint in message
    assert all(source in message for source in SOURCES)


def test_the_data_root_is_the_given_or_the_environments_or_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.delenv("ASFEDBRIDGE_DATA", raising=False)
    assert data_root(None) == tmp_path / ".cache" / "asfedbridge"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert data_root(None) == tmp_path / "xdg" / "asfedbridge"
    monkeypatch.setenv("ASFEDBRIDGE_DATA", str(tmp_path / "env"))
    assert data_root("") == tmp_path / "env"
    assert data_root("~/given") == tmp_path / "given"


def test_check_reports_counts(tmp_path: Path) -> None:
    assert check("digits", tmp_path) == ["digits: 1438 training and 359 test images, 1x8x8, 10 classes: good"]
    with pytest.raises(BadInput, match="no such file"):
        check(f"npz:{tmp_path / 'x.npz'}", tmp_path)


def test_describe_lists_every_source(tmp_path: Path) -> None:
    rows = describe(tmp_path)
    assert [row[0] for row in rows] == list(SOURCES)
    assert {name: origin for name, _, origin in rows}["cifar10"] == "asfedbridge data fetch cifar10"
    assert describe() == rows
