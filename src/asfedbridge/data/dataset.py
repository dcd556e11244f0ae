"""A labelled image data set, and the checks for data sets of every source."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from asfedbridge.core.errors import BadInput
from asfedbridge.data.memory import check_memory
from asfedbridge.data.memory_map import Images, Mapped, read

MIN_SIZE, MAX_SIZE = 8, 256  # pixels
CROP_ADVICE = "set augment=resized-crop+flip, which keeps images as stored and scales each batch"
STD_FLOOR = 1e-3  # a constant channel must not cause a division by zero
CHUNK = 1024  # images processed together; limits the size of temporary copies
CHUNK_VALUES = 2**28  # pixel values resized together, as floats; limits temporary copies of large images
MAX_PIXELS = 2**25  # per image; three channels take half a gigabyte as floats


@dataclass(frozen=True, eq=False)
class Dataset:
    name: str  # as the user wrote it
    x_train: Images  # uint8 [N, C, H, W]
    y_train: Tensor  # int64 [N]
    x_test: Images
    y_test: Tensor
    classes: tuple[str, ...]
    mean: tuple[float, ...]  # per channel, of pixels in [0, 1]
    std: tuple[float, ...]
    augment: str  # the user's choice, or the source's default
    scaled_to: int = 0  # with "resized-crop+flip": the size to which each batch is scaled; otherwise 0
    frames: int = 1  # event frames, folded into the channels; 1: static images
    notes: tuple[str, ...] = ()  # messages about omitted examples
    client_train: Tensor | None = None  # int64 [N]: the client of each example, for partition=assigned
    client_test: Tensor | None = None

    @property
    def channels(self) -> int:
        return int(self.x_train.shape[1])

    @property
    def height(self) -> int:
        return int(self.x_train.shape[2])

    @property
    def width(self) -> int:
        return int(self.x_train.shape[3])

    @property
    def image_size(self) -> int:
        """Height and width of a network's input."""
        return self.scaled_to or self.height

    @property
    def assigned(self) -> tuple[Tensor, Tensor | None] | None:
        """The client of each training and each test example, or None if the set assigns none."""
        return None if self.client_train is None else (self.client_train, self.client_test)

    def fingerprint(self) -> str:
        """SHA-256 of the four arrays and their shapes."""
        digest = hashlib.sha256()
        for array in (self.x_train, self.y_train, self.x_test, self.y_test):
            digest.update(repr(tuple(array.shape)).encode())
            for start in range(0, len(array), CHUNK):
                digest.update(read(array[start : start + CHUNK]).contiguous().numpy().data)
        return digest.hexdigest()


