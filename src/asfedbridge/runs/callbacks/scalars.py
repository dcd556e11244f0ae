"""Rounds and specifications as flat names and values, for TensorBoard and other trackers."""

from collections.abc import Sequence
from typing import Any

from asfedbridge.runs.callback import Run
from asfedbridge.runs.records import RoundRecord, client_scalars, group_means
from asfedbridge.runs.spec import Spec, to_table

MAX_CLIENTS = 100  # larger fleets have only means: trackers draw a chart for every name


def round_scalars(run: Run, records: Sequence[RoundRecord]) -> dict[str, float]:
    """``trained.accuracy/snn``: the mean over the clients of a kind (or ``all``); ``client/3/trained.accuracy``."""
    scalars = {f"{key}/{group}": v for key, means in group_means(records).items() for group, v in means.items()}
    if len(run.setting.clients) <= MAX_CLIENTS:
        for record in records:
            mine = client_scalars(record)
            scalars |= {f"client/{record['client']}/{key}": value for key, value in mine.items()}
    return scalars


def flat_spec(spec: Spec) -> dict[str, str | float | bool]:
    """The specification with keys as on the command line, such as ``method.bridge_lr``; lists become text."""
    flat: dict[str, Any] = {}
    for key, value in to_table(spec).items():
        flat |= {f"{key}.{k}": v for k, v in value.items()} if isinstance(value, dict) else {key: value}
    return {k: v if isinstance(v, str | int | float) else str(v) for k, v in flat.items()}
