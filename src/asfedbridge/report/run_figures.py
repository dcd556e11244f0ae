"""Figures of one run: accuracy, loss, shards and communication."""

from collections.abc import Mapping, Sequence

from asfedbridge.core import MB, table_columns
from asfedbridge.report.charts import Line, figure, group_name, key_of, line_chart, name_clients, small_multiples, thin
from asfedbridge.report.curves import MAX_LOSS, Points
from asfedbridge.report.markup import Markup, tag
from asfedbridge.report.palette import GROUPS, Style, cycle
from asfedbridge.report.pictures import refer, shard_picture
from asfedbridge.report.runs import Run
from asfedbridge.runs import ClientSummary

MAX_CLIENTS = 40  # clients drawn and listed individually
MAX_CLASSES = 1000  # in the heat map of shards
MEAN = Style(5)  # of the line behind small charts
POINTS = {"trained": "after local training", "received": "as received, before local training"}


def accuracy_figures(run: Run, max_points: int) -> list[Markup | None]:
    """Means of groups, and a small chart for each client."""
    curves, about = run.curves, f"accuracy in % {_point(run)}"
    titles = {key: column.title for key, column in table_columns().items()}
    lines = _by_group(curves.groups, max_points)
    lines += [Line(titles[k], thin(p, max_points), GROUPS.get(k, cycle(3))) for k, p in curves.added.items()]
    some = sorted(curves.clients.items())[:MAX_CLIENTS]
    kinds = {c.id: c.kind for c in run.summary.clients}
    clients = [
        Line(f"{id_} {kinds[id_].upper()}", thin(points, max_points), Style(GROUPS.get(kinds[id_], cycle(5)).colour))
        for id_, points in some
    ]
    mean = Line("", thin(curves.groups.get("all", []), max_points), MEAN)
    shown = f"{MAX_CLIENTS} of {len(curves.clients)} clients, " if len(curves.clients) > MAX_CLIENTS else ""
    note = tag("p", "Grey: the mean of all clients. The number is the last accuracy.", class_="quiet")
    return [
        figure(f"Groups: mean {about}", line_chart(lines, "rounds", "accuracy of groups"), key_of(lines)),
        figure(f"Clients: {shown}{about}, over rounds", small_multiples(clients, mean, "rounds"), note),
    ]


def loss_figures(run: Run, max_points: int) -> list[Markup | None]:
    """The loss on test images by kind, and the terms of the training loss."""
    test = _by_group(run.curves.losses, max_points)
    terms = [Line(name, thin(p, max_points), cycle(i)) for i, (name, p) in enumerate(run.curves.terms.items())]
    return [
        figure(
            f"Loss on test images {_point(run)}: mean by kind{_cut(test)}",
            line_chart(test, "rounds", "loss on test images"),
            key_of(test),
        ),
        figure(
            f"Training: terms of the loss, mean over clients{_cut(terms)}",
            line_chart(terms, "rounds", "terms of the training loss"),
            key_of(terms),
        ),
    ]


def _cut(lines: Sequence[Line]) -> str:
    """A remark for curves with losses beyond the bound."""
    return f" (cut at {MAX_LOSS:g})" if any(abs(y) >= MAX_LOSS for line in lines for _, y in line.points) else ""


def _by_group(groups: Mapping[str, Points], max_points: int) -> list[Line]:
    return [Line(group_name(g), thin(p, max_points), GROUPS.get(g, cycle(5))) for g, p in groups.items()]


def _point(run: Run) -> str:
    """The method's evaluation point in words."""
    return POINTS.get(run.summary.point, run.summary.point)


def shows_shards(clients: Sequence[ClientSummary]) -> bool:
    """False for clients behind a network, which report no labels, and for too many classes to draw."""
    return bool(clients) and all(0 < len(c.labels) <= MAX_CLASSES for c in clients)


def shards(run: Run, drawn: dict[str, str]) -> Markup | None:
    """Runs on the same shards share one picture."""
    clients = run.summary.clients[:MAX_CLIENTS]
    if not shows_shards(clients):
        return None
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


def traffic(run: Run, max_points: int) -> Markup | None:
    styles = {"up": GROUPS["ann"], "down": GROUPS["snn"]}
    lines = [Line(d, thin(p, max_points), styles[d]) for d, p in run.curves.traffic.items()]
    up, down = run.summary.uplink_bytes / MB, run.summary.downlink_bytes / MB
    words = f"{up:,.2f} up, {down:,.2f} down"
    return figure(
        f"Communication: MB since the start, all clients ({words})",
        line_chart(lines, "rounds", "megabytes up and down"),
        key_of(lines),
    )
