"""Base class of experiment trackers: every round is logged once, also if the run is resumed."""

import importlib
import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Literal

from asfedbridge.core.errors import BadInput
from asfedbridge.core.reading import parse_json
from asfedbridge.core.task import Round
from asfedbridge.engines.files import is_there, read_file, write_atomic
from asfedbridge.runs.callback import Callback, Run
from asfedbridge.runs.callbacks.scalars import round_scalars
from asfedbridge.runs.records import RoundRecord
from asfedbridge.runs.summary import Summary

Outcome = Literal["finished", "failed", "interrupted"]


class RoundLogger(Callback):
    """Stores the id of the tracker's run and the next round to log in ``NAME.json`` in the run folder.

    A round that is repeated after a resume is not sent again. Rounds played before the callback was added are sent when
    the run begins.
    """

    name: str
    _id = ""  # id of the tracker's run, once it exists
    _next = 0  # the first round that the tracker does not have

    @abstractmethod
    def open(self, run: Run, known: str) -> tuple[str, bool]:
        """Begin a run of the tracker, or continue ``known``. Returns its id, and whether it is ``known``."""

    @abstractmethod
    def log(self, step: int, scalars: Mapping[str, float]) -> None: ...

    @abstractmethod
    def close(self, outcome: Outcome, results: Mapping[str, Any]) -> None:
        """``results``: the numbers of the summary; empty if the run failed."""

    def on_run_begin(self, run: Run) -> None:
        self._file = run.path / f"{self.name}.json"
        known, next_round = self._read()
        self._id, same = self.open(run, known)
        self._next = next_round if same else 0
        for index, records in groupby(run.records, key=lambda r: r["round"]):
            self._send(run, index, list(records))

    def on_round_end(self, run: Run, rnd: Round, records: Sequence[RoundRecord]) -> None:
        self._send(run, rnd.index, records)

    def on_run_end(self, run: Run, summary: Summary) -> None:
        numbers = {f"summary/{key}": v for key, v in summary.items() if isinstance(v, int | float)}
        groups = {f"summary/accuracy/{group}": v for group, v in summary.accuracy.items()}
        self.close("finished", numbers | groups)

    def on_failure(self, run: Run, error: BaseException) -> None:
        if self._id:
            self.close("failed" if isinstance(error, Exception) else "interrupted", {})

    def _send(self, run: Run, index: int, records: Sequence[RoundRecord]) -> None:
        if index >= self._next:
            self.log(index, round_scalars(run, records))
            self._next = index + 1
            write_atomic(self._file, json.dumps({"run": self._id, "next_round": self._next}).encode())

    def _read(self) -> tuple[str, int]:
        if not is_there(self._file):
            return "", 0
        try:
            found = parse_json(read_file(self._file))
            return str(found["run"]), int(found["next_round"])
        except (ValueError, KeyError, TypeError):
            raise BadInput(f"{self._file}: is damaged; remove it to begin a new {self.name} run") from None


def load_package(module: str, extra: str) -> Any:
    """An optional package; BadInput says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise BadInput(
            f"callback {extra} needs the package {module}; install it with: pip install 'asfedbridge[{extra}]'"
        ) from None
