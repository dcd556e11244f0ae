from multiprocessing.reduction import ForkingPickler

import pytest
import torch
from torch import Tensor

from asfedbridge.core.errors import BadInput
from asfedbridge.data import loader
from asfedbridge.data.dataset import assemble
from asfedbridge.data.loader import Shard, crop, make_shards
from asfedbridge.data.partitioners import iid

MEAN, STD = (0.5, 0.25, 0.1), (0.2, 0.3, 0.4)


def random_images(count: int, size: int = 16, channels: int = 3, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    # No zeros, so that zeros occur only in the border.
    return torch.randint(1, 256, (count, channels, size, size), generator=generator, dtype=torch.uint8)


def make_shard(count: int = 23, augment: str = "crop+flip", size: int = 16, pad: int | None = None) -> Shard:
    x = random_images(count, size)
    return Shard(x, torch.arange(count), x[:5], torch.arange(5), MEAN, STD, augment, pad)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normalise(image: Tensor) -> Tensor:
    mean, std = torch.tensor(MEAN).view(3, 1, 1), torch.tensor(STD).view(3, 1, 1)
    return (image.float() / 255 - mean) / std


def crop_one(image: Tensor, pad: int, top: int, left: int) -> Tensor:
    height, width = image.shape[1:]
    out = torch.zeros_like(image)
    for row in range(height):
        for column in range(width):
            from_row, from_column = row + top - pad, column + left - pad
            if 0 <= from_row < height and 0 <= from_column < width:
                out[:, row, column] = image[:, from_row, from_column]
    return out


def flip_one(image: Tensor) -> Tensor:
    return torch.stack([image[:, :, column] for column in reversed(range(image.shape[2]))], dim=2)


def test_crop_equals_cropping_each_image() -> None:
    x = random_images(25, size=8)
    tops, lefts = torch.arange(25) // 5, torch.arange(25) % 5
    expected = torch.stack([crop_one(x[i], 2, int(tops[i]), int(lefts[i])) for i in range(25)])
    assert torch.equal(crop(x, 2, tops, lefts), expected)
    assert torch.equal(crop(x, 2, tops * 0 + 2, lefts * 0 + 2), x)


@pytest.mark.parametrize("augment", ["none", "crop", "crop+flip"])
def test_epoch_matches_the_reference(augment: str) -> None:
    shard = make_shard(augment=augment)
    draws = seeded(3)
    order = torch.randperm(23, generator=draws)
    expected = [shard.x_train[i] for i in order]
    if augment != "none":
        offsets = torch.randint(0, 5, (2, 23), generator=draws)
        expected = [crop_one(x, 2, int(offsets[0, i]), int(offsets[1, i])) for i, x in enumerate(expected)]
    if augment == "crop+flip":
        flips = torch.rand(23, generator=draws) < 0.5
        assert 0 < flips.sum() < 23
        expected = [flip_one(x) if flips[i] else x for i, x in enumerate(expected)]
    batches = list(shard.batches(10, seeded(3), "keep"))
    assert [len(y) for _, y in batches] == [10, 10, 3]
    torch.testing.assert_close(torch.cat([x for x, _ in batches]), torch.stack([normalise(x) for x in expected]))
    assert torch.equal(torch.cat([y for _, y in batches]), order)
    assert all(x.dtype == torch.float32 and y.dtype == torch.int64 for x, y in batches)


def test_border_is_black_before_normalising() -> None:
    shard = make_shard(count=200, augment="crop")
    x, _ = next(shard.batches(200, seeded()))
    assert torch.allclose(x.amin((0, 2, 3)), normalise(torch.zeros(3, 1, 1)).flatten())


def test_epoch_depends_only_on_the_generator() -> None:
    shard = make_shard()
    small, large = seeded(1), seeded(1)
    batches = shard.batches(4, small)
    state = small.get_state()
    assert not torch.equal(state, seeded(1).get_state()), "random numbers are drawn by the call"
    one = torch.cat([x for x, _ in batches])
    assert torch.equal(small.get_state(), state), "nothing drawn between batches"
    torch.manual_seed(99)
    two = torch.cat([x for x, _ in shard.batches(23, large)])
    assert torch.equal(one, two), "the images do not depend on the batch size"
    assert torch.equal(large.get_state(), state)
    assert not torch.equal(one, torch.cat([x for x, _ in shard.batches(4, small)])), "the next epoch differs"


def test_epoch_does_not_depend_on_the_thread_count() -> None:
    shard = make_shard(count=300)
    before = torch.get_num_threads()
    epochs = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            epochs.append(torch.cat([x for x, _ in shard.batches(300, seeded(5))]))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*epochs)


