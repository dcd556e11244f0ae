"""One run on the page: its results, figures, clients, costs, specification, environment and command."""

import json
import shlex
from collections.abc import Sequence
from typing import Any

from asfedbridge.core import table_columns
from asfedbridge.report.analysis_figures import analyses, courses
from asfedbridge.report.charts import group_name
from asfedbridge.report.cost_tables import method_rows, model_rows, of_clients
from asfedbridge.report.evaluation_figures import evaluated
from asfedbridge.report.html_tables import folded, table
from asfedbridge.report.markup import Child, Markup, join, tag
from asfedbridge.report.run_figures import MAX_CLIENTS, accuracy_figures, loss_figures, shards, traffic
from asfedbridge.report.runs import Run, Table
from asfedbridge.report.statistics import worst_tenth
from asfedbridge.report.tables import Rows, client_rows, decimals
from asfedbridge.runs import ClientSummary, CostTable, EventRecord, Summary

MAX_EVENTS = 100  # rows of the table of client events
FACTS = ("fleet", "T", "rounds", "epochs", "batch_size", "participation", "holdout", "image_size", "train_per_class")


def run_section(run: Run, max_points: int, drawn: dict[str, str]) -> Markup:
    """A run without its heading and results. ``drawn``: the pictures already on the page, and their ids."""
    figures = [
        *accuracy_figures(run, max_points),
        *loss_figures(run, max_points),
        *courses(run.course, max_points),
        shards(run, drawn),
        traffic(run, max_points),
        *analyses(run.analysis),
    ]
    stop = run.summary.stopped_early
    state = "Stopped early, after" if run.finished else "Not finished:"
    stopped = [f"{state} {run.summary.course} rounds{stop.reason and f': {stop.reason}'}"] if stop else []
    notes = [tag("p", note, class_="note") for note in (*stopped, *run.summary.notes)]
    facts = "; ".join(f"{key} {run.fields[key]}" for key in FACTS if run.fields.get(key))
    return join(
        tag("p", facts, class_="quiet") if facts else None,
        notes,
        tag("div", figures, class_="figures"),
        _clients(run.summary) if run.finished else None,
        failures(run.events),
        costs(run.costs, run.summary.clients),
        evaluated(run.evaluation),
        tag("h4", "Reproduce this run"),
        _commands(run),
        folded("Specification", tag("pre", run.specification)) if run.specification else None,
        folded("Environment", table(_environment(run.environment))) if run.environment else None,
        tag("p", "Run folder: ", tag("code", str(run.folder)), class_="quiet"),
    )


def failures(events: Sequence[EventRecord]) -> Markup | None:
    """Clients that were absent, failed or were refused: how often, when, and the last reason."""
    groups: dict[tuple[int, str], list[EventRecord]] = {}
    for event in events:
        groups.setdefault((-1 if event.client is None else event.client, event.event), []).append(event)
    if not groups:
        return None
    rows = [["client", "event", "times", "first round", "last round", "last reason"]]
    for (_, what), found in sorted(groups.items())[:MAX_EVENTS]:
        name = found[0].subject.removeprefix("client ")
        rounds = [str(found[0].round), str(found[-1].round)]
        rows.append([name, what, str(len(found)), *rounds, found[-1].reason])
    return join(tag("h4", "Client events"), table(rows))


def costs(found: CostTable | None, clients: Sequence[ClientSummary]) -> Markup | None:
    """The tables of `asfedbridge costs` for the models of this run, if the run folder has its JSON output."""
    if found is None:
        return None
    return join(
        tag("h4", "Costs: one example forward"),
        table(model_rows(of_clients(found, clients))),
        tag("h4", "Costs: payload and training of one example in a round"),
        table(method_rows(found)),
    )


def _clients(summary: Summary) -> Markup:
    count = len(summary.clients)
    return join(
        tag("h4", "Clients"),
        tag("p", f"The first {MAX_CLIENTS} of {count}.", class_="quiet") if count > MAX_CLIENTS else None,
        table(client_rows(summary)[: MAX_CLIENTS + 1]),
    )


def _commands(run: Run) -> Child:
    imports = run.environment.get("imports")
    plugins = [word for file in (imports if isinstance(imports, list) else ()) for word in ("--import", str(file))]
    again = f"{shlex.join(['asfedbridge', 'run', str(run.folder / 'spec.toml'), *plugins])} --out NEW_FOLDER"
    words = run.environment.get("command")
    typed = shlex.join(["asfedbridge", *map(str, words[1:])]) if isinstance(words, list) and words else ""
    return [
        tag("pre", again) if run.specification else None,
        tag("p", "Original command: ", tag("code", typed), class_="quiet") if typed else None,
    ]


def _environment(environment: Table) -> Rows:
    def text(value: Any) -> str:
        return value if isinstance(value, str) else json.dumps(value)

    separate = ("command", "starts")  # the command is shown above, starts after the first one below
    shown = {key: text(value) for key, value in environment.items() if key not in separate}
    starts = environment.get("starts")
    later = [start for start in starts[1:] if isinstance(start, dict)] if isinstance(starts, list) else []
    for start in later:
        place = f"resumed after round {text(start.get('next_round'))}"
        shown[place] = ", ".join(
            text(start.get(key)) for key in ("time", "machine", "asfedbridge", "torch", "platform")
        )
    return [["", "value"], *([key, value] for key, value in shown.items())]


def result_rows(run: Run) -> Rows:
    """The run's accuracies by group after its last round, at its best and of its worst clients, beside the paper's."""
    summary, theirs = run.summary, run.reported
    ours = summary.accuracy
    groups = [*ours, *(g for g in theirs if g not in ours)]
    rows = [["", *map(group_name, groups)], ["last round", *(decimals(ours.get(g)) for g in groups)]]
    if theirs:
        rows.append(["paper", *(decimals(theirs.get(g)) for g in groups)])
        both = [(ours.get(g), theirs.get(g)) for g in groups]
        rows.append(["difference", *("-" if a is None or b is None else f"{a - b:+.2f}" for a, b in both)])
    best = summary.best or {}
    played = f" ({best['round'] + (summary.point == 'trained'):.0f})" if "round" in best else ""
    beside = {f"best round{played}": best, "worst tenth of the clients": worst_tenth(summary.clients)}
    beside |= {column.about: summary.added.get(key, {}) for key, column in table_columns().items()}
    rows += [[name, *(decimals(means.get(g)) for g in groups)] for name, means in beside.items() if means]
    return rows
