"""Writes ``rounds.jsonl``: one line for each client and round, and for each event."""

from collections.abc import Sequence

from asfedbridge.core.task import Round
from asfedbridge.runs.callback import Callback, Run
from asfedbridge.runs.folder import RunFolder
from asfedbridge.runs.records import EventRecord, RoundRecord


class Recorder(Callback):
    """``sha256``: the checksum of the records in the checkpoint from which the run resumes."""

    def __init__(self, folder: RunFolder, sha256: str = "") -> None:
        self._folder, self._sha256 = folder, sha256

    def on_run_begin(self, run: Run) -> None:
        """Drop the records of rounds that will be repeated."""
        run.records = self._folder.begin(run.next_round, self._sha256)

    def on_round_end(self, run: Run, rnd: Round, records: Sequence[RoundRecord]) -> None:
        self._folder.add_records(records)
        run.records.extend(records)

    def on_event(self, run: Run, event: EventRecord) -> None:
        self._folder.add_records([event])