def test_offsets_and_flips_are_uniform() -> None:
    corner = torch.zeros((4000, 1, 8, 8), dtype=torch.uint8)
    corner[:, 0, 3, 2] = 255
    shard = Shard(corner, torch.zeros(4000, dtype=torch.int64), corner, corner[:, 0, 0, 0], (0.0,), (1.0,), "crop+flip")
    assert shard.pad == 1
    x, _ = next(shard.batches(4000, seeded()))
    assert torch.equal(x.sum((1, 2, 3)), torch.ones(4000))
    places = x.sum(0)[0]
    assert places[2:5, 1:4].min() > 150, "each of 9 offsets, unflipped: about 4000 / 18"
    assert places[2:5, 4:7].min() > 150, "flipped to columns 4..6"
    assert places.sum() == places[2:5, 1:7].sum()


def test_unaugmented_batches_are_in_order() -> None:
    shard = make_shard()
    assert (shard.train_size, shard.test_size) == (23, 5)
    for batches, whole in ((shard.train_batches_plain(9), shard.x_train), (shard.test_batches(9), shard.x_test)):
        pairs = list(batches)
        torch.testing.assert_close(torch.cat([x for x, _ in pairs]), torch.stack([normalise(x) for x in whole]))
        assert torch.cat([y for _, y in pairs]).tolist() == list(range(len(whole)))
        assert len(pairs[0][1]) == min(9, len(whole))


@pytest.mark.parametrize(
    ("count", "batch_size", "merged", "kept"),
    [
        (0, 4, [], []),
        (1, 4, [1], [1]),
        (3, 8, [3], [3]),
        (11, 256, [11], [11]),
        (3, 1, [1, 1, 1], [1, 1, 1]),
        (5, 2, [2, 2, 1], [2, 2, 1]),  # 1 is half of 2, so it is kept
        (7, 3, [3, 4], [3, 3, 1]),
        (24, 8, [8, 8, 8], [8, 8, 8]),
        (25, 8, [8, 8, 9], [8, 8, 8, 1]),
        (26, 8, [8, 8, 10], [8, 8, 8, 2]),
        (27, 8, [8, 8, 11], [8, 8, 8, 3]),
        (28, 8, [8, 8, 8, 4], [8, 8, 8, 4]),
        (31, 8, [8, 8, 8, 7], [8, 8, 8, 7]),
        (9, 8, [9], [8, 1]),
    ],
)
def test_short_last_batch_is_merged_or_kept(count: int, batch_size: int, merged: list[int], kept: list[int]) -> None:
    shard = make_shard(count=count, augment="none", size=8)
    epochs = []
    for short_batch, sizes in (("merge", merged), ("keep", kept)):
        batches = list(shard.batches(batch_size, seeded(), short_batch))
        assert [len(y) for _, y in batches] == [len(x) for x, _ in batches] == sizes
        epochs.append([i for _, y in batches for i in y.tolist()])
    assert sorted(epochs[0]) == list(range(count)), "every example once"
    assert epochs[0] == epochs[1], "in the same order"
    assert [len(y) for _, y in shard.train_batches_plain(batch_size)] == kept


@pytest.mark.parametrize(("size", "pad"), [(8, 1), (32, 4), (64, 8)])
def test_default_pad_is_an_eighth(size: int, pad: int) -> None:
    assert make_shard(size=size).pad == pad
    assert make_shard(size=size, pad=3).pad == 3


def test_invalid_settings_are_named() -> None:
    with pytest.raises(BadInput, match=r"augment='flip' .* auto, none, crop, crop\+flip, resized-crop\+flip"):
        make_shard(augment="flip")
    with pytest.raises(BadInput, match="pad=-1"):
        make_shard(pad=-1)
    for call in (make_shard().train_batches_plain, make_shard().test_batches):
        with pytest.raises(BadInput, match="batch_size=0"):
            call(0)
    with pytest.raises(BadInput, match="batch_size=-2"):
        make_shard().batches(-2, seeded())


