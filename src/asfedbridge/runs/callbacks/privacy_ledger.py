"""Writes ``releases.jsonl`` in a differentially private run: the clients whose updates are in each aggregate."""

from collections.abc import Sequence

from asfedbridge.core.task import Round
from asfedbridge.runs.callback import Callback, Run
from asfedbridge.runs.folder import RunFolder
from asfedbridge.runs.records import RoundRecord


class PrivacyLedger(Callback):
    """Must come before all other callbacks: a release counts as soon as anything of its round is stored or sent."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    def on_round_end(self, run: Run, rnd: Round, records: Sequence[RoundRecord]) -> None:
        if not rnd.closing and run.uploads:  # a void round releases nothing
            self._folder.add_release([i for i, up in run.uploads.items() if up.payload])
