import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.data.test_event_formats import aedat, nmnist

from asfedbridge.core.errors import BadInput
from asfedbridge.data.dataset import Dataset
from asfedbridge.data.event_formats import read_cifar10_dvs, read_nmnist
from asfedbridge.data.event_frames import Framing, frames_of
from asfedbridge.data.loader import Shard
from asfedbridge.data.sources import neuromorphic
from asfedbridge.data.sources.neuromorphic import COLLECTIONS, held_out
from asfedbridge.data.sources.registry import check, describe, fetch, load

T = 3


def some_events(seed: int, side: int, count: int = 60) -> list[tuple[int, int, int, int]]:
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, side, (2, count)).tolist()
    return list(zip(x, y, rng.integers(0, 2, count).tolist(), range(count), strict=True))


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    """A small N-MNIST: three training recordings and one test recording per digit."""
    for half, count in (("Train", 3), ("Test", 1)):
        for label in range(10):
            folder = tmp_path / "nmnist" / half / str(label)
            folder.mkdir(parents=True)
            for i in range(count):
                (folder / f"{i:05}.bin").write_bytes(nmnist(some_events(100 * label + i, 34)))
    return tmp_path


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    """A small CIFAR10-DVS: two training recordings and one test recording per class, split by name."""
    for number, label in enumerate(COLLECTIONS["cifar10-dvs"].classes):
        folder = tmp_path / "cifar10-dvs" / label
        folder.mkdir(parents=True)
        names = [f"cifar10_{label}_{i}" for i in range(1000)]
        chosen = [n for n in names if not held_out(n)][:2] + [n for n in names if held_out(n)][:1]
        for i, name in enumerate(chosen):
            (folder / f"{name}.aedat").write_bytes(aedat(some_events(10 * number + i, 128)))
    return tmp_path


def refuse_to_decode(item: str, **where: object) -> np.ndarray:
    raise AssertionError(f"{item} was decoded again")


def loaded(name: str, root: Path, **options: Any) -> Dataset:
    return load(name, root, framing=Framing(T), **options)