def test_make_shards_gives_each_client_its_examples() -> None:
    x = random_images(20)
    labels = torch.arange(20) % 2
    data = assemble("toy", (x, labels), (x[:10], labels[:10]), ("a", "b"), "crop", 0)
    partition = iid(labels, labels[:10], 3, 0)
    shards = make_shards(data, partition)
    assert len(shards) == 3
    for i, shard in enumerate(shards):
        assert torch.equal(shard.x_train, x[partition.train[i]])
        assert torch.equal(shard.y_train, labels[partition.train[i]])
        assert torch.equal(shard.x_test, x[partition.test[i]])
        assert torch.equal(shard.y_test, labels[partition.test[i]])
        assert shard.augment == "crop"
    assert make_shards(data, partition, "none")[0].augment == "none"
    with pytest.raises(BadInput, match="augment='all'"):
        make_shards(data, partition, "all")


@pytest.mark.parametrize("pad", [0, 1, 3, 8, 11])
@pytest.mark.parametrize("threads", [1, 2])
def test_numba_is_bit_identical_to_torch(pad: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every offset, also with a border as wide as the image and wider."""
    draws = seeded(1)
    x = torch.randint(0, 256, (400, 3, 8, 8), dtype=torch.uint8, generator=draws)
    y = torch.arange(400)
    shard = Shard(x, y, x[:1], y[:1], (0.4, 0.5, 0.6), (0.2, 0.3, 0.4), "crop+flip", pad)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    fast = [x for x, _ in shard.batches(150, seeded(2))]
    torch.set_num_threads(before)
    assert all(x.is_contiguous(memory_format=torch.channels_last) for x in fast), "the layout that convolutions prefer"
    monkeypatch.setattr(loader, "installed", lambda package: False)
    plain = [x for x, _ in shard.batches(150, seeded(2))]
    assert all(torch.equal(a, b) for a, b in zip(fast, plain, strict=True))


def test_shard_is_pickled_by_value() -> None:
    """Multiprocessing sends tensors through shared memory, of which a container may have only 64 MB."""
    shard = make_shard()
    content = bytes(ForkingPickler.dumps(shard))
    assert len(content) > shard.x_train.nbytes + shard.x_test.nbytes
    assert b"rebuild_storage" not in content
    found = ForkingPickler.loads(content)
    assert (found.train_size, found.test_size, found.pad, found.augment) == (23, 5, 2, "crop+flip")
    for ours, theirs in zip(shard.batches(7, seeded()), found.batches(7, seeded()), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    found.x_train.zero_()  # separate, writable memory
    assert shard.x_train.any()


@pytest.mark.parametrize("augment", ["none", "crop", "crop+flip"])
def test_resident_images_stay_on_their_device(augment: str) -> None:
    """The device `meta` has no values: an operation that needed one, or the host's tensors, would fail."""
    x, y = torch.randint(0, 256, (10, 3, 8, 8), dtype=torch.uint8), torch.arange(10)
    shard = Shard(x, y, x[:4], y[:4], [0.5] * 3, [0.25] * 3, augment)
    moved = shard.resident(torch.device("meta"))
    for one in (moved, moved.hold_out(0.3, torch.Generator().manual_seed(0))[0]):
        batches = list(one.batches(4, torch.Generator().manual_seed(0)))
        assert sum(len(labels) for _, labels in batches) == one.train_size
        for images, labels in batches:
            assert (images.device.type, labels.device.type, images.dtype) == ("meta", "meta", torch.float32)
            assert images.shape[1:] == (3, 8, 8)
    (images, labels), *_ = moved.test_batches(4)
    assert (images.device.type, labels.tolist()) == ("meta", [0, 1, 2, 3])  # labels of an evaluation are read here
    assert shard.resident(torch.device("cpu")) is shard


def test_images_that_are_resampled_stay_on_the_host() -> None:
    x, y = torch.zeros(2, 3, 8, 8, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64)
    resampled = Shard(x, y, x, y, [0.5] * 3, [0.25] * 3, "resized-crop+flip")
    assert resampled.resident(torch.device("meta")) is resampled
