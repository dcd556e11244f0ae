"""Images that stay on disk: rows of a memory-mapped file, read when their pixels are wanted.

All processes of a machine see the same pages, so a set takes its room once, however many workers there are.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor


class Mapped:
    """Some rows of a uint8 array [N, H, W, C] in a .npy file, in any order; ``shape`` is that of images, [n, C, H, W].

    Taking rows of it reads nothing, and another process gets the file's name and the rows' numbers, not the pixels.
    """

    def __init__(self, rows: np.memmap, chosen: np.ndarray | None = None) -> None:
        self.rows = rows
        self.chosen = np.arange(len(rows)) if chosen is None else chosen

    @property
    def shape(self) -> tuple[int, int, int, int]:
        _, height, width, channels = self.rows.shape
        return len(self.chosen), channels, height, width

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, rows: Tensor | np.ndarray | slice) -> "Mapped":
        return Mapped(self.rows, self.chosen[rows if isinstance(rows, slice) else np.asarray(rows)])

    def read(self) -> Tensor:
        """The pixels, channels innermost in memory."""
        return torch.from_numpy(np.asarray(self.rows[self.chosen])).movedim(-1, 1)

    def __getstate__(self) -> dict[str, Any]:
        assert self.rows.filename is not None
        return {"path": str(self.rows.filename), "chosen": self.chosen}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(open_rows(Path(state["path"])), state["chosen"])  # type: ignore[misc]


Images = Tensor | Mapped


def open_rows(path: Path) -> np.memmap:
    """Copy-on-write: tensors may be made of it, and the file never changes."""
    rows = np.load(path, mmap_mode="c", allow_pickle=False)
    assert isinstance(rows, np.memmap)
    return rows


def read(images: Images) -> Tensor:
    return images.read() if isinstance(images, Mapped) else images
