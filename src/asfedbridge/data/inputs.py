"""Reads inputs for a trained client: arrays, PIL images, image files, folders of files, event recordings.

Images are converted to uint8 [n, C, side, side]. Each image is cropped to its central square and scaled to the size of
the network, as in training, unless batches are scaled later (``rescaled``). For a network with three channels, a grey
image is repeated; for a network with one, colours become luminance (ITU-R 601, as in Pillow). Other numbers of channels
are refused.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from asfedbridge.core.errors import BadInput, brief
from asfedbridge.core.reading import explain
from asfedbridge.data.dataset import check_pixels, resize
from asfedbridge.data.event_formats import (
    DVS128_SIDE,
    NMNIST_SIDE,
    Events,
    read_aedat2,
    read_cifar10_dvs,
    read_nmnist,
)
from asfedbridge.data.event_frames import Framing, frames_of
from asfedbridge.data.image_folder import SUFFIXES, read_pixels, to_pixels
from asfedbridge.data.memory_map import read
from asfedbridge.data.npz_archive import open_npz
from asfedbridge.data.npz_events import check_events, check_values, holds_events

RECORDINGS = frozenset({".aedat", ".bin", ".npz"})
EVENT_KEYS = ("x", "y", "p", "t")
AS_PAPER = Framing()
LUMA = (19595, 38470, 7471)  # weights of red, green and blue, in units of 1/65536


class Named(NamedTuple):
    """Images of one size, and their names."""

    names: list[str]
    pixels: Tensor  # uint8 [n, C, side, side]


@dataclass(frozen=True)
class Reader:
    """Reads inputs for one network."""

    channels: int
    image_size: int
    rescaled: bool = False  # each batch is scaled later, so squares keep their size
    frames: int = 1
    framing: Framing = AS_PAPER
    data: str = ""  # the training data; for CIFAR10-DVS, recordings are rotated as in that data set

    def read(self, given: Any) -> Iterator[Named]:
        """Yields all inputs in order, files one by one."""
        if isinstance(given, str | os.PathLike):
            for path in self._find(Path(given)):
                yield Named([str(path)], self._read_file(path))
        elif isinstance(given, Mapping):
            yield Named(["recording"], self._frame(_events_of(given, "recording"), "recording"))
        elif hasattr(given, "convert") and hasattr(given, "mode"):  # a PIL image
            yield Named(["picture"], self._read_picture(given))
        elif isinstance(given, np.ndarray | Tensor):
            pixels = self._read_array(given)
            yield Named([f"image {n}" for n in range(len(pixels))], pixels)
        elif isinstance(given, Sequence):
            for number, one in enumerate(given):
                for names, pixels in self.read(one):
                    plain = not isinstance(one, str | os.PathLike)
                    yield Named([f"image {number}"] if plain and len(names) == 1 else names, pixels)
        else:
            raise BadInput(f"images={type(given).__name__}: give uint8 arrays, PIL images, paths or recordings")

    def _find(self, path: Path) -> list[Path]:
        known, what = (RECORDINGS, "recording") if self.frames > 1 else (SUFFIXES, "image")
        try:
            if not path.is_dir():
                return [path]
            found = sorted(p for p in path.rglob("*") if p.suffix.lower() in known and p.is_file())
        except (OSError, ValueError) as error:
            raise BadInput(f"{path}: {explain(error)}; give another path") from None
        if not found:
            raise BadInput(f"{path}: contains no {what}; give a folder with {', '.join(sorted(known))} files")
        return found

    def _read_file(self, path: Path) -> Tensor:
        if self.frames > 1:
            return self._frame(*_read_recording(path, self.data))
        if path.suffix.lower() in RECORDINGS:
            raise BadInput(f"{path}: is an event recording; this client takes images: {self._wanted}")
        return self._square(read_pixels(path, self._mode(str(path))), str(path))

    def _read_picture(self, picture: Any) -> Tensor:
        what = "a picture"
        if self.frames > 1:
            raise BadInput(f"{what}: is an image; this client takes {self._wanted}")
        try:
            pixels = to_pixels(picture, self._mode(what), what)
        except BadInput:
            raise
        except Exception as error:  # PIL decodes files lazily
            raise BadInput(f"{what}: cannot be decoded ({brief(error)}); replace it") from error
        return self._square(pixels, what)

    def _read_array(self, given: np.ndarray | Tensor) -> Tensor:
        array = torch.as_tensor(given)
        if array.dtype != torch.uint8:
            kind = str(array.dtype).removeprefix("torch.")
            raise BadInput(f"images: an array of {kind}; give uint8 values from 0 to 255, not normalised")
        if array.dim() not in (3, 4) or not array.numel():
            raise BadInput(f"images: an array of shape {tuple(array.shape)}; give [N, H, W, C] or [H, W, C]")
        pixels = (array if array.dim() == 4 else array[None]).movedim(-1, 1)
        return self.fit(pixels, "images")

    def fit(self, x: Tensor, what: str) -> Tensor:
        """Convert images [n, C, H, W] to this client's channels and size."""
        return self._square(self._match_channels(x, what), what)

    def _match_channels(self, x: Tensor, what: str) -> Tensor:
        own = x.shape[1]
        if own == self.channels:
            return x
        if self.frames == 1 and (own, self.channels) == (1, 3):
            return x.expand(-1, 3, -1, -1)
        if self.frames == 1 and (own, self.channels) == (3, 1):
            weighted = sum(w * part.int() for w, part in zip(LUMA, x.unbind(1), strict=True))
            assert isinstance(weighted, Tensor)
            return ((weighted + 0x8000) >> 16).to(torch.uint8)[:, None]
        raise BadInput(f"{what}: {own} channels; this client takes {self._wanted}")

    def _square(self, x: Tensor, what: str) -> Tensor:
        height, width = x.shape[2:]
        check_pixels(what, height, width)
        if self.frames > 1 and (height, width) != (self.image_size, self.image_size):
            raise BadInput(f"{what}: the frames have {height}x{width} pixels; this client takes {self._wanted}")
        return read(resize(x, min(height, width) if self.rescaled else self.image_size)).contiguous()

    def _frame(self, events: Events, what: str, side: int = 0) -> Tensor:
        if self.frames == 1:
            raise BadInput(f"{what}: is an event recording; this client takes images: {self._wanted}")
        used = int(max(events.x.max(), events.y.max())) + 1
        side = side or used
        if not max(self.image_size, used) <= side:
            raise BadInput(
                f"{what}: the sensor has {side}x{side} pixels and events up to {used - 1}; this client needs at least "
                f"{self.image_size}x{self.image_size} and all events inside the sensor"
            )
        return torch.from_numpy(frames_of(events, side, self.image_size, self.framing))[None]

    def _mode(self, what: str) -> str:
        if self.channels not in (1, 3):
            raise BadInput(f"{what}: an image file has 1 or 3 channels; this client takes {self._wanted}")
        return "L" if self.channels == 1 else "RGB"

    @property
    def _wanted(self) -> str:
        size = f"{self.image_size}x{self.image_size}"
        if self.frames > 1:
            shape = f"[N, {self.image_size}, {self.image_size}, {self.channels}]"
            return f"event recordings, or their {self.frames} frames as {shape}"
        return f"images of {self.channels} channel{'s' * (self.channels != 1)}, {size} pixels"


