import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from asfedbridge.cli import main
from asfedbridge.core.errors import BadInput
from asfedbridge.data.image_folder import read_pixels, write_images
from asfedbridge.data.sources.registry import load

Size = tuple[int, int]


def save(path: Path, seed: int, size: Size = (10, 10), mode: str = "RGB") -> np.ndarray:
    shape = (size[1], size[0], 3) if mode == "RGB" else (size[1], size[0])
    pixels = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return pixels


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "set"
    for half, count in (("train", 3), ("test", 1)):
        for label in ("zebra", "ant"):
            for i in range(count):
                save(root / half / label / f"{i}.png", seed=i)
    return root


def check_rejected(root: Path, named: Path, *words: str) -> None:
    with pytest.raises(BadInput) as caught:
        load(f"folder:{root}", root)
    message = str(caught.value)
    assert "\n" not in message
    assert str(named) in message
    for word in words:
        assert word in message


def test_images_are_sorted_by_class(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pixels = save(root / "train" / "zebra" / "9.BMP", seed=77)
    (root / "train" / "ant" / ".hidden.png").write_text("no image")
    (root / "train" / "ant" / "notes.txt").write_text("no image")
    (root / "train" / ".cache").mkdir()
    data = load(f"folder:{root}", root)
    assert (data.classes, data.augment, data.channels) == (("ant", "zebra"), "crop+flip", 3)
    assert data.y_train.tolist() == [0, 0, 0, 1, 1, 1, 1]
    assert data.y_test.tolist() == [0, 1]
    assert torch.equal(data.x_train[6], torch.from_numpy(pixels).permute(2, 0, 1))
    assert capsys.readouterr().out == ""


def test_classes_are_sorted(tmp_path: Path) -> None:
    for half in ("train", "test"):
        for label in "gcahbfde":
            save(tmp_path / half / label / "0.png", seed=1)
    assert load(f"folder:{tmp_path}", tmp_path).classes == tuple("abcdefgh")


def test_grey_only_if_all_images_are_grey(root: Path) -> None:
    for file in list(root.rglob("*.png")):
        save(file, seed=1, mode="L")
    assert load(f"folder:{root}", root).channels == 1
    save(root / "test" / "ant" / "0.png", seed=1)
    assert load(f"folder:{root}", root).channels == 3


def test_unequal_sizes_need_image_size(root: Path) -> None:
    odd = root / "train" / "zebra" / "1.png"
    save(odd, seed=1, size=(12, 12))
    check_rejected(root, odd, "12 pixels", "10", "image_size=N")
    save(odd, seed=1, size=(300, 200))
    check_rejected(root, odd, "200x300", "not square", "image_size=N")
    assert load(f"folder:{root}", root, image_size=16).x_train.shape == (6, 3, 16, 16)


def test_size_limits(root: Path) -> None:
    for file in list(root.rglob("*.png")):
        save(file, seed=1, size=(257, 257))
    check_rejected(root, root / "train" / "ant" / "0.png", "257x257", "8 to 256")


def test_damaged_images_are_named(root: Path) -> None:
    bad = root / "test" / "zebra" / "0.png"
    whole = bad.read_bytes()
    bad.write_bytes(whole[:80])  # the header is complete, the pixels are not
    check_rejected(root, bad, "damaged")
    bad.write_bytes(b"plain text")
    check_rejected(root, bad, "not a readable image")


def test_only_formats_of_known_suffixes_are_decoded(root: Path) -> None:
    """By default, Pillow passes PostScript to an external program."""
    odd = root / "train" / "ant" / "0.png"
    Image.fromarray(np.zeros((10, 10), np.uint8)).save(odd, "EPS")
    check_rejected(root, odd, "not a readable image")


@pytest.mark.parametrize("kind", [TypeError, IndexError, struct.error, KeyError, MemoryError, AttributeError])
def test_any_decoder_error_means_damaged(root: Path, monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
    def fails(*args: object) -> None:
        raise kind("x")

    with monkeypatch.context() as patch:
        patch.setattr(Image.Image, "convert", fails)
        check_rejected(root, root / "train" / "ant" / "0.png", "damaged")


def test_sixteen_bit_images_are_rejected(root: Path) -> None:
    deep = root / "train" / "ant" / "0.png"
    Image.fromarray(np.full((10, 10), 40000, np.uint16)).save(deep)
    check_rejected(root, deep, "deeper than 8 bits")


def test_train_and_test_must_have_the_same_classes(root: Path) -> None:
    save(root / "train" / "cat" / "0.png", seed=1)
    check_rejected(root, root / "test", "'cat'")
    save(root / "test" / "cat" / "0.png", seed=1)
    save(root / "test" / "dog" / "0.png", seed=1)
    check_rejected(root, root / "train", "'dog'")


def test_missing_and_empty_folders(root: Path, tmp_path: Path) -> None:
    for half in ("train", "test"):
        (root / half / "empty").mkdir()
    check_rejected(root, root / "train" / "empty", "no image")
    check_rejected(tmp_path / "nowhere", tmp_path / "nowhere" / "train", "no such folder")
    (tmp_path / "bare" / "train").mkdir(parents=True)
    check_rejected(tmp_path / "bare", tmp_path / "bare" / "train", "no class folder")
    for half in ("train", "test"):
        save(tmp_path / "one" / half / "only" / "0.png", seed=1)
    check_rejected(tmp_path / "one", tmp_path / "one" / "train", "'only'", "two")


def test_images_are_written_as_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "digits"
    assert main(["data", "images", "digits", "--out", str(out), "--count", "7"]) == 0
    assert capsys.readouterr().out == f"written: 7 images in {out}\n"
    data = load("digits", tmp_path)
    files = sorted(out.iterdir())
    assert len(files) == 7
    for file in files:
        number, name = file.stem.split("-")
        assert torch.equal(read_pixels(file, "L")[0], data.x_test[int(number)])
        assert data.classes[data.y_test[int(number)]] == name


def test_images_have_names_that_are_files(root: Path, tmp_path: Path) -> None:
    data = load(f"folder:{root}", root)
    object.__setattr__(data, "classes", ("../up", "a b"))
    names = [path.name for path in write_images(data, tmp_path / "out", 100)]
    assert names == ["00000-___up.png", "00001-a_b.png"]


def test_images_cannot_be_written_over_a_file(root: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    with pytest.raises(BadInput, match="taken: images cannot be written there"):
        write_images(load(f"folder:{root}", root), tmp_path / "taken", 1)


def test_event_frames_are_no_images(root: Path, tmp_path: Path) -> None:
    data = load(f"folder:{root}", root)
    object.__setattr__(data, "frames", 3)
    with pytest.raises(BadInput, match="3 channels; choose a data set of grey or RGB images"):
        write_images(data, tmp_path, 1)
