from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from asfedbridge.core.errors import BadInput
from asfedbridge.data import dataset as dataset_module
from asfedbridge.data import memory
from asfedbridge.data.dataset import Dataset, assemble, measure, resize, take_per_class
from asfedbridge.data.loader import make_shards
from asfedbridge.data.memory_map import Mapped, open_rows, read
from asfedbridge.data.partitioners import iid
from asfedbridge.data.sources.registry import load

COUNT, SIDE = 40, 12


@pytest.fixture
def pixels() -> Tensor:
    return torch.randint(0, 256, (COUNT, 3, SIDE, SIDE), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


@pytest.fixture
def mapped(tmp_path: Path, pixels: Tensor) -> Mapped:
    np.save(tmp_path / "rows.npy", pixels.movedim(1, -1).contiguous().numpy())
    return Mapped(open_rows(tmp_path / "rows.npy"))


def make_set(x: Tensor | Mapped, image_size: int = 0) -> Dataset:
    y = torch.arange(COUNT) % 2
    return assemble("toy", (x, y), (x[:10], y[:10]), ("a", "b"), "crop+flip", image_size)


def test_indexing_selects_rows(mapped: Mapped, pixels: Tensor) -> None:
    assert mapped.shape == tuple(pixels.shape)
    for rows in (slice(3, 9), torch.tensor([5, 1, 1]), np.array([7, 2])):
        part = mapped[rows]
        assert isinstance(part, Mapped)
        assert torch.equal(read(part), pixels[rows])
    assert torch.equal(read(mapped[10:][torch.tensor([0, 4])]), pixels[[10, 14]])
    assert read(mapped[:4]).is_contiguous(memory_format=torch.channels_last)
    assert read(pixels) is pixels


def test_pickle_contains_the_file_name_not_the_pixels(mapped: Mapped, pixels: Tensor) -> None:
    content = bytes(ForkingPickler.dumps(mapped[torch.arange(0, COUNT, 2)]))
    assert len(content) < 2000 < pixels.nbytes / 2
    found = ForkingPickler.loads(content)
    assert torch.equal(found.read(), pixels[::2])
    assert isinstance(found.rows, np.memmap)
    found.rows[:] = 0  # copy-on-write
    assert torch.equal(mapped.read(), pixels)


@pytest.mark.parametrize("image_size", [0, SIDE, 8])
def test_memory_map_and_memory_are_bit_identical(
    mapped: Mapped, pixels: Tensor, image_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset_module, "CHUNK", 7)
    ours, theirs = make_set(mapped, image_size), make_set(pixels, image_size)
    assert isinstance(ours.x_train, Mapped) == (image_size != 8)
    ours, theirs = (take_per_class(data, 15, 4) for data in (ours, theirs))
    assert ours.fingerprint() == theirs.fingerprint()
    assert (ours.mean, ours.std) == (theirs.mean, theirs.std)
    partition = iid(ours.y_train, ours.y_test, 3, 0)
    for augment in ("none", "crop", "crop+flip", "resized-crop+flip"):
        for one, two in zip(
            make_shards(ours, partition, augment), make_shards(theirs, partition, augment), strict=True
        ):
            draws = [torch.Generator().manual_seed(5) for _ in range(2)]
            epochs = one.batches(4, draws[0]), two.batches(4, draws[1])
            for batches in (epochs, (one.test_batches(3), two.test_batches(3))):
                for (x, y), (x2, y2) in zip(*batches, strict=True):
                    assert torch.equal(x, x2)
                    assert torch.equal(y, y2)


def test_chunk_size_does_not_change_results(pixels: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    before = measure(pixels), resize(pixels, 9), make_set(pixels).fingerprint()
    monkeypatch.setattr(dataset_module, "CHUNK", 7)
    assert measure(pixels) == before[0]
    assert torch.equal(read(resize(pixels, 9)), read(before[1]))
    assert make_set(pixels).fingerprint() == before[2]


def test_resized_set_that_exceeds_memory_is_rejected(pixels: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "memory", lambda: 2**20)
    make_set(pixels)
    with pytest.raises(BadInput, match=r"^toy: 50 images of 200x200 pixels: .*0\.0 GB.*image_size=200.*resized-crop"):
        make_set(pixels, 200)


def test_memory_of_the_machine_or_its_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = memory.memory()
    assert machine > 2**27
    limit = tmp_path / "limit"
    monkeypatch.setattr(memory, "CONTAINER_LIMITS", (str(limit),))
    limit.write_text("max\n")
    assert memory.memory() >= machine
    limit.write_text("1234567\n")
    assert memory.memory() == 1234567


def test_files_that_exceed_memory_are_rejected_before_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "memory", lambda: 2**10)
    x, y = np.zeros((4, 16, 16, 3), np.uint8), np.arange(4) % 2
    np.savez_compressed(tmp_path / "set.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    with pytest.raises(BadInput, match=r"set\.npz: .*memory, this machine has 0\.0: store fewer examples$"):
        load(f"npz:{tmp_path / 'set.npz'}", tmp_path)
    for half in ("train", "test"):
        for label in ("a", "b"):
            folder = tmp_path / half / label
            folder.mkdir(parents=True)
            Image.new("RGB", (20, 30)).save(folder / "0.png")
    with pytest.raises(BadInput, match=r"4 images of 224x224 pixels: .*: lower image_size=224$"):
        load(f"folder:{tmp_path}", tmp_path, 224)
