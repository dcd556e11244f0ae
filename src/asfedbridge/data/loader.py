"""The data of one client, in normalised and, for training, augmented batches."""

import copy
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from asfedbridge.core.errors import BadInput
from asfedbridge.core.task import ShortBatch
from asfedbridge.data.dataset import Dataset
from asfedbridge.data.memory_map import Images, Mapped, read
from asfedbridge.data.partition import Partition
from asfedbridge.data.random_crop import RESIZED, draw_boxes, scale_boxes, scale_centres
from asfedbridge.kernels.dispatch import installed

AUGMENTATIONS = ("none", "crop", "crop+flip", RESIZED)


class Shard:
    """The uint8 images of one client. Batches are float32 [B, C, H, W] with int64 labels."""

    def __init__(
        self,
        x_train: Images,
        y_train: Tensor,
        x_test: Images,
        y_test: Tensor,
        mean: Sequence[float],
        std: Sequence[float],
        augment: str,
        pad: int | None = None,
        size: int = 0,
    ) -> None:
        """`pad` is the width of the zero border for random crops; by default an eighth of the height (4 of 32).

        `size` is the size to which "resized-crop+flip" scales images; 0 is the stored size.
        """
        if augment not in AUGMENTATIONS:
            raise BadInput(f"augment={augment!r} is unknown: choose from auto, {', '.join(AUGMENTATIONS)}")
        if pad is not None and pad < 0:
            raise BadInput(f"pad={pad}: give 0 or more pixels")
        self.x_train, self.y_train = x_train, y_train
        self.x_test, self.y_test = x_test, y_test
        self.augment = augment
        self.pad = int(x_train.shape[2]) // 8 if pad is None else pad
        self.size = size or int(x_train.shape[2])
        self.mean, self.std = tuple(mean), tuple(std)
        # (x / 255 - mean) / std as one multiply-add.
        centre, spread = (torch.tensor(v, dtype=torch.float64).view(1, -1, 1, 1) for v in (mean, std))
        self._scale = (1 / (255 * spread)).float()
        self._shift = (-centre / spread).float()
        self._lines: Tensor | None = None  # the training images in the layout of kernels.crop, made on first use
        self._labels = y_train  # where the images are

    def resident(self, device: torch.device) -> "Shard":
        """A copy with its images on ``device``, where they are also augmented: a training step copies nothing there.

        Random numbers are still drawn on the CPU, for a whole epoch at once. Memory-mapped images and
        "resized-crop+flip" stay on the CPU, and so do the labels of batches in order.
        """
        if device.type == "cpu" or self.augment == RESIZED:
            return self
        if isinstance(self.x_train, Mapped) or isinstance(self.x_test, Mapped):
            return self
        moved = copy.copy(self)
        moved.x_train, moved.x_test = self.x_train.to(device), self.x_test.to(device)
        moved._scale, moved._shift = self._scale.to(device), self._shift.to(device)
        moved._labels, moved._lines = self.y_train.to(device), None
        return moved

    def hold_out(self, share: float, generator: torch.Generator) -> "tuple[Shard, Shard]":
        """Splits off a random ``share`` of the training images: a shard without them, and a shard that tests on them.

        Both have at least one image.
        """
        count = min(self.train_size - 1, max(1, round(share * self.train_size)))
        order = torch.randperm(self.train_size, generator=generator)
        held, kept = order[:count].sort().values, order[count:].sort().values
        rest, tested = copy.copy(self), copy.copy(self)
        rest.x_train, rest.y_train, rest._lines = self.x_train[kept], self.y_train[kept], None
        tested.x_test, tested.y_test = self.x_train[held], self.y_train[held]
        tested.x_train, tested.y_train, tested._lines = self.x_train[held[:0]], self.y_train[held[:0]], None
        rest._labels, tested._labels = self._labels[kept], self._labels[held[:0]]
        return rest, tested

    def __copy__(self) -> "Shard":
        made = Shard.__new__(Shard)
        vars(made).update(vars(self))
        return made

    def __getstate__(self) -> dict[str, Any]:
        """Pickles tensors as arrays: multiprocessing sends tensors through /dev/shm, which is small in containers."""
        state = vars(self) | {"_lines": None}
        return {name: v.numpy() if isinstance(v, Tensor) else v for name, v in state.items()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update({name: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for name, v in state.items()})

    @property
    def train_size(self) -> int:
        return len(self.y_train)

    @property
    def test_size(self) -> int:
        return len(self.y_test)

    def batches(
        self, batch_size: int, generator: torch.Generator, short_batch: ShortBatch = "merge"
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """One shuffled, augmented epoch, split by ``batch_slices``.

        All random numbers of the epoch (permutation, crops, flips) are drawn by this call. The images and the
        generator's final state therefore do not depend on the batch size or on what the caller does between batches.
        """
        _check(batch_size)
        count = self.train_size
        order = torch.randperm(count, generator=generator)
        places = flips = None
        if self.augment == RESIZED:
            places = draw_boxes(count, int(self.x_train.shape[2]), generator)
        elif self.augment != "none":
            places = torch.randint(0, 2 * self.pad + 1, (2, count), generator=generator)
        if self.augment.endswith("+flip"):
            flips = torch.rand(count, generator=generator) < 0.5
        return self._epoch(batch_slices(count, batch_size, short_batch), order, places, flips)

    def _epoch(
        self, parts: Sequence[slice], order: Tensor, places: Tensor | None, flips: Tensor | None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        device = self._scale.device
        order, flips = order.to(device), torch.zeros(len(order), dtype=torch.bool) if flips is None else flips
        places, flips = None if places is None else places.to(device), flips.to(device)
        for part in parts:
            chosen, mirrored = order[part], flips[part]
            if places is None:
                x = self._normalise(read(self.x_train[chosen]))
            elif self.augment == RESIZED:
                pixels = read(self.x_train[chosen])
                x = scale_boxes(pixels, places[:, part], mirrored, self.size, self._scale, self._shift)
            elif device.type == "cpu" and installed("numba"):
                x = self._cut(chosen, places[:, part], mirrored)
            else:
                pixels = crop(read(self.x_train[chosen]), self.pad, *places[:, part])
                x = self._normalise(torch.where(mirrored.view(-1, 1, 1, 1), pixels.flip(3), pixels))
            yield x, self._labels[chosen]

    def _cut(self, chosen: Tensor, offsets: Tensor, mirrored: Tensor) -> Tensor:
        """Crops, flips and normalises in one pass."""
        from asfedbridge.kernels.crop import cut

        if isinstance(self.x_train, Mapped):
            lines, chosen = _lines(self.x_train[chosen].read()), torch.arange(len(chosen))
        else:
            if self._lines is None:
                self._lines = _lines(self.x_train)
            lines = self._lines
        return cut(lines, chosen, offsets, mirrored, self._scale, self._shift, self.pad)

    def train_batches_plain(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The training images in order, processed like test images."""
        return self._in_order(self.x_train, self.y_train, batch_size)

    def test_batches(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The test images in order, normalised; with "resized-crop+flip", their scaled centres."""
        return self._in_order(self.x_test, self.y_test, batch_size)

    def _in_order(self, x: Images, y: Tensor, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        _check(batch_size)
        parts = batch_slices(len(y), batch_size, "keep")
        return ((self._as_evaluated(read(x[part])), y[part]) for part in parts)

    def _as_evaluated(self, x: Tensor) -> Tensor:
        if self.augment == RESIZED:
            return scale_centres(x, self.size, self._scale, self._shift)
        return self._normalise(x)

    def _normalise(self, x: Tensor) -> Tensor:
        return x.float().mul_(self._scale).add_(self._shift)


def batch_slices(count: int, batch_size: int, short_batch: ShortBatch) -> list[slice]:
    """Splits an epoch over ``count`` examples into batches.

    The last batch holds the remainder. With "merge", a remainder of less than half of ``batch_size`` is merged into the
    previous batch, because BatchNorm statistics of very few examples are too noisy for training.
    """
    starts = list(range(0, count, batch_size))
    if short_batch == "merge" and len(starts) > 1 and 2 * (count - starts[-1]) < batch_size:
        del starts[-1]
    return [slice(start, stop) for start, stop in pairwise([*starts, count])]


def crop(x: Tensor, pad: int, tops: Tensor, lefts: Tensor) -> Tensor:
    """Adds a zero border of `pad` pixels to each image and crops it to the original size at its own offset."""
    height, width = x.shape[2:]
    padded = F.pad(x, (pad, pad, pad, pad))
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # a view: [B, C, top, left, H, W]
    return windows[torch.arange(len(x), device=x.device), :, tops, lefts]


def _lines(x: Tensor) -> Tensor:
    """Converts images to [N, H, W * C]; returns a view if they are stored channels-last."""
    return x.movedim(1, -1).flatten(2)


def make_shards(dataset: Dataset, partition: Partition, augment: str = "auto") -> list[Shard]:
    """One shard per client. "auto" selects the augmentation of the data set."""
    chosen = dataset.augment if augment == "auto" else augment
    return [
        Shard(
            _channels_last(dataset.x_train[train]),
            dataset.y_train[train],
            dataset.x_test[test],
            dataset.y_test[test],
            dataset.mean,
            dataset.std,
            chosen,
            size=dataset.scaled_to,
        )
        for train, test in zip(partition.train, partition.test, strict=True)
    ]


def _channels_last(x: Images) -> Images:
    return x if isinstance(x, Mapped) else x.contiguous(memory_format=torch.channels_last)


def _check(batch_size: int) -> None:
    if batch_size < 1:
        raise BadInput(f"batch_size={batch_size}: give at least 1")
