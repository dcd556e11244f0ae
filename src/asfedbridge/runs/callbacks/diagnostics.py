"""Writes ``diagnostics.jsonl`` for ``diagnose_every``: CKA, MMD^2 and gradient cosine between clients."""

from collections.abc import Callable, Mapping, Sequence

from asfedbridge.analysis.diagnostics import compare
from asfedbridge.analysis.pairs import choose_clients
from asfedbridge.core.payload import Payload
from asfedbridge.core.task import Round
from asfedbridge.runs.callback import Callback, Run
from asfedbridge.runs.folder import RunFolder
from asfedbridge.runs.records import RoundRecord

Diagnose = Callable[[Sequence[int]], Mapping[int, Payload]]  # reads features and gradients of these clients


class Diagnostics(Callback):
    """Writes a line for every diagnosed round: every ``every`` rounds and the last one.

    The MMD bandwidth is chosen in the first diagnosed round and kept for the run. A resumed run reads it from the file.
    """

    def __init__(self, folder: RunFolder, every: int, diagnose: Diagnose) -> None:
        self._folder, self._every, self._diagnose = folder, every, diagnose
        self._bandwidth: float | None = None

    def on_run_begin(self, run: Run) -> None:
        done = diagnosed_rounds(self._every, run.next_round, run.spec.rounds)
        lines = self._folder.begin_diagnostics(done)
        self._bandwidth = lines[0]["mmd"]["bandwidth"] if lines else None

    def on_round_end(self, run: Run, rnd: Round, records: Sequence[RoundRecord]) -> None:
        """Clients keep their trained state until the next download, so this may run after aggregation."""
        if rnd.closing or not rnd.due(self._every):
            return
        clients = choose_clients(run.participants)
        found = compare(clients, self._diagnose([c.id for c in clients]), self._bandwidth)
        self._bandwidth = found["mmd"]["bandwidth"]
        self._folder.add_diagnosis({"round": rnd.index, "clients": [c.id for c in clients], **found})


def diagnosed_rounds(every: int, end: int, total: int) -> list[int]:
    """The diagnosed rounds before ``end`` in a run of ``total`` rounds; none if ``every`` is 0."""
    return [i for i in range(end) if every and Round(i, total).due(every)]
