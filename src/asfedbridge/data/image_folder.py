"""Image sets as files: `folder:PATH` with train/CLASS/* and test/CLASS/*."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from asfedbridge.core.errors import BadInput
from asfedbridge.data.dataset import Dataset, assemble, check_shape, resize
from asfedbridge.data.memory import check_memory
from asfedbridge.data.memory_map import read

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".tif", ".tiff"})
# What these names promise. Pillow would try every format it knows on any file, and of one starts another program.
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM", "TIFF")
GREY = frozenset({"1", "L", "LA"})
DEEP = frozenset({"I", "F"})  # and "I;16...": turning these into 8 bits would clip them


def load_folder(name: str, path: Path, image_size: int) -> Dataset:
    """Grey if every image is, else RGB; images of unequal size need an `image_size`."""
    classes = class_folders(path / "train")
    held = class_folders(path / "test")
    for odd in sorted(set(classes) ^ set(held)):
        lacking = "test" if odd in classes else "train"
        raise BadInput(f"{path / lacking}: class {odd!r} is missing: give train and test the same class folders")
    if len(classes) < 2:
        raise BadInput(f"{path / 'train'}: only class {classes[0]!r}: make at least two class folders")
    files = {half: [image_files(path / half / label) for label in classes] for half in ("train", "test")}
    mode = common_mode([file for half in files.values() for group in half for file in group], image_size)
    if image_size:
        count = sum(len(group) for half in files.values() for group in half)
        check_memory(str(path), count, 1 if mode == "L" else 3, image_size, f"lower image_size={image_size}")
    train, test = (read_half(files[half], mode, image_size) for half in ("train", "test"))
    return assemble(name, train, test, tuple(classes), "crop+flip", image_size)


def class_folders(path: Path) -> list[str]:
    if not path.is_dir():
        raise BadInput(f"{path}: no such folder: put images in train/CLASS/ and test/CLASS/")
    names = sorted(p.name for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))
    if not names:
        raise BadInput(f"{path}: no class folder in it: put images in {path.name}/CLASS/")
    return names


def image_files(path: Path) -> list[Path]:
    files = sorted(p for p in path.iterdir() if p.suffix.lower() in SUFFIXES and not p.name.startswith("."))
    if not files:
        kinds = ", ".join(sorted(suffix[1:] for suffix in SUFFIXES))
        raise BadInput(f"{path}: no image in it: add one ({kinds}) or remove the class from train and test")
    return files


def common_mode(files: list[Path], image_size: int) -> str:
    """ "L" or "RGB" for the whole set, from the headers alone."""
    mode = "L"
    first: tuple[int, int] | None = None
    for file in files:
        kind, size = read_header(file)
        if kind in DEEP or kind.startswith("I;"):
            raise BadInput(f"{file}: pixels of type {kind} are deeper than 8 bits: convert the image to 8 bits")
        if not image_size:
            check_shape(str(file), size[1], size[0])
            first = first or size
            if size != first:
                others = f"{size[0]} pixels wide, {files[0].name} {first[0]}"
                raise BadInput(f"{file}: {others}: give image_size=N to bring all images to one size")
        if kind not in GREY:
            mode = "RGB"
    return mode


def read_header(file: Path) -> tuple[str, tuple[int, int]]:
    from PIL import Image

    try:
        with Image.open(file, formats=FORMATS) as image:
            return image.mode, image.size
    except Exception as error:  # decoders have many ways to fail on a damaged file
        raise BadInput(f"{file}: not a readable image: replace or remove it") from error


def read_half(groups: list[list[Path]], mode: str, image_size: int) -> tuple[Tensor, Tensor]:
    """All images of one half, class after class, each already cut and scaled to `image_size` if that is given."""
    images = [read_image(file, mode, image_size) for group in groups for file in group]
    labels = [label for label, group in enumerate(groups) for _ in group]
    return torch.cat(images), torch.tensor(labels)


def read_image(file: Path, mode: str, image_size: int) -> Tensor:
    from PIL import Image

    try:
        with Image.open(file, formats=FORMATS) as image:
            pixels = np.array(image.convert(mode), dtype=np.uint8)
    except Exception as error:
        raise BadInput(f"{file}: the image is damaged: replace or remove it") from error
    x = torch.from_numpy(pixels.reshape(1, *pixels.shape[:2], -1)).permute(0, 3, 1, 2)
    return read(resize(x, image_size)) if image_size else x
