"""The norm guard: sizes of payloads, and which uploads of a round are suspiciously large.

Sizes are root mean squares, so they do not depend on the number of classes, layers or channels. For an upload that
continues its download the update (upload - download) is measured, for any other the values themselves.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from asfedbridge.core.errors import Diverged
from asfedbridge.core.payload import Payload

SMALL_UPDATE = 0.01  # fraction of the download's size that is always an acceptable update
SLOW_GROWTH = 1.01  # of a state in one round, where it is larger than the guard permits
DEFAULT_SIZE = 1.0  # used where there is nothing to compare with; values of this size are always acceptable


class Size(NamedTuple):
    """The size of an upload, and reference sizes so that no client is refused because others sent values near zero."""

    own: float
    usual: float  # lower bound of the reference in a round of several clients
    alone: float  # reference in a round of one client


def rms(tensors: Mapping[str, Tensor]) -> float:
    """Root mean square over all floating-point values; 0 if there are none."""
    found = [t for t in tensors.values() if t.is_floating_point()]
    squares = [torch.linalg.vector_norm(t, dtype=torch.float64).item() ** 2 for t in found]
    return math.sqrt(math.fsum(squares) / max(sum(t.numel() for t in found), 1))


def measure(up: Payload, known: Payload, continues: bool) -> Size:
    """Measure an upload; ``known`` is the download, or other tensors of typical size (``Method.compared_with``)."""
    before = rms(known) or DEFAULT_SIZE
    if continues and (common := [name for name in up if name in known]):
        update = {name: up[name].double() - known[name].double() for name in common}
        return Size(rms(update), SMALL_UPDATE * before, before)
    values = {name: t for name, t in up.items() if t.dim()}  # without scalars: they are counts
    # Limited, because clients choose the next download: otherwise it could grow by this factor in every round.
    return Size(rms(values), min(before, DEFAULT_SIZE), before)


def ratios(sizes: Mapping[int, Size]) -> dict[int, float]:
    """The size of each upload divided by the round's median, or by its ``usual`` size if that is larger.

    Uploads of zeros (prototypes of an SNN that does not fire) are left out of the median. For an even number of uploads
    the lower of the two middle ones is used, so oversized uploads from half of the clients do not raise the median.
    """
    if len(sizes) < 2:
        return {i: size.own / size.alone for i, size in sizes.items()}
    own = sorted(size.own for size in sizes.values() if size.own)
    median = own[(len(own) - 1) // 2] if own else 0.0
    return {i: size.own / max(median, size.usual) for i, size in sizes.items()}


def check_state(
    after: Payload, before: Payload, ups: Sequence[Payload], most: float, what: str, origin: float = 0.0
) -> None:
    """Raise Diverged unless the server's next state is finite and at most ``most`` times as large as ``before``, values
    of 1, or the median upload, whichever is largest. ``most`` = 0 disables the size check.

    ``origin``, the size of an initial state, takes the place of ``before``: otherwise clients that stay below the bound
    could enlarge the state without limit, by a little in every round. A state that is that large already may grow
    slowly, so that honest clients are not refused for what others did.
    """
    for name, tensor in after.items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise Diverged(f"{what}: '{name}' of the server's next state holds NaN or infinity")
    sizes, last, size = sorted(rms(up) for up in ups), rms(before), rms(after)
    usual = max(origin or last, DEFAULT_SIZE, sizes[(len(sizes) - 1) // 2] if sizes else 0.0)
    if most and size > most * usual and size > SLOW_GROWTH * last:
        raise Diverged(
            f"{what}: the server's next state is {size / usual:.3g} times as large as "
            f"{'the first' if origin else 'the last'} one (norm_guard={most:g})"
        )
