"""A small Tiny-ImageNet in the official layout."""

import io
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from asfedbridge.cli import main, resolve
from asfedbridge.core.errors import BadInput
from asfedbridge.data import decode_cache
from asfedbridge.data.archive import Archive, state
from asfedbridge.data.memory_map import Mapped, read
from asfedbridge.data.sources import tiny_imagenet
from asfedbridge.data.sources.registry import check, describe, fetch, load
from asfedbridge.runs.setting import prepare

CLASSES = ("n02", "n01", "n03")
TRAIN, VAL = 5, 2
WORDS = "n00\tentity\nn01\tgoldfish, Carassius auratus\nn02\tcrane\nn03\tcrane, machine\n"
Forge = Callable[..., Path]


def jpeg(seed: int, grey: bool = False, side: int = 64) -> bytes:
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (8, 8) if grey else (8, 8, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).resize((side, side)).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def pixels(content: bytes) -> Tensor:
    with Image.open(io.BytesIO(content)) as image:
        return torch.from_numpy(np.array(image.convert("RGB"))).movedim(-1, 0)


def contents(each: dict[str, int]) -> dict[str, bytes]:
    """Contents of all files by path. Image 1 of each class is grey."""
    files = {"wnids.txt": "\n".join(CLASSES).encode(), "words.txt": WORDS.encode()}
    notes = []
    for c, wnid in enumerate(CLASSES):
        for i in range(each["train"]):
            files[f"train/{wnid}/images/{wnid}_{i}.JPEG"] = jpeg(100 * c + i, grey=i == 1)
        files[f"train/{wnid}/{wnid}_boxes.txt"] = b"n01_0.JPEG\t0\t10\t63\t58\n"
    for n in range(each["val"] * len(CLASSES)):
        files[f"val/images/val_{n}.JPEG"] = jpeg(5000 + n)
        notes.append(f"val_{n}.JPEG\t{CLASSES[n % len(CLASSES)]}\t0\t32\t44\t62\n")
    files["val/val_annotations.txt"] = "".join(reversed(notes)).encode()
    files["test/images/test_0.JPEG"] = jpeg(9)
    return files


