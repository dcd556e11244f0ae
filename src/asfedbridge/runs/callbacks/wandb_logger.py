"""Logs a run to Weights & Biases."""

import os
import secrets
from collections.abc import Mapping
from typing import Any

from asfedbridge.core.errors import BadInput
from asfedbridge.runs.callback import Run, register_callback
from asfedbridge.runs.callbacks.round_logger import Outcome, RoundLogger, load_package
from asfedbridge.runs.callbacks.scalars import flat_spec

MODES = ("online", "offline", "disabled")


@register_callback("wandb")
class WandbLogger(RoundLogger):
    """Logs the specification, the numbers of every round and the results to Weights & Biases.

    ``mode`` is online, offline or disabled (default: $WANDB_MODE, else offline). ``name`` is the name of the run
    (default: that of the run folder). Offline data are in ``wandb/`` in the run folder, for ``wandb sync``. The parts
    of a resumed offline run have the same id; syncing them in order makes them one run.
    """

    name = "wandb"

    def __init__(self, project: str = "asfedbridge", mode: str = "", name: str = "") -> None:
        self._library = load_package("wandb", "wandb")
        self._mode = mode or os.environ.get("WANDB_MODE") or "offline"
        if self._mode not in MODES:
            raise BadInput(f"callback wandb: mode={self._mode} must be one of {', '.join(MODES)}")
        self._project, self._run_name = project, name

    def open(self, run: Run, known: str) -> tuple[str, bool]:
        id_ = known or secrets.token_hex(4)
        try:
            self._run = self._library.init(
                project=self._project,
                name=self._run_name or run.path.name,
                id=id_,
                dir=str(run.path.absolute()),
                mode=self._mode,
                resume="allow" if self._mode == "online" else None,
                config=flat_spec(run.spec) | {"specification": run.spec.digest()},
                settings=self._library.Settings(console="off", silent=True),
            )
        except self._library.Error as error:
            raise BadInput(f"callback wandb: cannot start a run with mode={self._mode}: {error}") from None
        return id_, bool(known)

    def log(self, step: int, scalars: Mapping[str, float]) -> None:
        self._run.log(dict(scalars), step=step)

    def close(self, outcome: Outcome, results: Mapping[str, Any]) -> None:
        self._run.summary.update(dict(results))
        self._run.finish(exit_code=0 if outcome == "finished" else 1)
