"""Trained clients on the page, from `asfedbridge evaluate`: tables, accuracy by class, confusion matrices."""

from collections.abc import Sequence

from asfedbridge.report.charts import figure, name_clients
from asfedbridge.report.evaluations import evaluation_tables
from asfedbridge.report.html_tables import folded, titled_table
from asfedbridge.report.markup import Markup, join, tag
from asfedbridge.report.pictures import heat_map
from asfedbridge.report.run_figures import MAX_CLIENTS
from asfedbridge.runs import ClientEvaluation, RunEvaluation

MAX_CLASSES = 200  # in the heat map of accuracy by class
MAX_CONFUSION = 20  # confusion matrices with more classes are not drawn


def evaluated(found: RunEvaluation | None) -> Markup | None:
    """Tables and figures of an evaluation; in a large fleet, only of the first clients."""
    if found is None:
        return None
    tables = []
    for one in evaluation_tables(found):
        rows = [row[: MAX_CLIENTS + 1] for row in one.rows[: MAX_CLIENTS + 1]]
        tables.append(titled_table(one._replace(rows=rows), "h4"))
    clients = found.clients[:MAX_CLIENTS]
    pictures = [_by_class(clients)]
    confusions = [_confusion(c) for c in clients if 0 < len(c.confusion) <= MAX_CONFUSION]
    return join(
        tables,
        tag("div", pictures, class_="figures") if any(pictures) else None,
        folded("Confusion matrices", tag("div", confusions, class_="figures")) if confusions else None,
    )


def _by_class(clients: Sequence[ClientEvaluation]) -> Markup | None:
    classes = {len(c.per_class) for c in clients}
    if len(classes) != 1 or not 0 < min(classes) <= MAX_CLASSES:
        return None
    columns = [str(k) for k in range(min(classes))]
    rows = name_clients([(c.id, c.kind) for c in clients])
    shares = [list(c.per_class.values()) for c in clients]
    picture = heat_map(shares, rows, columns, 0.0, 100.0, "seq", "accuracy by class", _whole)
    return figure("Accuracy in % of each client (rows) on each class (columns); empty: no image", picture)


def _confusion(client: ClientEvaluation) -> Markup | None:
    """A heat map of the share of each prediction among the images of a class; pairs that never occur are empty."""
    shares = [[100 * v / sum(row) if v else None for v in row] for row in client.confusion]
    names = [str(k) for k in range(len(shares))]
    picture = heat_map(shares, names, names, 0.0, 100.0, "seq", f"confusion matrix of client {client.id}", _whole)
    return figure(f"Client {client.id}, {client.kind.upper()}: % of the images of a class (row) by prediction", picture)


def _whole(value: float) -> str:
    return f"{value:.0f}"