def resize(x: Images, size: int) -> Images:
    """Crops the central square of uint8 images [N, C, H, W] and resizes it to size x size with antialiasing."""
    height, width = x.shape[2:]
    if height == width == size:
        return x
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    out = torch.empty((len(x), x.shape[1], size, size), dtype=torch.uint8)
    chunk = max(1, min(CHUNK, CHUNK_VALUES // (x.shape[1] * side * side)))
    for start in range(0, len(x), chunk):
        square = read(x[start : start + chunk])[:, :, top : top + side, left : left + side]
        if side != size:
            square = F.interpolate(square.float(), (size, size), mode="bilinear", antialias=True)
            square = square.round_().clamp_(0, 255)
        out[start : start + chunk] = square
    return out


def measure(x: Images) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel of pixels in [0, 1], computed exactly from histograms."""
    values = torch.arange(256, dtype=torch.float64) / 255
    means, stds = [], []
    counts = torch.zeros(x.shape[1], 256, dtype=torch.int64)
    for start in range(0, len(x), CHUNK):
        for count, pixels in zip(counts, read(x[start : start + CHUNK]).unbind(1), strict=True):
            count += torch.bincount(pixels.reshape(-1), minlength=256)
    for count in counts:
        share = count.double()
        share /= share.sum()
        mean = (share * values).sum()
        means.append(mean.item())
        stds.append(max((share * (values - mean) ** 2).sum().sqrt().item(), STD_FLOOR))
    return tuple(means), tuple(stds)


def check_image_size(size: int) -> None:
    if size != 0 and not MIN_SIZE <= size <= MAX_SIZE:
        raise BadInput(f"image_size={size}: give 0 (as stored) or {MIN_SIZE} to {MAX_SIZE} pixels")


def check_shape(what: str, height: int, width: int) -> None:
    if height != width:
        raise BadInput(f"{what}: {height}x{width} pixels, not square: give image_size=N to crop and resize")
    if not MIN_SIZE <= height <= MAX_SIZE:
        limits = f"outside {MIN_SIZE} to {MAX_SIZE}"
        raise BadInput(f"{what}: {height}x{width} pixels, {limits}: give image_size=N to resize them")


def check_pixels(what: str, height: int, width: int) -> None:
    """Rejects an image that would take a gigabyte while it is decoded and scaled."""
    if height * width > MAX_PIXELS:
        limit = f"more than {MAX_PIXELS // 10**6} million"
        raise BadInput(f"{what}: {height}x{width} pixels, {limit}: scale the images down first")


def check_alike(name: str, train: Sequence[int], test: Sequence[int]) -> None:
    """Checks the shapes [N, C, H, W] of training and test images against each other."""
    if train[1] != test[1]:
        counts = f"{train[1]} channels, test images {test[1]}"
        raise BadInput(f"{name}: training images have {counts}: store both with the same number of channels")
    check_shape(f"{name}: training images", train[2], train[3])
    check_shape(f"{name}: test images", test[2], test[3])
    if train[2:] != test[2:]:
        sizes = f"{train[2]} pixels wide, test images {test[2]}"
        raise BadInput(f"{name}: training images are {sizes}: give image_size=N to resize them")


def assemble(
    name: str,
    train: tuple[Images, Tensor],
    test: tuple[Images, Tensor],
    classes: tuple[str, ...],
    augment: str,
    image_size: int,
    statistics: tuple[tuple[float, ...], tuple[float, ...]] | None = None,
) -> Dataset:
    """Resizes and checks both halves and makes a ``Dataset``. `statistics` (mean, std) default to those of the training
    pixels."""
    (x_train, y_train), (x_test, y_test) = train, test
    if image_size and {*x_train.shape[2:], *x_test.shape[2:]} != {image_size}:
        count = len(x_train) + len(x_test)
        check_memory(name, count, x_train.shape[1], image_size, f"lower image_size={image_size}, or {CROP_ADVICE}")
        x_train, x_test = resize(x_train, image_size), resize(x_test, image_size)
    check_alike(name, x_train.shape, x_test.shape)
    mean, std = statistics or measure(x_train)
    x_train, x_test = (x if isinstance(x, Mapped) else x.contiguous() for x in (x_train, x_test))
    return Dataset(name, x_train, y_train, x_test, y_test, classes, mean, std, augment)


def take_per_class(data: Dataset, train: int, test: int) -> Dataset:
    """Keeps the first ``train`` and ``test`` examples of each class, in their order; 0 keeps all."""
    for field, count, labels in (("train_per_class", train, data.y_train), ("test_per_class", test, data.y_test)):
        smallest = int(torch.bincount(labels, minlength=len(data.classes)).min())
        if count > smallest:
            raise BadInput(
                f"{field}={count}: the smallest class of {data.name} has {smallest}; give at most that, or 0"
            )
    keep_train, keep_test = (_first(y, n, len(data.classes)) for y, n in ((data.y_train, train), (data.y_test, test)))
    return replace(
        data,
        x_train=data.x_train[keep_train],
        y_train=data.y_train[keep_train],
        x_test=data.x_test[keep_test],
        y_test=data.y_test[keep_test],
        client_train=None if data.client_train is None else data.client_train[keep_train],
        client_test=None if data.client_test is None else data.client_test[keep_test],
    )


def _first(labels: Tensor, count: int, classes: int) -> Tensor:
    if count == 0:
        return torch.arange(len(labels))
    order = torch.argsort(labels, stable=True)
    sizes = torch.bincount(labels, minlength=classes)
    place = torch.arange(len(labels)) - (sizes.cumsum(0) - sizes)[labels[order]]  # position within the class
    return order[place < count].sort().values
