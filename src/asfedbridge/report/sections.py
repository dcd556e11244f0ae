"""One run on the page: its curves, shards, analyses, clients, specification, environment and command."""

import json
import re
import shlex
from collections.abc import Sequence
from typing import Any

from asfedbridge.core import MB, table_columns
from asfedbridge.report.analysis_figures import analyses, courses
from asfedbridge.report.charts import Line, figure, group_name, key_of, line_chart, name_clients, thin
from asfedbridge.report.cost_tables import method_rows, model_rows
from asfedbridge.report.markup import Child, Markup, join, tag
from asfedbridge.report.palette import GROUPS, cycle, of_clients
from asfedbridge.report.pictures import refer, shard_picture
from asfedbridge.report.runs import Run, Table
from asfedbridge.report.tables import Rows, Titled, client_rows, decimals
from asfedbridge.runs import CostTable

MOST_CLIENTS = 40  # drawn and listed; a fleet of thousands is not readable one by one
LONG = 40  # letters of a cell
FACTS = ("fleet", "T", "rounds", "epochs", "batch_size", "participation", "holdout", "image_size", "train_per_class")
POINTS = {"trained": "after local training", "received": "as received, before local training"}


def table(rows: Rows) -> Markup:
    """The first row is the head, the first column names the rows; the table scrolls alone where it is too wide."""
    sides = text_columns(rows)
    head = tag("tr", [tag("th", cell, scope="col", class_=side) for cell, side in zip(rows[0], sides, strict=True)])
    body = [tag("tr", tag("th", row[0], scope="row"), cells(row, sides)) for row in rows[1:]]
    return tag("div", tag("table", tag("thead", head), tag("tbody", body)), class_="scroll", tabindex="0")


def titled_table(one: Titled, level: str = "h2") -> Markup:
    return join(
        tag(level, one.title) if one.title else None,
        table(one.rows),
        tag("p", one.note, class_="quiet") if one.note else None,
    )


def text_columns(rows: Rows) -> list[str | None]:
    """The class of each column: words stand to the left, numbers to the right."""
    return [
        None if all(re.match(r"[-+]?[\d.,]+( ± | \[|$)|-?$", row[i]) for row in rows[1:]) else "text"
        for i in range(len(rows[0]))
    ]


def cells(row: Sequence[str], sides: Sequence[str | None]) -> list[Markup]:
    """All cells but the first; long words are cut on the page and whole under the pointer."""
    return [
        tag("td", cell, class_=side, title=cell if len(cell) > LONG else None)
        for cell, side in zip(row[1:], sides[1:], strict=True)
    ]


def run_section(run: Run, most: int, drawn: dict[str, str]) -> Markup:
    """All of a run but its head; curves have at most so many points. ``drawn``: ids of pictures that are there."""
    figures = [
        *accuracy_figures(run, most),
        *courses(run.course, most),
        shards(run, drawn),
        traffic(run, most),
        *analyses(run.analysis),
    ]
    notes = [tag("p", note, class_="note") for note in run.summary.notes]
    facts = "; ".join(f"{key} {run.fields[key]}" for key in FACTS if run.fields.get(key))
    return join(
        tag("p", facts, class_="quiet") if facts else None,
        notes,
        tag("div", figures, class_="figures"),
        tag("h4", "Clients"),
        _first(len(run.summary.clients)),
        table(client_rows(run.summary)[: MOST_CLIENTS + 1]),
        costs(run.costs),
        tag("h4", "Make it again"),
        _commands(run),
        _folded("Specification", tag("pre", run.specification)) if run.specification else None,
        _folded("Environment", table(_environment(run.environment))) if run.environment else None,
        tag("p", "Run folder: ", tag("code", str(run.folder)), class_="quiet"),
    )


def accuracy_figures(run: Run, most: int) -> list[Markup | None]:
    curves, point = run.curves, run.summary.point
    lines = [Line(group_name(g), thin(p, most), GROUPS.get(g, cycle(5))) for g, p in curves.groups.items()]
    titles = {key: column.title for key, column in table_columns().items()}
    lines += [Line(titles[k], thin(p, most), GROUPS.get(k, cycle(3))) for k, p in curves.added.items()]
    kinds = {c.id: c.kind for c in run.summary.clients}
    some = sorted(curves.clients.items())[:MOST_CLIENTS]
    ours = [
        Line(f"client {client}, {kinds[client].upper()}", thin(points, most), style)
        for (client, points), style in zip(some, of_clients([kinds[c] for c, _ in some]), strict=True)
    ]
    caption = f"accuracy in % {POINTS.get(point, point)}"
    shown = f"{MOST_CLIENTS} of {len(curves.clients)} clients, " if len(curves.clients) > MOST_CLIENTS else ""
    return [
        figure(f"Groups: mean {caption}", line_chart(lines, "rounds", "accuracy of groups"), key_of(lines)),
        figure(f"Clients: {shown}{caption}", line_chart(ours, "rounds", "accuracy of clients"), key_of(ours)),
    ]


