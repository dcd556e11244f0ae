"""``diagnostics.jsonl``: which rounds are diagnosed, and the file as analyses and reports read it."""

from pathlib import Path

from asfedbridge.core.task import Round
from asfedbridge.runs.analysis_record import RoundAnalysis, parse_round
from asfedbridge.runs.folder import DIAGNOSTICS, read_diagnostics, read_rounds
from asfedbridge.runs.json_table import JsonTable
from asfedbridge.runs.records import accuracies_after


def diagnosed_rounds(every: int, end: int, total: int) -> list[int]:
    """Those before ``end`` of a run of ``total`` rounds; none if ``every`` is 0."""
    return [i for i in range(end) if every and Round(i, total).due(every)]


def read_course(folder: Path) -> list[RoundAnalysis]:
    """The diagnosed rounds of a run with their accuracies; BadInput names an entry that is wrong."""
    lines = read_diagnostics(folder)
    records = read_rounds(folder) if lines else []
    course = []
    for number, line in enumerate(lines, start=1):
        played = line["round"] + 1
        entries = {**line, "round": played, "point": "trained", "accuracy": accuracies_after(records, played)}
        table = JsonTable(entries, folder / DIAGNOSTICS, "a file of diagnosed rounds", f"line {number}: ")
        course.append(parse_round(table))
    return course
