"""The values of ``partition=``.

- ``iid``: random shards of equal size.
- ``dirichlet``: label skew; each class is distributed by its own Dirichlet(alpha) draw.
- ``classes:K``: label skew; every client has K classes (McMahan et al., AISTATS 2017).
- ``quantity:BETA``: shards of unequal sizes, drawn from Dirichlet(BETA), with the same label distribution.
- ``assigned``: the assignment in the data set.
- ``flwr:NAME(key=value,...)``: a partitioner of the package flwr-datasets.
"""

import math

import numpy as np

from asfedbridge.core.errors import BadInput, nearest
from asfedbridge.data.apportion import Labels
from asfedbridge.data.partition import Partition
from asfedbridge.data.partitioners import Assigned, by_assignment, by_classes, by_quantity, dirichlet, follow, iid

FORMS = ("iid", "dirichlet", "classes:K", "quantity:BETA", "assigned", "flwr:NAME(key=value,...)")


def check_partition(text: str) -> tuple[str, str]:
    """Splits the value of partition= into kind and argument. Raises BadInput if it has none of the ``FORMS``."""
    kind, colon, argument = text.partition(":")
    if kind not in {form.partition(":")[0] for form in FORMS}:
        raise BadInput(f"partition={text}: unknown choice{nearest(text, FORMS)}")
    if (kind in ("iid", "dirichlet", "assigned")) == bool(colon):
        form = next(form for form in FORMS if form.startswith(kind))
        raise BadInput(f"partition={text}: write {form}")
    if kind == "classes" and not (argument.isdecimal() and len(argument) <= 9 and int(argument) > 0):
        raise BadInput(f"partition={text}: write classes:K with an integer K above 0, e.g. classes:2")
    if kind == "quantity":
        try:
            beta = float(argument)
        except ValueError:
            beta = math.nan
        if not 1e-3 <= beta <= 1e6:
            raise BadInput(f"partition={text}: write quantity:BETA with a number from 0.001 to 1e6, e.g. quantity:0.5")
    if kind == "flwr":
        from asfedbridge.data.flwr_partitioner import parse_call

        parse_call(text, argument)
    return kind, argument


def describe_partition(text: str, alpha: float, dirichlet: str = "Dirichlet") -> str:
    """A short description for tables."""
    return f"{dirichlet}({alpha:g})" if text == "dirichlet" else text


def split(
    kind: str,
    y_train: Labels,
    y_test: Labels,
    clients: int,
    seed: int,
    alpha: float = 0.5,
    minimum: int = 10,
    assigned: Assigned | None = None,
) -> Partition:
    """Makes the partition that ``kind``, a value of partition=, describes.

    `alpha` is used by "dirichlet", `minimum` by "dirichlet" and "quantity", `assigned` (the data set's own) by
    "assigned".
    """
    name, argument = check_partition(kind)
    if name == "iid":
        return iid(y_train, y_test, clients, seed)
    if name == "dirichlet":
        return dirichlet(y_train, y_test, clients, alpha, seed, minimum)
    if name == "classes":
        return by_classes(y_train, y_test, clients, int(argument), seed)
    if name == "quantity":
        return by_quantity(y_train, y_test, clients, float(argument), seed, minimum)
    if name == "assigned":
        return by_assignment(y_train, y_test, clients, assigned, seed)
    from asfedbridge.data.flwr_partitioner import run_partitioner

    shards = run_partitioner(kind, argument, np.asarray(y_train), clients, seed)
    return follow(f"partition={kind}", shards, y_train, y_test, seed)