def shards(run: Run, drawn: dict[str, str]) -> Markup | None:
    """Runs on the same shards share one picture."""
    clients = run.summary.clients[:MOST_CLIENTS]
    if not clients or not all(c.labels for c in clients):
        return None  # a run of an earlier version
    picture = shard_picture(
        [c.labels for c in clients],
        name_clients([(c.id, c.kind) for c in clients]),
        "training images by client and class",
    )
    name = drawn.get(picture)
    if name is None:
        drawn[picture] = name = f"shards-{len(drawn)}"
        picture = Markup(picture.replace("<svg", f'<svg id="{name}"', 1))
    else:
        picture = refer(picture, name)
    return figure("Shards: training images of each client (rows) and class (columns)", picture)


def traffic(run: Run, most: int) -> Markup | None:
    styles = {"up": GROUPS["ann"], "down": GROUPS["snn"]}
    lines = [Line(d, thin(p, most), styles[d]) for d, p in run.curves.traffic.items()]
    up, down = run.summary.uplink_bytes / MB, run.summary.downlink_bytes / MB
    words = f"{up:,.2f} up, {down:,.2f} down"
    return figure(
        f"Communication: MB since the start, all clients ({words})",
        line_chart(lines, "rounds", "megabytes up and down"),
        key_of(lines),
    )


def costs(found: CostTable | None) -> Markup | None:
    """The tables of `asfedbridge costs`, where its JSON stands beside the run."""
    if found is None:
        return None
    return join(
        tag("h4", "Costs: one example forward"),
        table(model_rows(found)),
        tag("h4", "Costs: payload and training of one example in a round"),
        table(method_rows(found)),
    )


def _first(count: int) -> Markup | None:
    return tag("p", f"The first {MOST_CLIENTS} of {count}.", class_="quiet") if count > MOST_CLIENTS else None


def _commands(run: Run) -> Child:
    imports = run.environment.get("imports")
    plugins = [word for file in (imports if isinstance(imports, list) else ()) for word in ("--import", str(file))]
    again = f"{shlex.join(['asfedbridge', 'run', str(run.folder / 'spec.toml'), *plugins])} --out NEW_FOLDER"
    words = run.environment.get("command")
    typed = shlex.join(["asfedbridge", *map(str, words[1:])]) if isinstance(words, list) and words else ""
    return [
        tag("pre", again) if run.specification else None,
        tag("p", "It was started by ", tag("code", typed), class_="quiet") if typed else None,
    ]


def _environment(environment: Table) -> Rows:
    def text(value: Any) -> str:
        return value if isinstance(value, str) else json.dumps(value)

    shown = {key: value for key, value in environment.items() if key != "command"}  # it stands above, as it was typed
    return [["", "value"], *([key, text(value)] for key, value in shown.items())]


def _folded(title: str, content: Markup) -> Markup:
    return tag("details", tag("summary", title), content, class_="folded")


def paper_rows(run: Run) -> Rows:
    """The run's accuracies by group, the paper's beside them where it has this cell."""
    ours, theirs = run.summary.accuracy, run.reported
    groups = [*ours, *(g for g in theirs if g not in ours)]
    rows = [["", *map(group_name, groups)], ["this run", *(decimals(ours.get(g)) for g in groups)]]
    if theirs:
        rows.append(["paper", *(decimals(theirs.get(g)) for g in groups)])
        both = [(ours.get(g), theirs.get(g)) for g in groups]
        rows.append(["difference", *("-" if a is None or b is None else f"{a - b:+.2f}" for a, b in both)])
    beside = {"best round": run.summary.best}
    beside |= {column.about: run.summary.added.get(key) for key, column in table_columns().items()}
    rows += [[name, *(decimals(means.get(g)) for g in groups)] for name, means in beside.items() if means]
    return rows
