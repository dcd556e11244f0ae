"""Writes ``releases.jsonl`` in a differentially private run: whose updates are in which aggregate."""

from collections.abc import Sequence

from asfedbridge.core.task import Round
from asfedbridge.runs.callback import Callback, Run
from asfedbridge.runs.folder import RunFolder
from asfedbridge.runs.records import RoundRecord


class PrivacyLedger(Callback):
    """Comes before all other callbacks: a release counts as soon as anything of its round is kept or sent."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    def on_round_end(self, run: Run, rnd: Round, records: Sequence[RoundRecord]) -> None:
        if not rnd.closing:
            self._folder.add_release([i for i, up in run.uploads.items() if up.payload])
