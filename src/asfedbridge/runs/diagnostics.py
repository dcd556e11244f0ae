"""``diagnostics.jsonl``: which rounds are diagnosed, and the file as analyses and reports read it."""

from pathlib import Path
from typing import Any

from asfedbridge.core.task import Round
from asfedbridge.runs.folder import read_diagnostics, read_rounds
from asfedbridge.runs.records import accuracies_after


def diagnosed_rounds(every: int, end: int, total: int) -> list[int]:
    """Those before ``end`` of a run of ``total`` rounds; none if ``every`` is 0."""
    return [i for i in range(end) if every and Round(i, total).due(every)]


def read_course(folder: Path) -> list[dict[str, Any]]:
    """The diagnosed rounds of a run with their accuracies, in the layout of ``by_round`` in ``analysis.json``."""
    lines = read_diagnostics(folder)
    records = read_rounds(folder) if lines else []
    course = []
    for line in lines:
        played = line["round"] + 1
        course.append({**line, "round": played, "point": "trained", "accuracy": accuracies_after(records, played)})
    return course
