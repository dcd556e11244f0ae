"""A labelled image set, and the checks every set passes whatever file it came from."""

import hashlib
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from asfedbridge.core.errors import BadInput
from asfedbridge.data.memory import check_memory
from asfedbridge.data.memory_map import Images, Mapped, read

SMALLEST, LARGEST = 8, 256
AS_STORED = "set augment=resized-crop+flip, which keeps images as stored and scales each batch"
STD_FLOOR = 1e-3  # a channel that never varies must not divide by zero
CHUNK = 1024  # images looked at together: bounds the copies


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
    augment: str  # what the user asked for, or the source's default
    scaled_to: int = 0  # where every batch is scaled anew ("resized-crop+flip"): the pixels a network sees
    frames: int = 1  # of events, folded into the channels; 1: static images
    notes: tuple[str, ...] = ()  # what was left out
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
        """Height and width as a network sees them."""
        return self.scaled_to or self.height

    @property
    def assigned(self) -> tuple[Tensor, Tensor | None] | None:
        """The client of each training and each test example, where the set says so."""
        return None if self.client_train is None else (self.client_train, self.client_test)

    def fingerprint(self) -> str:
        """SHA-256 over the four arrays and their shapes: two sets agree exactly when their data do."""
        digest = hashlib.sha256()
        for array in (self.x_train, self.y_train, self.x_test, self.y_test):
            digest.update(repr(tuple(array.shape)).encode())
            for start in range(0, len(array), CHUNK):
                digest.update(read(array[start : start + CHUNK]).contiguous().numpy().data)
        return digest.hexdigest()


def resize(x: Images, size: int) -> Images:
    """Cut the central square out of uint8 [N, C, H, W] and scale it, antialiased, to size x size."""
    height, width = x.shape[2:]
    if height == width == size:
        return x
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    out = torch.empty((len(x), x.shape[1], size, size), dtype=torch.uint8)
    for start in range(0, len(x), CHUNK):
        square = read(x[start : start + CHUNK])[:, :, top : top + side, left : left + side]
        if side != size:
            square = F.interpolate(square.float(), (size, size), mode="bilinear", antialias=True)
            square = square.round_().clamp_(0, 255)
        out[start : start + CHUNK] = square
    return out


def measure(x: Images) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel of pixels in [0, 1], exact: from the histogram of the 256 values."""
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
    if size != 0 and not SMALLEST <= size <= LARGEST:
        raise BadInput(f"image_size={size}: give 0 (as stored) or {SMALLEST} to {LARGEST} pixels")


def check_shape(what: str, height: int, width: int) -> None:
    if height != width:
        raise BadInput(f"{what}: {height}x{width} pixels, not square: give image_size=N to crop and resize")
    if not SMALLEST <= height <= LARGEST:
        limits = f"outside {SMALLEST} to {LARGEST}"
        raise BadInput(f"{what}: {height}x{width} pixels, {limits}: give image_size=N to resize them")


def assemble(
    name: str,
    train: tuple[Images, Tensor],
    test: tuple[Images, Tensor],
    classes: tuple[str, ...],
    augment: str,
    image_size: int,
    statistics: tuple[tuple[float, ...], tuple[float, ...]] | None = None,
) -> Dataset:
    """Resize, check and wrap the two halves; `statistics` (mean, std) are measured on the training pixels if absent."""
    (x_train, y_train), (x_test, y_test) = train, test
    if image_size and {*x_train.shape[2:], *x_test.shape[2:]} != {image_size}:
        count = len(x_train) + len(x_test)
        check_memory(name, count, x_train.shape[1], image_size, f"lower image_size={image_size}, or {AS_STORED}")
        x_train, x_test = resize(x_train, image_size), resize(x_test, image_size)
    if x_train.shape[1] != x_test.shape[1]:
        counts = f"{x_train.shape[1]} channels, test images {x_test.shape[1]}"
        raise BadInput(f"{name}: training images have {counts}: store both alike")
    check_shape(f"{name}: training images", *x_train.shape[2:])
    check_shape(f"{name}: test images", *x_test.shape[2:])
    if x_train.shape[2:] != x_test.shape[2:]:
        sizes = f"{x_train.shape[2]} pixels wide, test images {x_test.shape[2]}"
        raise BadInput(f"{name}: training images are {sizes}: give image_size=N to resize them")
    mean, std = statistics or measure(x_train)
    x_train, x_test = (x if isinstance(x, Mapped) else x.contiguous() for x in (x_train, x_test))
    return Dataset(name, x_train, y_train, x_test, y_test, classes, mean, std, augment)


def take_per_class(data: Dataset, train: int, test: int) -> Dataset:
    """Only the first so many examples of each class, in their order; 0 keeps all."""
    for field, count, labels in (("train_per_class", train, data.y_train), ("test_per_class", test, data.y_test)):
        smallest = int(torch.bincount(labels, minlength=len(data.classes)).min())
        if count > smallest:
            raise BadInput(f"{field}={count}: {data.name} has a class of only {smallest}; give at most that, or 0")
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
    return torch.cat([torch.where(labels == c)[0][:count] for c in range(classes)]).sort().values
