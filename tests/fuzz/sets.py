"""Targets: data files. They have no checksum (CIFAR's have), so other pixels and labels may come of one; but never out
of range, of another kind, or too many."""

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.data.test_event_formats import aedat, nmnist
from tests.fuzz.folders import Shelf
from tests.fuzz.harness import Attempt, Target, Verdict, judge
from tests.fuzz.mutations import Steps, mutate_bytes

from asfedbridge.core.errors import BadInput
from asfedbridge.data.dataset import MAX_SIZE, MIN_SIZE, Dataset
from asfedbridge.data.decode_cache import decoded
from asfedbridge.data.event_formats import DVS128_SIDE, NMNIST_SIDE, read_cifar10_dvs, read_nmnist
from asfedbridge.data.event_frames import Framing, frames_of
from asfedbridge.data.memory_map import read as pixels_of
from asfedbridge.data.sources.cifar import RELEASES, read_verified
from asfedbridge.data.sources.registry import load

REFUSALS = (BadInput,)
FRAMING = Framing(2, "time")
EVENTS = [(1, 2, 0, 7), (33, 0, 1, 8), (0, 33, 0, 9), (3, 20, 1, 1000), (30, 31, 1, 2**20)]  # x, y, p, t


def check_dataset(data: Dataset) -> None:
    assert len(data.classes) == len(set(data.classes)) >= 2
    for x, y in ((data.x_train, data.y_train), (data.x_test, data.y_test)):
        x = pixels_of(x)
        assert x.dtype == torch.uint8
        assert len(x) == len(y) > 0
        assert MIN_SIZE <= x.shape[2] == x.shape[3] <= MAX_SIZE
        assert y.dtype == torch.int64
        assert y.min() >= 0
        assert y.max() < len(data.classes)
    assert data.x_train.shape[1:] == data.x_test.shape[1:]
    assert len(data.mean) == len(data.std) == data.channels
    assert np.isfinite([*data.mean, *data.std]).all()
    assert min(data.std) > 0
    data.fingerprint()


def open_archive(compressed: bool, **arrays: Any) -> Any:
    def prepare_archive(folder: Path) -> Attempt:
        file = folder / "set.npz"
        buffer = io.BytesIO()
        (np.savez_compressed if compressed else np.savez)(buffer, **arrays)
        valid = buffer.getvalue()

        def attempt(steps: Steps) -> Verdict:
            file.write_bytes(mutate_bytes(valid, steps))
            return judge(lambda: load(f"npz:{file}", folder, framing=FRAMING), check_dataset, REFUSALS, str(file))

        return attempt

    return prepare_archive


def open_array(**arrays: Any) -> Any:
    """Mutations inside an array of an archive that is whole: else the zip's own checksum would find nearly all."""

    def prepare_array(folder: Path) -> Attempt:
        file = folder / "set.npz"

        def attempt(steps: Steps) -> Verdict:
            chosen = sorted(arrays)[steps[0].value % len(arrays)]
            with zipfile.ZipFile(file, "w") as archive:
                for name, array in arrays.items():
                    buffer = io.BytesIO()
                    np.save(buffer, array)
                    content = mutate_bytes(buffer.getvalue(), steps) if name == chosen else buffer.getvalue()
                    archive.writestr(f"{name}.npy", content)
            return judge(lambda: load(f"npz:{file}", folder, framing=FRAMING), check_dataset, REFUSALS, str(file))

        return attempt

    return prepare_array


def images(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, 8, 8), dtype=np.uint8)


IMAGES = {
    "x_train": images(4), "y_train": np.array([0, 1, 0, 1]), "x_test": images(2), "y_test": np.array([0, 1]),
    "classes": np.array(["cat", "dog"]),
}  # fmt: skip
RECORDINGS = {
    **{key: np.tile(column, 4) for key, column in zip("xypt", np.array(EVENTS).T, strict=True)},
    "offsets": np.array([0, 5, 10, 15, 20]),
    "labels": np.array([0, 1, 0, 1]),
    "split": np.array(["train", "train", "test", "test"]),
    "sensor_size": np.array([34, 34]),
}