def test_nmnist_official_split(digits: Path) -> None:
    data = loaded("nmnist", digits)
    assert (data.frames, data.channels, data.height, data.augment) == (T, 2 * T, 34, "crop")
    assert data.y_train.tolist() == [label for label in range(10) for _ in range(3)]
    assert data.y_test.tolist() == list(range(10))
    for rows, half, each in ((data.x_train, "Train", 3), (data.x_test, "Test", 1)):
        for k in (0, len(rows) - 1):
            file = digits / "nmnist" / half / str(k // each) / f"{k % each:05}.bin"
            assert np.array_equal(rows[k].numpy(), frames_of(read_nmnist(file), 34, 34, Framing(T)))
    assert data.classes == tuple("0123456789")


def test_cifar10_dvs_is_scaled_down_and_split_by_name(photographs: Path) -> None:
    data = loaded("cifar10-dvs", photographs)
    assert (data.frames, data.channels, data.height, data.augment) == (T, 2 * T, 48, "crop+flip")
    assert data.y_train.tolist() == [label for label in range(10) for _ in range(2)]
    assert data.y_test.tolist() == list(range(10))
    (test,) = (f for f in (photographs / "cifar10-dvs" / "cat").iterdir() if held_out(f.name))
    assert np.array_equal(data.x_test[3].numpy(), frames_of(read_cifar10_dvs(test), 128, 48, Framing(T)))
    assert loaded("cifar10-dvs", photographs, image_size=32).x_train.shape == (20, 2 * T, 32, 32)


def test_split_by_name_is_stable() -> None:
    names = [f"cifar10_{label}_{i}.aedat" for label in COLLECTIONS["cifar10-dvs"].classes for i in range(1000)]
    held = [name for name in names if held_out(name)]
    assert len(held) == 967
    assert held[:3] == ["cifar10_airplane_9.aedat", "cifar10_airplane_19.aedat", "cifar10_airplane_23.aedat"]
    assert held_out(f"elsewhere/{held[0]}")


def test_frames_are_cached_until_a_recording_changes(digits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = loaded("nmnist", digits)
    monkeypatch.setattr(neuromorphic, "decode", refuse_to_decode)
    again = loaded("nmnist", digits)
    assert again.fingerprint() == first.fingerprint()
    monkeypatch.undo()
    (digits / "nmnist/Train/4/00001.bin").write_bytes(nmnist(some_events(5, 34, count=70)))
    assert loaded("nmnist", digits).fingerprint() != first.fingerprint()
    for other in ({"framing": Framing(T + 1)}, {"framing": Framing(T, "time")}, {"image_size": 17}):
        load("nmnist", digits, **{"framing": Framing(T)} | other)  # type: ignore[arg-type]
    assert len(list((digits / "decoded" / "nmnist").iterdir())) == 5


def test_damaged_recording_is_named_and_skipped_only_on_request(digits: Path) -> None:
    bad = digits / "nmnist" / "Train" / "4" / "00001.bin"
    bad.write_bytes(bad.read_bytes()[:-2])
    with pytest.raises(BadInput, match=rf"^{re.escape(str(bad))}: .*skip_damaged=true$"):
        loaded("nmnist", digits)
    data = loaded("nmnist", digits, skip_damaged=True)
    assert data.y_train.tolist() == [label for label in range(10) for _ in range(2 if label == 4 else 3)]
    assert data.notes == ("nmnist: omitted damaged items: Train/4/00001.bin",)
    rest = digits / "nmnist" / "Train" / "4" / "00002.bin"
    assert np.array_equal(data.x_train[13].numpy(), frames_of(read_nmnist(rest), 34, 34, Framing(T)))


def test_class_without_valid_recordings_is_an_error(digits: Path) -> None:
    (digits / "nmnist" / "Test" / "4" / "00000.bin").write_bytes(b"123")
    with pytest.raises(BadInput, match="class 4 of 10 has no test example"):
        loaded("nmnist", digits, skip_damaged=True)


@pytest.mark.parametrize("name", list(COLLECTIONS))
def test_missing_files_explain_the_manual_download(tmp_path: Path, name: str) -> None:
    lists: list[Callable[[], object]] = [lambda: loaded(name, tmp_path), lambda: fetch(name, tmp_path)]
    for ask in [*lists, lambda: check(name, tmp_path)]:
        with pytest.raises(BadInput, match=rf"download .*https://.*unpack them into {tmp_path / name}") as caught:
            ask()
        assert "\n" not in str(caught.value)
    assert f"asfedbridge data fetch {name}" in {n: where for n, _, where in describe(tmp_path)}[name]


def test_check_counts_and_reads_everything(digits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match="has 40 recordings, expected 70000"):
        check("nmnist", digits)
    monkeypatch.setitem(COLLECTIONS, "nmnist", replace(COLLECTIONS["nmnist"], official=40))
    assert check("nmnist", digits)[-1].startswith("nmnist: 30 training and 10 test examples of 10 frames, 20x34x34")
    bad = digits / "nmnist" / "Test" / "9" / "00000.bin"
    bad.write_bytes(b"")
    with pytest.raises(BadInput, match=re.escape(str(bad))):
        check("nmnist", digits)


def test_augmentation_is_equal_for_all_channels(photographs: Path) -> None:
    """If all channels are equal, they are equal after augmentation."""
    data = loaded("cifar10-dvs", photographs)
    x = data.x_train[:, :1].expand(-1, 2 * T, -1, -1).contiguous(memory_format=torch.channels_last)
    shard = Shard(x, data.y_train, x, data.y_train, data.mean, data.std, "crop+flip")
    seen = torch.cat([batch for batch, _ in shard.batches(8, torch.Generator().manual_seed(0))])
    assert torch.equal(seen, seen[:, :1].expand_as(seen))
    assert not torch.equal(seen, torch.cat([batch for batch, _ in shard.train_batches_plain(8)]))


# archives of flat arrays


def archive(tmp_path: Path, **changed: Any) -> Path:
    """Twelve recordings of three classes, the last three for testing."""
    rng = np.random.default_rng(0)
    counts = rng.integers(5, 50, 12)
    total = int(counts.sum())
    whole = {
        "x": rng.integers(0, 16, total).astype(np.uint8),
        "y": rng.integers(0, 16, total).astype(np.uint8),
        "p": rng.integers(0, 2, total).astype(bool),
        "t": np.arange(total, dtype=np.uint32),
        "offsets": np.concatenate([[0], np.cumsum(counts)]),
        "labels": np.arange(12) % 3,
        "split": np.array(["train"] * 9 + ["test"] * 3),
        "sensor_size": np.array([16, 16, 2]),
    } | changed
    path = tmp_path / "events.npz"
    np.savez(path, **{key: value for key, value in whole.items() if value is not None})
    return path


def test_event_archive_is_recognised_by_its_arrays(tmp_path: Path) -> None:
    path = archive(tmp_path, split=np.array([b"train"] * 9 + [b"test"] * 3))
    data = loaded(f"npz:{path}", tmp_path)
    assert (data.frames, tuple(data.x_train.shape), data.augment) == (T, (9, 2 * T, 16, 16), "crop")
    assert data.y_test.tolist() == [0, 1, 2]
    whole = np.load(path)
    begin, end = whole["offsets"][10:12]
    assert int(data.x_test[1].sum()) == end - begin
    assert loaded(f"npz:{path}", tmp_path, image_size=8).height == 8
    assert check(f"npz:{path}", tmp_path)[-1].endswith("3 classes: good")


def test_event_archive_assigns_clients(tmp_path: Path) -> None:
    path = archive(tmp_path, client=np.arange(12) % 2)
    data = loaded(f"npz:{path}", tmp_path)
    assert data.assigned is not None
    assert [ids.tolist() for ids in data.assigned if ids is not None] == [[0, 1, 0, 1, 0, 1, 0, 1, 0], [1, 0, 1]]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"labels": None}, "labels is missing"),
        ({"x": np.zeros(3, np.uint8)}, "x, y, p, t have 3"),
        ({"p": np.full(400, 2)}, "p, t have|polarity 2"),
        ({"x": np.zeros((3, 2), np.uint8)}, "shape"),
        ({"t": np.zeros(5)}, "t is float64"),
        ({"offsets": np.array([0, 5, 4])}, "offsets are invalid"),
        ({"labels": np.arange(11) % 3}, "11 labels"),
        ({"split": np.array(["train"] * 9 + ["val"] * 3)}, "split contains other values"),
        ({"split": np.array(["train"] * 12)}, "no 'test'"),
        ({"split": np.arange(12)}, "split contains other values"),
        ({"sensor_size": np.array([8, 8])}, "sensor_size"),
        ({"sensor_size": np.array([20, 16])}, "sensor_size"),
        (
            {"sensor_size": np.array([2**40, 2**40])},
            "frames: 1099511627776x1099511627776 pixels",
        ),  # too large for memory
        ({"x": np.full(291, 2**40)}, "x contains 1099511627776"),
        ({"client": np.zeros(11, np.int64)}, r"client has shape \(11,\): store one for each of 12 recordings"),
        ({"client": np.int64(1)}, r"client has shape \(\)"),
        ({"client": np.zeros(12)}, "client_train is float64"),
        ({"t": np.full(291, 2**62)}, "t contains 4611686018427387904"),  # would overflow when multiplied by T
    ],
)
def test_invalid_archives_are_rejected_in_one_line(tmp_path: Path, changed: dict[str, Any], words: str) -> None:
    path = archive(tmp_path, **changed)
    with pytest.raises(BadInput, match=words) as caught:
        loaded(f"npz:{path}", tmp_path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_empty_recording_in_an_archive_is_damaged(tmp_path: Path) -> None:
    offsets = np.load(archive(tmp_path))["offsets"]
    offsets[5] = offsets[4]
    path = archive(tmp_path, offsets=offsets)
    with pytest.raises(BadInput, match=r"recording 4 contains no events; .*skip_damaged=true"):
        loaded(f"npz:{path}", tmp_path)
    data = loaded(f"npz:{path}", tmp_path, skip_damaged=True)
    assert len(data.y_train) == 8
    assert "recording 4" in data.notes[0]


def test_frames_larger_than_the_sensor_are_rejected(tmp_path: Path, digits: Path) -> None:
    for name in (f"npz:{archive(tmp_path)}", "nmnist"):
        with pytest.raises(BadInput, match="image_size=40"):
            loaded(name, digits, image_size=40)
