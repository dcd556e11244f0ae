"""Random resized crops and central crops against torch's ``interpolate``, image by image."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from asfedbridge.data import random_crop
from asfedbridge.data.loader import Shard
from asfedbridge.data.random_crop import draw_boxes, resample_plainly

MEAN, STD = (0.5, 0.25, 0.1), (0.2, 0.3, 0.4)


def random_images(count: int, side: int, channels: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(side)
    return torch.randint(0, 256, (count, channels, side, side), generator=generator, dtype=torch.uint8)


def make_shard(count: int = 23, side: int = 20, size: int = 48) -> Shard:
    x = random_images(count, side)
    return Shard(x, torch.arange(count), x[:5], torch.arange(5), MEAN, STD, "resized-crop+flip", size=size)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normalise(x: Tensor) -> Tensor:
    return (x / 255 - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)


@pytest.fixture(params=["numba", "plain"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "plain":
        monkeypatch.setattr(random_crop, "installed", lambda package: False)
    return str(request.param)


@pytest.mark.parametrize(("side", "size"), [(20, 48), (20, 20), (48, 16), (64, 224)])
def test_epoch_matches_the_reference(path: str, side: int, size: int) -> None:
    count = 13
    shard = make_shard(count, side, size)
    draws = seeded(3)
    order = torch.randperm(count, generator=draws)
    boxes = draw_boxes(count, side, draws)
    flips = torch.rand(count, generator=draws) < 0.5
    assert 0 < flips.sum() < count
    batches = list(shard.batches(5, seeded(3)))
    assert torch.equal(torch.cat([y for _, y in batches]), order)
    for n, found in enumerate(torch.cat([x for x, _ in batches])):
        top, left, height, width = boxes[:, n].tolist()
        box = shard.x_train[order[n]][None, :, top : top + height, left : left + width].float()
        expected = F.interpolate(box, (size, size), mode="bilinear", antialias=True)[0]
        torch.testing.assert_close(found, normalise(expected.flip(2) if flips[n] else expected), rtol=1e-5, atol=2e-5)
    assert batches[0][0].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(("side", "size", "full"), [(64, 224, 256), (20, 14, 16), (100, 28, 32), (20, 21, 24)])
def test_evaluation_resizes_and_crops_the_centre(path: str, side: int, size: int, full: int) -> None:
    shard = make_shard(7, side, size)
    margin = (full - size) // 2
    whole = F.interpolate(shard.x_train.float(), (full, full), mode="bilinear", antialias=True)
    expected = normalise(whole[:, :, margin : margin + size, margin : margin + size])
    found = torch.cat([x for x, _ in shard.train_batches_plain(3)])
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-5)
    torch.testing.assert_close(torch.cat([x for x, _ in shard.test_batches(2)]), expected[:5], rtol=1e-5, atol=2e-5)


def test_both_paths_agree_on_grey_images() -> None:
    from asfedbridge.kernels.resize import resample

    x, boxes, flips = random_images(9, 31, channels=1), draw_boxes(9, 31, seeded()), torch.arange(9) % 2 == 0
    one, zero = torch.ones(1), torch.zeros(1)
    found = resample(x, boxes, flips, 40, 46, one, zero)
    torch.testing.assert_close(found, resample_plainly(x, boxes, flips, 40, 46), rtol=1e-5, atol=1e-3)


def test_epoch_depends_only_on_the_generator(path: str) -> None:
    shard = make_shard()
    small, large = seeded(1), seeded(1)
    batches = shard.batches(4, small)
    state = small.get_state()
    one = torch.cat([x for x, _ in batches])
    assert torch.equal(small.get_state(), state), "nothing drawn between batches"
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    two = torch.cat([x for x, _ in shard.batches(23, large)])
    torch.set_num_threads(before)
    assert torch.equal(one, two), "the bits do not depend on the batch size and the threads"
    assert torch.equal(large.get_state(), state)
    assert not torch.equal(one, torch.cat([x for x, _ in shard.batches(4, small)])), "the next epoch differs"


def test_areas_and_ratios_of_boxes() -> None:
    side, count = 64, 20_000
    top, left, height, width = draw_boxes(count, side, seeded()).double()
    assert min(top.min(), left.min()) == 0
    assert (top + height).max() == (left + width).max() == side
    assert torch.stack([height, width]).min() >= 1
    area, ratio = height * width / side**2, width / height
    assert 0.075 < area.min() < 0.085
    assert area.max() <= 1
    assert 0.70 < ratio.min() < 0.76  # sizes are rounded to pixels
    assert 1.32 < ratio.max() < 1.42
    # Areas are uniform, but a large box fits only at ratios within a factor of 1 / area.
    grid = torch.linspace(0.08, 1.0, 10_000).double()
    fits = (-grid.log() / math.log(4 / 3)).clamp(max=1)
    expected = torch.stack([part.sum() for part in fits.chunk(4)]) / fits.sum()
    shares = torch.histc(area, 4, 0.08, 1.0) / count
    assert (shares - expected).abs().max() < 0.015
    assert abs(ratio.log().mean()) < 0.005
    middle = (top + height / 2).mean() / side
    assert abs(middle - 0.5) < 0.005


def test_whole_image_is_used_if_no_box_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_crop, "AREA", (1.0, 1.0))
    monkeypatch.setattr(random_crop, "RATIO", (1.2, 1.3))
    assert draw_boxes(3, 10, seeded()).tolist() == [[0, 0, 0]] * 2 + [[10, 10, 10]] * 2
