"""One client's data in memory, served as normalised (and, for training, augmented) batches."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from asfedbridge.core.errors import BadInput
from asfedbridge.data.dataset import Dataset
from asfedbridge.data.partition import Partition
from asfedbridge.models.paths import installed

AUGMENTATIONS = ("none", "crop", "crop+flip")


class Shard:
    """One client's uint8 images; batches are float32 [B, C, H, W] with int64 labels."""

    def __init__(
        self,
        x_train: Tensor,
        y_train: Tensor,
        x_test: Tensor,
        y_test: Tensor,
        mean: Sequence[float],
        std: Sequence[float],
        augment: str,
        pad: int | None = None,
    ) -> None:
        """`pad` is the zero border random crops reach into: an eighth of the height (4 of 32) unless given."""
        if augment not in AUGMENTATIONS:
            raise BadInput(f"augment={augment!r} is not known: choose from auto, {', '.join(AUGMENTATIONS)}")
        if pad is not None and pad < 0:
            raise BadInput(f"pad={pad}: give 0 or more pixels")
        self.x_train, self.y_train = x_train, y_train
        self.x_test, self.y_test = x_test, y_test
        self.augment = augment
        self.pad = int(x_train.shape[2]) // 8 if pad is None else pad
        # (x / 255 - mean) / std as one multiply-add.
        centre, spread = (torch.tensor(v, dtype=torch.float64).view(1, -1, 1, 1) for v in (mean, std))
        self._scale = (1 / (255 * spread)).float()
        self._shift = (-centre / spread).float()
        self._lines: Tensor | None = None  # the training images as machine code wants them, once it is used

    def __getstate__(self) -> dict[str, Any]:
        """As arrays: multiprocessing sends tensors through /dev/shm, where containers have little room."""
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

    def batches(self, batch_size: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """One shuffled, augmented epoch; a short last batch is kept.

        The whole epoch is drawn on the call itself (permutation, crop offsets, flips), so what a consumer does between
        batches, or the batch size, changes neither the images nor the generator's state afterwards.
        """
        _check(batch_size)
        count = self.train_size
        order = torch.randperm(count, generator=generator)
        offsets = flips = None
        if self.augment != "none":
            offsets = torch.randint(0, 2 * self.pad + 1, (2, count), generator=generator)
        if self.augment == "crop+flip":
            flips = torch.rand(count, generator=generator) < 0.5
        return self._epoch(batch_size, order, offsets, flips)

    def _epoch(
        self, batch_size: int, order: Tensor, offsets: Tensor | None, flips: Tensor | None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        machine_code = installed("numba")
        for start in range(0, len(order), batch_size):
            part = slice(start, start + batch_size)
            chosen = order[part]
            if machine_code and offsets is not None:
                from asfedbridge.data.augment import cut

                if self._lines is None:  # a view where images are stored channels-last
                    self._lines = self.x_train.movedim(1, -1).flatten(2)
                mirrored = torch.zeros(len(chosen), dtype=torch.bool) if flips is None else flips[part]
                x = cut(self._lines, chosen, offsets[:, part], mirrored, self._scale, self._shift, self.pad)
            else:
                x = self._normalise(self._shift_and_flip(chosen, part, offsets, flips))
            yield x, self.y_train[chosen]

    def _shift_and_flip(self, chosen: Tensor, part: slice, offsets: Tensor | None, flips: Tensor | None) -> Tensor:
        x = self.x_train[chosen]
        if offsets is not None:
            x = crop(x, self.pad, offsets[0, part], offsets[1, part])
        if flips is not None:
            x = torch.where(flips[part].view(-1, 1, 1, 1), x.flip(3), x)
        return x

    def train_batches_plain(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The training images in order, only normalised."""
        return self._in_order(self.x_train, self.y_train, batch_size)

    def test_batches(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The test images in order, only normalised."""
        return self._in_order(self.x_test, self.y_test, batch_size)

    def _in_order(self, x: Tensor, y: Tensor, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        _check(batch_size)
        parts = (slice(start, start + batch_size) for start in range(0, len(y), batch_size))
        return ((self._normalise(x[part]), y[part]) for part in parts)

    def _normalise(self, x: Tensor) -> Tensor:
        return x.float().mul_(self._scale).add_(self._shift)


def crop(x: Tensor, pad: int, tops: Tensor, lefts: Tensor) -> Tensor:
    """Put a zero border of `pad` around each image and cut its own window of the original size out of it."""
    height, width = x.shape[2:]
    padded = F.pad(x, (pad, pad, pad, pad))
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # a view: [B, C, top, left, H, W]
    return windows[torch.arange(len(x)), :, tops, lefts]


def make_shards(dataset: Dataset, partition: Partition, augment: str = "auto") -> list[Shard]:
    """One shard per client; "auto" takes the augmentation the data set asks for."""
    chosen = dataset.augment if augment == "auto" else augment
    return [
        Shard(
            dataset.x_train[train].contiguous(memory_format=torch.channels_last),
            dataset.y_train[train],
            dataset.x_test[test],
            dataset.y_test[test],
            dataset.mean,
            dataset.std,
            chosen,
        )
        for train, test in zip(partition.train, partition.test, strict=True)
    ]


def _check(batch_size: int) -> None:
    if batch_size < 1:
        raise BadInput(f"batch_size={batch_size}: give at least 1")