@pytest.fixture
def forge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Forge:
    """Writes the set, adjusts ``PER_CLASS`` to it, and returns the data root."""
    monkeypatch.setattr(tiny_imagenet, "PER_CLASS", {"train": TRAIN, "val": VAL})
    monkeypatch.setattr(decode_cache, "CHUNK", 4)

    def make(without: tuple[str, ...] = (), **replaced: bytes) -> Path:
        root = tmp_path / "root"
        for name, content in (contents(tiny_imagenet.PER_CLASS) | replaced).items():
            if name not in without:
                path = root / tiny_imagenet.FOLDER / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        return root

    return make


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decodes in this process: a worker takes seconds to start and would not see the changed ``PER_CLASS``."""
    monkeypatch.setattr("asfedbridge.data.process_pool.count_cores", lambda: 1)


def check_rejected(root: Path, *words: str, **options: object) -> None:
    with pytest.raises(BadInput) as caught:
        load("tiny-imagenet", root, **options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_official_layout(forge: Forge) -> None:
    root, files = forge(), contents(tiny_imagenet.PER_CLASS)
    data = load("tiny-imagenet", root)
    assert data.classes == ("goldfish", "crane (n02)", "crane (n03)")
    assert data.y_train.tolist() == [c for c in range(3) for _ in range(TRAIN)]
    assert isinstance(data.x_train, Mapped)
    assert data.x_train.shape == (15, 3, 64, 64)
    for c, wnid in enumerate(sorted(CLASSES)):
        for i in range(TRAIN):
            found = read(data.x_train)[c * TRAIN + i]
            assert torch.equal(found, pixels(files[f"train/{wnid}/images/{wnid}_{i}.JPEG"]))
            assert (found[0] == found[1]).all() == (i == 1), "grey images have three equal channels"
    for image, label in zip(read(data.x_test), data.y_test, strict=True):
        n = next(n for n in range(6) if torch.equal(image, pixels(files[f"val/images/val_{n}.JPEG"])))
        assert CLASSES[n % 3] == sorted(CLASSES)[label]
    assert (data.mean, data.std) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@pytest.mark.parametrize(
    ("image_size", "augment", "expected"),
    [
        (0, "auto", (224, "resized-crop+flip")),
        (64, "auto", (64, "crop+flip")),
        (16, "auto", (16, "crop+flip")),
        (96, "auto", (96, "resized-crop+flip")),
        (0, "none", (64, "none")),
        (32, "resized-crop+flip", (32, "resized-crop+flip")),
        (80, "crop+flip", (80, "crop+flip")),
    ],
)
def test_default_size_and_augmentation(forge: Forge, image_size: int, augment: str, expected: tuple[int, str]) -> None:
    data = load("tiny-imagenet", forge(), image_size, augment)
    assert (data.image_size, data.augment) == expected
    scaled_once = data.augment != "resized-crop+flip" and data.image_size != 64
    assert isinstance(data.x_train, Mapped) != scaled_once


def test_paper_recipe_follows_the_paper(forge: Forge) -> None:
    spec = resolve(["paper", "data=tiny-imagenet", "fleet=1*resnet18@0.05:ann,1*resnet18@0.05:snn", "partition=iid"])
    assert (spec.batch_size, spec.T, spec.rounds, spec.epochs, spec.alpha) == (256, 4, 100, 5, 0.1)
    setting = prepare(spec, forge())
    assert (setting.task.image_size, setting.task.classes) == (224, 3)
    shard = setting.shards[0]
    assert (shard.augment, shard.size) == ("resized-crop+flip", 224)
    x, _ = next(shard.batches(256, torch.Generator().manual_seed(0)))
    assert x.shape == (shard.train_size, 3, 224, 224)


def test_images_are_decoded_once(forge: Forge, monkeypatch: pytest.MonkeyPatch) -> None:
    root = forge()
    first = load("tiny-imagenet", root).fingerprint()
    monkeypatch.setattr(tiny_imagenet, "read_image", None)
    assert load("tiny-imagenet", root, 64).fingerprint() == first
    monkeypatch.undo()


def test_changed_image_is_decoded_again(forge: Forge) -> None:
    root = forge()
    first = load("tiny-imagenet", root).fingerprint()
    (root / tiny_imagenet.FOLDER / "val" / "images" / "val_0.JPEG").write_bytes(jpeg(77))
    assert load("tiny-imagenet", root).fingerprint() != first


def test_damaged_image_is_named_and_skipped_only_on_request(forge: Forge) -> None:
    name = "train/n01/images/n01_3.JPEG"
    root = forge(**{name: jpeg(3)[:400], "val/images/val_2.JPEG": jpeg(1, side=32)})
    check_rejected(root, name, "damaged", "skip_damaged=true")
    data = load("tiny-imagenet", root, skip_damaged=True)
    assert data.y_train.tolist() == [0] * 4 + [1] * 5 + [2] * 5
    assert data.y_test.bincount().tolist() == [2, 2, 1]
    check_rejected(root, name, "skip_damaged=true")
    (root / tiny_imagenet.FOLDER / name).write_bytes(jpeg(3))
    check_rejected(root, "val_2.JPEG", "32x32 pixels, expected 64x64")


def test_missing_images_are_named_and_skipped_only_on_request(forge: Forge) -> None:
    root = forge(without=("train/n03/images/n03_0.JPEG", "val/images/val_4.JPEG"))
    check_rejected(
        root, "val/images/val_4.JPEG", "1 of 5 train images of n03", "1 of 2 val images of n01", "data fetch"
    )
    with pytest.raises(BadInput, match="lacks"):
        check("tiny-imagenet", root)
    data = load("tiny-imagenet", root, skip_damaged=True)
    assert (len(data.y_train), len(data.y_test)) == (14, 5)


def test_missing_annotation_is_named(forge: Forge) -> None:
    root = forge()
    notes = root / tiny_imagenet.FOLDER / "val" / "val_annotations.txt"
    notes.write_text("".join(line for line in notes.read_text().splitlines(True) if not line.startswith("val_3.")))
    check_rejected(root, "the annotation of val/images/val_3.JPEG")
    assert len(load("tiny-imagenet", root, skip_damaged=True).y_test) == 5


def test_many_missing_images_are_counted(forge: Forge) -> None:
    root = forge(without=tuple(f"val/images/val_{n}.JPEG" for n in range(3)))
    check_rejected(root, "val_2.JPEG", "and 3 more")


@pytest.mark.parametrize("name", ["wnids.txt", "words.txt", "val/val_annotations.txt"])
def test_missing_lists_explain_how_to_fetch_the_set(forge: Forge, name: str) -> None:
    root = forge(without=(name,))
    check_rejected(
        root, name, "data fetch tiny-imagenet", tiny_imagenet.ARCHIVE.url, str(root / "tiny-imagenet-200.zip")
    )


def test_empty_data_root(tmp_path: Path) -> None:
    check_rejected(tmp_path, "wnids.txt: no such file", "data fetch tiny-imagenet")
    assert ("tiny-imagenet", "asfedbridge data fetch tiny-imagenet") in [(d[0], d[2]) for d in describe(tmp_path)]


def test_class_without_images_is_rejected_unless_unlisted(forge: Forge) -> None:
    root = forge(without=tuple(f"train/n02/images/n02_{i}.JPEG" for i in range(TRAIN)))
    check_rejected(root, "class n02 has no train image", skip_damaged=True)
    (root / tiny_imagenet.FOLDER / "wnids.txt").write_text("n01\nn03\n")
    # Images of unlisted classes are ignored; their annotations still exist.
    assert load("tiny-imagenet", root).classes == ("goldfish", "crane")


def test_check_counts(forge: Forge) -> None:
    root = forge()
    assert check("tiny-imagenet", root)[-1] == (
        "tiny-imagenet: 15 training and 6 test images, 3x64x64, 3 classes: good"
    )
    assert {name: where for name, _, where in describe(root)}["tiny-imagenet"] == f"in {root}"


SLOW = """
import sys, time
from pathlib import Path
from asfedbridge.data import process_pool
from asfedbridge.data import decode_cache
from asfedbridge.data.sources import tiny_imagenet
from asfedbridge.data.sources.registry import load

