"""Writes ``tensorboard/``: means over the clients of each kind, the numbers of each client, and hyper-parameters."""

from collections.abc import Sequence
from itertools import groupby

from asfedbridge.core.task import Round
from asfedbridge.runs.callback import Callback, Run
from asfedbridge.runs.callbacks.scalars import flat_spec, round_scalars
from asfedbridge.runs.records import RoundRecord
from asfedbridge.runs.tensorboard import EventFile

FOLDER = "tensorboard"


class TensorBoard(Callback):
    """When a run is resumed, the file is rewritten from the records that are kept."""

    def __init__(self) -> None:
        self._file: EventFile | None = None

    def on_run_begin(self, run: Run) -> None:
        self._file = EventFile(run.path / FOLDER)
        self._file.add_hparams(flat_spec(run.spec))
        for _, records in groupby(run.records, key=lambda r: r["round"]):
            self._add(run, list(records))

    def on_round_end(self, run: Run, rnd: Round, records: Sequence[RoundRecord]) -> None:
        if records:  # a void round has none
            self._add(run, records)
        if rnd.closing:  # before summary.json, which marks the run folder as complete
            assert self._file
            self._file.end_hparams()

    def _add(self, run: Run, records: Sequence[RoundRecord]) -> None:
        assert self._file
        self._file.add(records[0]["round"], round_scalars(run, records))
