"""Writes ``tensorboard/``: means over the clients of each kind, every client's own numbers, and hyper-parameters."""

from collections.abc import Sequence
from itertools import groupby

from asfedbridge.core.task import Round
from asfedbridge.runs.callback import Callback, Run
from asfedbridge.runs.callbacks.scalars import flat_spec, round_scalars
from asfedbridge.runs.records import RoundRecord
from asfedbridge.runs.summary import Summary
from asfedbridge.runs.tensorboard import EventFile

FOLDER = "tensorboard"


class TensorBoard(Callback):
    """The file is written anew when a run is resumed, from the records of the rounds that are kept."""

    def __init__(self) -> None:
        self._file: EventFile | None = None

    def on_run_begin(self, run: Run) -> None:
        self._file = EventFile(run.path / FOLDER)
        self._file.add_hparams(flat_spec(run.spec))
        for _, records in groupby(run.records, key=lambda r: r["round"]):
            self._add(run, list(records))

    def on_round_end(self, run: Run, rnd: Round, records: Sequence[RoundRecord]) -> None:
        self._add(run, records)

    def on_run_end(self, run: Run, summary: Summary) -> None:
        assert self._file
        self._file.end_hparams()

    def _add(self, run: Run, records: Sequence[RoundRecord]) -> None:
        assert self._file
        self._file.add(records[0]["round"], round_scalars(run, records))