tiny_imagenet.PER_CLASS = {"train": 12, "val": 2}
decode_cache.CHUNK = 4
process_pool.count_cores = lambda: 1
plain = tiny_imagenet.read_image
def slowly(*args):
    time.sleep(0.02)
    print("decoded", args[0].name, flush=True)
    return plain(*args)
tiny_imagenet.read_image = slowly
print(load("tiny-imagenet", Path(sys.argv[1])).fingerprint(), flush=True)
"""


def test_killed_decoding_resumes(forge: Forge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny_imagenet, "PER_CLASS", {"train": 12, "val": 2})
    root = forge()
    command = [sys.executable, "-c", SLOW, str(root)]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert first.stdout is not None
    for _ in range(14):
        assert first.stdout.readline().startswith("decoded")
    first.send_signal(signal.SIGKILL)
    first.communicate(timeout=300)
    assert first.returncode != 0
    again = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout.splitlines()
    assert 0 < len(again) - 1 <= 42 - 12, "chunks on disk are not decoded again"
    assert again[-1] == load("tiny-imagenet", root).fingerprint()


# Fetching from an existing archive


@pytest.fixture
def archive(forge: Forge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "other"
    root.mkdir()
    path = root / "tiny-imagenet-200.zip"
    with zipfile.ZipFile(path, "w") as target:
        for name, content in contents(tiny_imagenet.PER_CLASS).items():
            target.writestr(f"{tiny_imagenet.FOLDER}/{name}", content)
        target.writestr(f"{tiny_imagenet.FOLDER}/../../evil.txt", b"out of here")
        target.writestr("elsewhere/wnids.txt", b"n09")
    md5 = state(path, "").split()[2].rstrip(",")
    monkeypatch.setattr(tiny_imagenet, "ARCHIVE", Archive(tiny_imagenet.ARCHIVE.url, md5))
    return path


def test_archive_is_unpacked_and_checked(archive: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = archive.parent
    assert main(["data", "fetch", "tiny-imagenet", "--data-root", str(root)]) == 0
    assert "15 training and 6 test images" in capsys.readouterr().out
    assert {p.name for p in root.iterdir()} == {archive.name, tiny_imagenet.FOLDER, "decoded"}
    assert not (root / tiny_imagenet.FOLDER / "test").exists()
    assert not (root.parent / "evil.txt").exists()
    archive.unlink()
    fetch("tiny-imagenet", root)  # nothing is missing


def test_unpacking_resumes(archive: Path) -> None:
    fetch("tiny-imagenet", archive.parent)
    folder = archive.parent / tiny_imagenet.FOLDER
    kept, lost = folder / "val" / "images" / "val_0.JPEG", folder / "val" / "images" / "val_1.JPEG"
    content, before = lost.read_bytes(), kept.stat().st_mtime_ns
    lost.write_bytes(content[:10])
    (folder / "val" / "images" / "val_2.JPEG").unlink()
    time.sleep(0.01)
    fetch("tiny-imagenet", archive.parent)
    assert lost.read_bytes() == content
    assert kept.stat().st_mtime_ns == before


def test_damaged_archive_is_renamed(archive: Path) -> None:
    archive.write_bytes(archive.read_bytes()[:-1])
    with pytest.raises(BadInput, match=r"zip is damaged.*moved to tiny-imagenet-200\.zip\.bad"):
        fetch("tiny-imagenet", archive.parent)


def test_command_line_reports_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "check", "tiny-imagenet", "--data-root", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert os.fspath(tmp_path) in error
