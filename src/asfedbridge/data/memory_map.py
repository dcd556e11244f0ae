"""Images in a memory-mapped file, read on demand.

All processes of a machine share its pages, so a data set occupies memory once, for any number of workers.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor


class Mapped:
    """A selection of rows of a uint8 array [N, H, W, C] in a .npy file. ``shape`` is [n, C, H, W].

    Indexing does not read pixels. Pickling stores the file name and the row numbers, not the pixels.
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
        """The pixels [n, C, H, W] in channels-last layout."""
        return torch.from_numpy(np.asarray(self.rows[self.chosen])).movedim(-1, 1)

    def __getstate__(self) -> dict[str, Any]:
        assert self.rows.filename is not None
        return {"path": str(self.rows.filename), "chosen": self.chosen}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(open_rows(Path(state["path"])), state["chosen"])  # type: ignore[misc]


Images = Tensor | Mapped


def open_rows(path: Path) -> np.memmap:
    """Maps a file copy-on-write: torch accepts the array as writable, and the file does not change."""
    rows = np.load(path, mmap_mode="c", allow_pickle=False)
    assert isinstance(rows, np.memmap)
    return rows


def read(images: Images) -> Tensor:
    return images.read() if isinstance(images, Mapped) else images
