"""Decoders for the tests of ``decode_cache``, importable by worker processes. As a script, a build that tests kill."""

import os
import sys
import time
from pathlib import Path

import numpy as np

from asfedbridge.core.errors import BadInput
from asfedbridge.data.decode_cache import decoded

SHAPE = (2, 3)


def expected(item: str) -> np.ndarray:
    return np.full(SHAPE, int(item) % 251, np.uint8)


def decode(item: str) -> np.ndarray:
    if int(item) % 1000 == 777:
        raise BadInput(f"recording {item} is cut short: copy it again")
    return expected(item)


def decode_counted(item: str) -> np.ndarray:
    """Appends every item it decodes to the file COUNT_IN."""
    with open(os.environ["COUNT_IN"], "a") as file:
        file.write(f"{item}\n")
    return decode(item)


def decode_slowly(item: str) -> np.ndarray:
    time.sleep(0.004)
    return decode_counted(item)


def decode_wrongly(item: str) -> np.ndarray:
    return np.zeros((3, 3), np.uint8)


if __name__ == "__main__":
    folder, count, workers = sys.argv[1:]
    items = [str(n) for n in range(int(count))]
    rows = decoded(Path(folder), items, decode_slowly, SHAPE, np.uint8, {}, workers=int(workers)).rows
    assert all((row == expected(item)).all() for item, row in zip(items, rows, strict=True))
