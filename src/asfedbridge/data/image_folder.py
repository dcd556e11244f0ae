"""Data sets of image files: `folder:PATH` with train/CLASS/* and test/CLASS/*."""

import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from asfedbridge.core.errors import BadInput
from asfedbridge.core.reading import explain, open_regular
from asfedbridge.data.dataset import Dataset, assemble, check_pixels, check_shape, resize
from asfedbridge.data.memory import check_memory
from asfedbridge.data.memory_map import read

if TYPE_CHECKING:
    from PIL import Image

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".tif", ".tiff"})
# The formats of these suffixes. By default Pillow tries all its formats, one of which starts an external program.
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM", "TIFF")
ADVICE = "replace or remove it"
GREY_MODES = frozenset({"1", "L", "LA"})
DEEP_MODES = frozenset({"I", "F"})  # and "I;16..."; converting these to 8 bits would clip them


def load_folder(name: str, path: Path, image_size: int) -> Dataset:
    """Loads grey images if all are grey, otherwise RGB. If sizes differ, `image_size` is required."""
    classes = class_folders(path / "train")
    held = class_folders(path / "test")
    for odd in sorted(set(classes) ^ set(held)):
        lacking = "test" if odd in classes else "train"
        raise BadInput(f"{path / lacking}: class {odd!r} is missing: give train and test the same class folders")
    if len(classes) < 2:
        raise BadInput(f"{path / 'train'}: has only class {classes[0]!r}: make at least two class folders")
    files = {half: [image_files(path / half / label) for label in classes] for half in ("train", "test")}
    mode = common_mode([file for half in files.values() for group in half for file in group], image_size)
    if image_size:
        count = sum(len(group) for half in files.values() for group in half)
        check_memory(str(path), count, 1 if mode == "L" else 3, image_size, f"lower image_size={image_size}")
    train, test = (read_half(files[half], mode, image_size) for half in ("train", "test"))
    return assemble(name, train, test, tuple(classes), "crop+flip", image_size)


def class_folders(path: Path) -> list[str]:
    names = sorted(entry.name for entry in _entries(path) if os.path.isdir(entry.path))
    if not names:
        raise BadInput(f"{path}: contains no class folder: put images in {path.name}/CLASS/")
    return names


def _entries(path: Path) -> list[os.DirEntry[str]]:
    """The entries of a folder that are not hidden."""
    try:
        with os.scandir(path) as found:
            return [entry for entry in found if not entry.name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError, ValueError):
        raise BadInput(f"{path}: no such folder: put images in train/CLASS/ and test/CLASS/") from None
    except OSError as error:
        raise BadInput(f"{path}: {explain(error)}: put images in train/CLASS/ and test/CLASS/") from None


def image_files(path: Path) -> list[Path]:
    files = sorted(path / entry.name for entry in _entries(path) if Path(entry.name).suffix.lower() in SUFFIXES)
    if not files:
        kinds = ", ".join(sorted(suffix[1:] for suffix in SUFFIXES))
        raise BadInput(f"{path}: contains no image: add one ({kinds}) or remove the class from train and test")
    return files


def common_mode(files: list[Path], image_size: int) -> str:
    """Returns "L" or "RGB" for the whole set. Reads only the headers."""
    mode = "L"
    first: tuple[int, int] | None = None
    for file in files:
        kind, size = read_header(file)
        if kind in DEEP_MODES or kind.startswith("I;"):
            raise BadInput(f"{file}: pixels of type {kind} are deeper than 8 bits: convert the image to 8 bits")
        if not image_size:
            check_shape(str(file), size[1], size[0])
            first = first or size
            if size != first:
                others = f"{size[0]} pixels wide, {files[0].name} {first[0]}"
                raise BadInput(f"{file}: {others}: give image_size=N to resize all images")
        if kind not in GREY_MODES:
            mode = "RGB"
    return mode


def read_header(file: Path) -> tuple[str, tuple[int, int]]:
    with _opened(file, "not a readable image") as image:
        return image.mode, image.size


@contextmanager
def _opened(file: Path, wrong: str) -> "Iterator[Image.Image]":
    """Opens an image after a check of its size. Any error is reported as ``wrong``."""
    from PIL import Image

    try:
        with warnings.catch_warnings(), open_regular(file, ADVICE) as source:
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # check_pixels has a lower limit
            with Image.open(source, formats=FORMATS) as image:
                check_pixels(str(file), image.height, image.width)
                yield image
    except BadInput:
        raise
    except Exception as error:  # decoders raise many types of errors for damaged files
        raise BadInput(f"{file}: {wrong}: {ADVICE}") from error


def read_half(groups: list[list[Path]], mode: str, image_size: int) -> tuple[Tensor, Tensor]:
    """All images of one half, class by class, cropped and resized to `image_size` unless it is 0."""
    images = [read_image(file, mode, image_size) for group in groups for file in group]
    labels = [label for label, group in enumerate(groups) for _ in group]
    return torch.cat(images), torch.tensor(labels)


def read_image(file: Path, mode: str, image_size: int) -> Tensor:
    x = read_pixels(file, mode)
    return read(resize(x, image_size)) if image_size else x


def read_pixels(file: Path, mode: str) -> Tensor:
    """One image as uint8 [1, C, H, W]."""
    with _opened(file, "the image is damaged") as image:
        return to_pixels(image, mode, str(file))


def to_pixels(image: "Image.Image", mode: str, what: str) -> Tensor:
    if image.mode in DEEP_MODES or image.mode.startswith("I;"):
        raise BadInput(f"{what}: pixels of type {image.mode} are deeper than 8 bits: convert the image to 8 bits")
    pixels = np.array(image.convert(mode), dtype=np.uint8)
    return torch.from_numpy(pixels.reshape(1, *pixels.shape[:2], -1)).permute(0, 3, 1, 2)


def write_images(data: Dataset, folder: Path, count: int) -> list[Path]:
    """Write test images, evenly spaced over the set, to NUMBER-CLASS.png in ``folder``, which is created if needed."""
    from PIL import Image

    if data.frames > 1 or data.channels not in (1, 3):
        raise BadInput(
            f"data={data.name}: its examples have {data.channels} channels; choose a data set of grey or RGB images"
        )
    chosen = torch.linspace(0, len(data.y_test) - 1, min(count, len(data.y_test))).round().long()
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for number, pixels, label in zip(chosen, read(data.x_test[chosen]), data.y_test[chosen], strict=True):
            name = re.sub(r"[^\w-]", "_", data.classes[label])[:80]
            written.append(folder / f"{number:05d}-{name}.png")
            Image.fromarray(pixels.movedim(0, -1).squeeze(-1).numpy()).save(written[-1])
    except OSError as error:
        raise BadInput(f"{folder}: images cannot be written there ({error.strerror}); choose another folder") from None
    return written