def prepare_folder(folder: Path) -> Attempt:
    """Four small images in four formats; one of them is mutated."""
    files = []
    for place, suffix in (("train/a", "png"), ("train/b", "jpg"), ("test/a", "bmp"), ("test/b", "gif")):
        file = folder / "set" / place / f"1.{suffix}"
        file.parent.mkdir(parents=True)
        Image.fromarray(images(1)[0]).save(file)
        files.append(file)
    for file, form in zip(files, ("PPM", "TIFF", "WEBP", "PNG"), strict=True):  # the name does not say what is inside
        Image.fromarray(images(1)[0]).convert("RGB").save(file.with_name("2.png"), form)
    shelf = Shelf(folder / "set")
    every = list(shelf.contents)

    def attempt(steps: Steps) -> Verdict:
        shelf.damage(every[steps[0].value % len(every)], steps)
        size = 8 if steps[0].operation & 256 else 0
        return judge(lambda: load(f"folder:{folder / 'set'}", folder, size), check_dataset, REFUSALS, str(folder))

    return attempt


def open_recording(read: Any, valid: bytes, side: int) -> Any:
    def prepare_recording(folder: Path) -> Attempt:
        file = folder / "recording"

        def frames() -> Any:
            events = read(file)
            return events, frames_of(events, side, 8, FRAMING), frames_of(events, side, side, Framing(3))

        def legitimate(found: Any) -> None:
            events, *pictures = found
            assert len(events) > 0
            for axis, end in ((events.x, side), (events.y, side), (events.p, 2)):
                assert axis.min() >= 0
                assert axis.max() < end
            assert all(p.dtype == np.uint8 and min(len(events), 255) >= p.max() >= 1 for p in pictures)

        def attempt(steps: Steps) -> Verdict:
            file.write_bytes(mutate_bytes(valid, steps))
            return judge(frames, legitimate, REFUSALS, str(file))

        return attempt

    return prepare_recording


def prepare_cifar(folder: Path) -> Attempt:
    """Known by its MD5: nothing else is ever unpickled, so nothing is harmless."""
    from tests.data.conftest import md5, pickled

    release = RELEASES["cifar10"]
    name = next(iter(release.train))
    valid = pickled({b"data": images(4), b"labels": [0, 1, 2, 3]})
    file = folder / release.folder / name
    file.parent.mkdir()

    def attempt(steps: Steps) -> Verdict:
        changed = mutate_bytes(valid, steps)
        file.write_bytes(changed)
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(release.train, name, md5(valid))
            return judge(
                lambda: read_verified("cifar10", folder, name), lambda _: unchanged(changed, valid), REFUSALS, str(file)
            )

    return attempt


def unchanged(found: bytes, valid: bytes) -> None:
    assert found == valid


def decode_digit(item: str) -> np.ndarray:
    return np.full((2, 8, 8), int(item), np.uint8)


def prepare_store(folder: Path) -> Attempt:
    """What was decoded once. Its rows have no checksum; their number, kind and shape are asked for."""

    def read() -> Any:
        return decoded(folder / "decoded", list("0123"), decode_digit, (2, 8, 8), np.uint8, {"source": "x"}, workers=1)

    read()
    (index,) = (folder / "decoded").rglob("index.json")
    (index.parent / "done.jsonl").write_text(json.dumps({"first": 0, "damaged": {}}) + "\n")
    shelf = Shelf(folder / "decoded")
    files = [index, index.with_name("rows.npy"), index.with_name("done.jsonl")]

    def legitimate(found: Any) -> None:
        assert found.rows.shape == (4, 2, 8, 8)
        assert found.rows.dtype == np.uint8
        assert not found.damaged
        found.rows.sum()

    def attempt(steps: Steps) -> Verdict:
        chosen = files[steps[0].value % 3]
        shelf.damage(chosen, steps)
        if chosen.name == "done.jsonl":
            index.unlink()  # as if the build had been stopped
        return judge(read, legitimate, REFUSALS, str(folder))

    return attempt


TARGETS = [
    Target("npz of images", 1_500, open_archive(True, **IMAGES)),
    Target("npz of images, its arrays", 2_500, open_array(**IMAGES)),
    Target("npz of events", 1_000, open_archive(False, **RECORDINGS)),
    Target("npz of events, its arrays", 2_000, open_array(**RECORDINGS)),
    Target("image files", 3_000, prepare_folder),
    Target("N-MNIST recording", 3_000, open_recording(read_nmnist, nmnist(EVENTS), NMNIST_SIDE)),
    Target("CIFAR10-DVS recording", 3_000, open_recording(read_cifar10_dvs, aedat(EVENTS), DVS128_SIDE)),
    Target("CIFAR batch (checked)", 500, prepare_cifar),
    Target("decode cache", 1_500, prepare_store),
]
