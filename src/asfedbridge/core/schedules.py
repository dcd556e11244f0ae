"""Schedules over the rounds of a run."""

import math

Ramp = tuple[float, float]  # value in the first round, value in the last


def cosine(start: float, index: int, total: int) -> float:
    """Cosine decay, constant within a round: start/2 (1 + cos(pi r / R)) in round r = ``index`` of R = ``total``."""
    return start / 2 * (1 + math.cos(math.pi * index / total))


def ramp(ends: Ramp, index: int, total: int) -> float:
    """Linear interpolation from the first round's value to the last round's."""
    first, last = ends
    return first if total <= 1 else first + (last - first) * index / (total - 1)
