"""Whether bytes hold a piece of some data: every slice of it is looked for at every place, aligned or not."""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

SLICE = 32  # bytes
WORD = 8  # of a slice, by which it is looked up first
FEWEST = 6  # different 4-byte words in a slice that can be told from chance: not zeros, not a constant


def slices(*contents: bytes) -> np.ndarray:
    """The slices of all contents that tell something, [count, SLICE]."""
    whole = [np.frombuffer(c, np.uint8)[: len(c) // SLICE * SLICE].reshape(-1, SLICE) for c in contents]
    found = np.concatenate([np.zeros((0, SLICE), np.uint8), *whole])
    words = np.sort(found.view(np.uint32), axis=1)
    return np.unique(found[(np.diff(words, axis=1) != 0).sum(axis=1) + 1 >= FEWEST], axis=0)


def tensor_slices(tensors: Iterable[Tensor]) -> np.ndarray:
    """Of floating-point tensors as they are, and rounded to half."""
    kept = [t.detach().contiguous() for t in tensors if t.is_floating_point()]
    return slices(*(t.to(kind).numpy().tobytes() for t in kept for kind in (torch.float32, torch.float16)))


def count_found(needles: np.ndarray, hay: bytes) -> int:
    """How many of the slices are somewhere in ``hay``."""
    if not len(needles) or len(hay) < SLICE:
        return 0
    keys = needles[:, :WORD].copy().view(np.uint64).ravel()
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    places = np.frombuffer(hay, np.uint8)
    found: set[int] = set()
    for shift in range(WORD):
        count = (len(hay) - shift) // WORD
        words = places[shift : shift + count * WORD].view(np.uint64)
        index = np.searchsorted(keys, words).clip(max=len(keys) - 1)
        for hit in np.flatnonzero(keys[index] == words):
            start = shift + int(hit) * WORD
            here = hay[start : start + SLICE]
            k = int(index[hit])
            while k < len(keys) and keys[k] == words[hit]:
                if needles[order[k]].tobytes() == here:
                    found.add(int(order[k]))
                k += 1
    return len(found)
