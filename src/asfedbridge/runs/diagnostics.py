"""``diagnose_every``: CKA, MMD^2 and gradient cosine between clients while a run goes on, in ``diagnostics.jsonl``."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from asfedbridge.analysis.diagnostics import compare
from asfedbridge.analysis.pairs import choose_clients
from asfedbridge.core.payload import Payload
from asfedbridge.core.protocol import ClientInfo, Round
from asfedbridge.runs.folder import RunFolder, read_diagnostics, read_rounds
from asfedbridge.runs.records import accuracies_after

Diagnose = Callable[[Sequence[int]], Mapping[int, Payload]]  # reads these clients where they live


def diagnosed_rounds(every: int, end: int, total: int) -> list[int]:
    """Those before ``end`` of a run of ``total`` rounds; none if ``every`` is 0."""
    return [i for i in range(end) if every and Round(i, total).due(every)]


class Diagnostics:
    """Writes a line for every diagnosed round: every ``every`` rounds and the last one.

    The MMD bandwidth is chosen in the first diagnosed round and kept for the run. A resumed run takes it from the file.
    """

    def __init__(self, folder: RunFolder, every: int, start: Round, diagnose: Diagnose) -> None:
        self._folder, self._every, self._diagnose = folder, every, diagnose
        lines = folder.begin_diagnostics(diagnosed_rounds(every, start.index, start.total))
        self._bandwidth: float | None = lines[0]["mmd"]["bandwidth"] if lines else None

    def after_training(self, rnd: Round, participants: Sequence[ClientInfo]) -> None:
        """Clients keep their trained state until the next download, so aggregation may have run already."""
        if rnd.closing or not rnd.due(self._every):
            return
        clients = choose_clients(participants)
        found = compare(clients, self._diagnose([c.id for c in clients]), self._bandwidth)
        self._bandwidth = found["mmd"]["bandwidth"]
        self._folder.add_diagnosis({"round": rnd.index, "clients": [c.id for c in clients], **found})


def read_course(folder: Path) -> list[dict[str, Any]]:
    """The diagnosed rounds of a run with their accuracies, in the layout of ``by_round`` in ``analysis.json``."""
    lines = read_diagnostics(folder)
    records = read_rounds(folder) if lines else []
    course = []
    for line in lines:
        played = line["round"] + 1
        course.append(line | {"round": played, "point": "trained", "accuracy": accuracies_after(records, played)})
    return course
