from dataclasses import replace

import numpy as np
import pytest
import torch

from asfedbridge.core.errors import BadInput
from asfedbridge.data.dataset import CHUNK, Dataset, assemble, check_image_size, measure, resize


def random_images(count: int, channels: int = 3, height: int = 8, width: int = 8, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, channels, height, width), generator=generator, dtype=torch.uint8)


def make_set(train: torch.Tensor, test: torch.Tensor, image_size: int = 0) -> Dataset:
    labels = [torch.arange(len(x)) % 2 for x in (train, test)]
    return assemble("toy", (train, labels[0]), (test, labels[1]), ("a", "b"), "crop", image_size)


def test_measure_is_mean_and_std_of_pixels() -> None:
    x = random_images(50)
    mean, std = measure(x)
    pixels = x.numpy().astype(np.float64) / 255
    np.testing.assert_allclose(mean, pixels.mean((0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(std, pixels.std((0, 2, 3)), rtol=1e-12)


def test_constant_channel_has_std_floor() -> None:
    assert measure(torch.full((3, 1, 8, 8), 51, dtype=torch.uint8)) == ((pytest.approx(0.2),), (1e-3,))


def test_resize_averages_and_keeps_constants() -> None:
    assert (resize(torch.full((2, 3, 32, 32), 255, dtype=torch.uint8), 12) == 255).all()
    assert (resize(torch.full((2, 3, 8, 8), 7, dtype=torch.uint8), 30) == 7).all()
    stripes = torch.zeros((1, 1, 32, 32), dtype=torch.uint8)
    stripes[..., 1::4] = stripes[..., 2::4] = 200  # the pixels that bilinear sampling without antialiasing would read
    inner = resize(stripes, 8)[..., 1:-1]
    assert ((inner.int() - 100).abs() <= 30).all(), "not antialiased: fine stripes must become grey"


def test_resize_in_chunks_equals_resize_one_by_one() -> None:
    x = random_images(CHUNK + 3, channels=1, height=10, width=10)
    whole = resize(x, 8)
    assert whole.dtype == torch.uint8
    picked = [0, 1, CHUNK - 1, CHUNK, CHUNK + 2]
    assert torch.equal(whole[picked], torch.cat([torch.as_tensor(resize(x[i : i + 1], 8)) for i in picked]))


def test_resize_takes_the_central_square() -> None:
    x = random_images(2, height=8, width=14)
    assert torch.equal(resize(x, 8), x[:, :, :, 3:11])
    assert torch.equal(resize(x.transpose(2, 3), 8), x.transpose(2, 3)[:, :, 3:11, :])


@pytest.mark.parametrize("size", [0, 8, 33, 64, 224, 256])
def test_image_sizes_in_range_pass(size: int) -> None:
    check_image_size(size)


@pytest.mark.parametrize("size", [-1, 1, 7, 257, 1024])
def test_image_sizes_out_of_range_are_rejected(size: int) -> None:
    with pytest.raises(BadInput, match=f"image_size={size}: .*8 to 256"):
        check_image_size(size)


def test_shape_properties() -> None:
    data = make_set(random_images(4), random_images(4), image_size=16)
    assert (data.channels, data.height, data.width) == (3, 16, 16)
    assert data.x_train.is_contiguous()


def test_train_and_test_shapes_must_agree() -> None:
    with pytest.raises(BadInput, match="toy: training images have 3 channels, test images 1"):
        make_set(random_images(4), random_images(4, channels=1))
    with pytest.raises(BadInput, match=r"8 pixels wide, test images 16: give image_size"):
        make_set(random_images(4), random_images(4, height=16, width=16))


def test_fingerprint_covers_every_array_and_the_shapes() -> None:
    data = make_set(random_images(4), random_images(4, seed=1))
    prints = {data.fingerprint()}
    for field in ("x_train", "y_train", "x_test", "y_test"):
        changed = getattr(data, field).clone()
        changed.view(-1)[-1] += 1
        prints.add(replace(data, **{field: changed}).fingerprint())
    prints.add(replace(data, x_train=data.x_train.view(2, 6, 8, 8)).fingerprint())
    assert len(prints) == 6
    assert replace(data, x_train=data.x_train.clone(), name="other").fingerprint() == data.fingerprint()
