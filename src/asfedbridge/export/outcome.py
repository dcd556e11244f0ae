"""The result of running an exported file in another runtime."""

from typing import NamedTuple

from torch import Tensor

TOLERANCE = 1e-5  # relative to the largest logit, at least 1: float32 has seven digits


class Outcome(NamedTuple):
    """The result of one runtime."""

    difference: float | None  # the largest difference in logits; None: it did not run
    note: str = ""  # why it did not run, or why the difference means little

    largest: float = 1.0  # logit, at least 1

    @property
    def mismatch(self) -> bool:
        return self.difference is not None and not self.difference <= TOLERANCE * self.largest


def compare(logits: Tensor, expected: Tensor, note: str = "") -> Outcome:
    return Outcome((logits - expected).abs().max().item(), note, max(1.0, expected.abs().max().item()))
