"""Ends a run when a number stops improving."""

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Literal

from asfedbridge.core.errors import BadInput, nearest
from asfedbridge.core.task import Round
from asfedbridge.runs.callback import Callback, Run, register_callback
from asfedbridge.runs.records import RoundRecord, group_means


@register_callback("early-stopping")
class EarlyStopping(Callback):
    """Stops when ``metric`` has not improved by more than ``min_delta`` in ``patience`` evaluated rounds.

    ``metric`` is a number of the records, averaged over the clients of a round: ``accuracy`` (at the method's
    evaluation point), ``trained.accuracy``, a loss, ... Rounds without it do not count. ``mode="min"`` is for numbers
    that should decrease. A resumed run stops in the same round: the state is computed from the records.
    """

    def __init__(
        self,
        metric: str = "accuracy",
        patience: int = 10,
        min_delta: float = 0.0,
        mode: Literal["max", "min"] = "max",
    ) -> None:
        if type(patience) is not int or patience < 1:
            raise BadInput(f"early-stopping: patience={patience} must be a whole number of rounds, 1 or more")
        if isinstance(min_delta, bool) or not isinstance(min_delta, int | float) or not 0 <= min_delta < math.inf:
            raise BadInput(f"early-stopping: min_delta={min_delta} must be a number, 0 or more")
        if mode not in ("max", "min"):
            raise BadInput(f"early-stopping: mode={mode} must be max or min")
        if not isinstance(metric, str) or not metric:
            raise BadInput(f"early-stopping: metric={metric} must be the name of a number in rounds.jsonl")
        self.metric, self.patience, self.min_delta, self.mode = metric, patience, min_delta, mode
        self.best: float | None = None
        self.waited = 0  # evaluated rounds since the best one

    def on_run_begin(self, run: Run) -> None:
        self.best, self.waited = None, 0
        for _, records in groupby(run.records, key=lambda r: r["round"]):
            self._observe(run, list(records))

    def on_round_end(self, run: Run, rnd: Round, records: Sequence[RoundRecord]) -> None:
        if not rnd.closing:
            self._observe(run, records)

    def _observe(self, run: Run, records: Sequence[RoundRecord]) -> None:
        key = f"{run.spec.method.reports}.accuracy" if self.metric == "accuracy" else self.metric
        found = group_means(records)
        if key not in found:
            evaluated = any(name.endswith(".accuracy") for name in found)
            if evaluated and self.metric != "accuracy":
                raise BadInput(f"early-stopping: metric={self.metric} is not in the records{nearest(key, found)}")
            return
        value = found[key]["all"]
        gain = 0.0 if self.best is None else value - self.best if self.mode == "max" else self.best - value
        if self.best is None or gain > self.min_delta:
            self.best, self.waited = value, 0
            return
        self.waited += 1
        if self.waited >= self.patience:
            run.stop(
                f"{self.metric} has not improved on {self.best:.4g} by more than {self.min_delta:g} "
                f"in {self.waited} evaluated rounds"
            )
