"""Images and recordings as a trained client is shown them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from asfedbridge.core.errors import BadInput
from asfedbridge.data.dataset import resize
from asfedbridge.data.event_formats import Events, read_nmnist
from asfedbridge.data.event_frames import Framing, frames_of
from asfedbridge.data.inputs import Reader

GREY, COLOUR = Reader(1, 8), Reader(3, 8)
EVENTS = Reader(4, 8, frames=2, framing=Framing(2))
DRAW = np.random.default_rng(3)


def all_of(reader: Reader, given: Any) -> tuple[list[str], torch.Tensor]:
    found = list(reader.read(given))
    return [name for one in found for name in one.names], torch.cat([one.pixels for one in found])


def noise(*shape: int) -> np.ndarray:
    return DRAW.integers(0, 256, shape, np.uint8)


def test_arrays_have_channels_last() -> None:
    pixels = noise(2, 8, 8, 3)
    names, found = all_of(COLOUR, pixels)
    assert names == ["image 0", "image 1"]
    assert torch.equal(found, torch.from_numpy(pixels).permute(0, 3, 1, 2))
    assert torch.equal(all_of(COLOUR, pixels[0])[1], found[:1])
    assert torch.equal(all_of(COLOUR, [pixels[0], pixels[1]])[1], found)


def test_other_sizes_are_cut_and_scaled_as_training_images() -> None:
    pixels = noise(1, 20, 30, 3)
    expected = resize(torch.from_numpy(pixels).permute(0, 3, 1, 2), 8)
    assert torch.equal(all_of(COLOUR, pixels)[1], expected)
    square = torch.from_numpy(pixels).permute(0, 3, 1, 2)[..., 5:25]
    assert torch.equal(all_of(Reader(3, 8, rescaled=True), pixels)[1], square)


def test_grey_is_repeated_and_colour_becomes_luminance() -> None:
    colour = noise(1, 8, 8, 3)
    as_pillow = np.asarray(Image.fromarray(colour[0]).convert("L"))
    assert np.array_equal(all_of(GREY, colour)[1][0, 0].numpy(), as_pillow)
    grey = noise(1, 8, 8, 1)
    assert torch.equal(all_of(COLOUR, grey)[1], torch.from_numpy(grey).permute(0, 3, 1, 2).expand(1, 3, 8, 8))


def test_files_pictures_and_arrays_agree(tmp_path: Path) -> None:
    pixels = noise(9, 7, 3)
    (tmp_path / "inner").mkdir()
    for name in ("b.png", "inner/a.PNG"):
        Image.fromarray(pixels).save(tmp_path / name, "PNG")
    (tmp_path / "notes.txt").write_text("no image")
    expected = all_of(COLOUR, pixels)[1]
    names, found = all_of(COLOUR, tmp_path)
    assert names == [str(tmp_path / "b.png"), str(tmp_path / "inner" / "a.PNG")]
    assert torch.equal(found, expected.expand(2, -1, -1, -1))
    assert torch.equal(all_of(COLOUR, Image.fromarray(pixels))[1], expected)
    assert torch.equal(all_of(COLOUR, [str(tmp_path / "b.png"), pixels])[1], found)


def test_recordings_become_frames(tmp_path: Path) -> None:
    n = 40
    x, y, p, t = (*DRAW.integers(0, 16, (2, n)), DRAW.integers(0, 2, n), np.sort(DRAW.integers(0, 99, n)))
    expected = frames_of(Events(x, y, p, t), 16, 8, Framing(2))[None]
    np.savez(tmp_path / "one.npz", x=x, y=y, p=p, t=t, sensor_size=np.array([16, 16]))
    assert np.array_equal(all_of(EVENTS, tmp_path / "one.npz")[1], expected)
    x[0] = 15  # the sensor's last column, where its size is not told
    given = all_of(EVENTS, {"x": x, "y": y, "p": p, "t": t})[1]
    assert np.array_equal(given, frames_of(Events(x, y, p, t), 16, 8, Framing(2))[None])
    folded = expected.transpose(0, 2, 3, 1)
    assert np.array_equal(all_of(EVENTS, folded)[1], expected)
    (tmp_path / "n.bin").write_bytes(bytes([3, 5, 0x80, 0, 9, 7, 1, 0, 0, 12]))
    assert np.array_equal(
        all_of(EVENTS, tmp_path / "n.bin")[1], frames_of(read_nmnist(tmp_path / "n.bin"), 34, 8, Framing(2))[None]
    )


@pytest.mark.parametrize(
    ("reader", "given", "says"),
    [
        (COLOUR, np.zeros((8, 8, 3), np.float32), "float32; give uint8"),
        (COLOUR, noise(8, 8), r"shape \(8, 8\); give \[N, H, W, C\]"),
        (COLOUR, noise(2, 8, 8, 4), "4 channels; this client takes images of 3 channels, 8x8"),
        (COLOUR, np.zeros((0, 8, 8, 3), np.uint8), "shape"),
        (COLOUR, 7, "images=int: give uint8 arrays"),
        (COLOUR, "missing.png", "missing.png: no such file"),
        (COLOUR, {"x": [1], "y": [1], "p": [1], "t": [1]}, "event recording; this client takes images"),
        (EVENTS, {"x": [1], "y": [1], "p": [1]}, "t is missing"),
        (EVENTS, {"x": [1], "y": [1], "p": [2], "t": [1]}, "polarity 2"),
        (EVENTS, {"x": [1], "y": [1], "p": [1], "t": [1]}, "the sensor has 2x2 pixels"),
        (EVENTS, noise(9, 9, 4), "the frames have 9x9 pixels"),
        (EVENTS, noise(8, 8, 3), "3 channels; this client takes event recordings"),
        (EVENTS, Image.fromarray(noise(8, 8, 3)), "is an image; this client takes event recordings"),
        (EVENTS, "one.png", "ends in .aedat, .bin, .npz"),
        (Reader(5, 8), "one.png", "1 or 3 channels; this client takes images of 5"),
        (GREY, Image.new("I", (8, 8)), "deeper than 8 bits"),
    ],
)
def test_what_does_not_fit_is_refused(reader: Reader, given: Any, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        list(reader.read(given))


def test_damaged_files_and_empty_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"\x89PNG nothing")
    with pytest.raises(BadInput, match="damaged"):
        list(COLOUR.read(tmp_path))
    with pytest.raises(BadInput, match="contains no recording"):
        list(EVENTS.read(tmp_path))
    np.savez(tmp_path / "set.npz", x=[1], y=[1], p=[1], t=[1], offsets=[0, 1])
    with pytest.raises(BadInput, match="a set of recordings"):
        list(EVENTS.read(tmp_path / "set.npz"))
    with pytest.raises(BadInput, match="this client takes images"):
        list(COLOUR.read(tmp_path / "set.npz"))