def _read_recording(path: Path, data: str) -> tuple[Events, str, int]:
    match path.suffix.lower():
        case ".aedat":
            events = read_cifar10_dvs(path) if data == "cifar10-dvs" else read_aedat2(path)
            return events, str(path), DVS128_SIDE
        case ".bin":
            return read_nmnist(path), str(path), NMNIST_SIDE
        case ".npz" if holds_events(path):
            raise BadInput(
                f"{path}: contains a set of recordings; evaluate it as data npz:{path}, or give single recordings"
            )
        case ".npz":
            with open_npz(path, EVENT_KEYS, ("sensor_size",)) as archive:
                arrays = archive.read_all()
            sensor = arrays.get("sensor_size")
            side = int(sensor.max()) if sensor is not None and sensor.dtype.kind in "iu" and sensor.size else 0
            return _events_of(arrays, str(path)), str(path), side
    known = ", ".join(sorted(RECORDINGS))
    raise BadInput(f"{path}: this client takes event recordings; give a file that ends in {known}")


def _events_of(arrays: Mapping[str, Any], what: str) -> Events:
    """One recording from its arrays x, y, p, t."""
    missing = [key for key in EVENT_KEYS if key not in arrays]
    if missing:
        raise BadInput(f"{what}: {missing[0]} is missing; give arrays {', '.join(EVENT_KEYS)} of all events")
    found = {key: np.asarray(arrays[key]) for key in EVENT_KEYS}
    check_events(what, found)
    check_values(what, found)
    return Events(*(found[key].astype(np.int64) for key in EVENT_KEYS))
