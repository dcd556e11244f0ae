"""Tables as HTML."""

import re
from collections.abc import Sequence

from asfedbridge.report.markup import Markup, join, tag
from asfedbridge.report.tables import Rows, Titled

MAX_CELL = 40  # characters; a longer cell has a tooltip


def table(rows: Rows) -> Markup:
    """The first row is the head and the first column names the rows. A table that is too wide scrolls by itself."""
    sides = text_columns(rows)
    head = tag("tr", [tag("th", cell, scope="col", class_=side) for cell, side in zip(rows[0], sides, strict=True)])
    body = [tag("tr", tag("th", row[0], scope="row"), cells(row, sides)) for row in rows[1:]]
    return scrolling(tag("table", tag("thead", head), tag("tbody", body)))


def titled_table(one: Titled, level: str = "h2") -> Markup:
    return join(
        tag(level, one.title) if one.title else None,
        table(one.rows),
        tag("p", one.note, class_="quiet") if one.note else None,
    )


def scrolling(content: Markup, tall: bool = False) -> Markup:
    """A frame that scrolls sideways and, if ``tall``, is no higher than the screen."""
    return tag("div", content, class_="scroll tall" if tall else "scroll", tabindex="0")


def text_columns(rows: Rows) -> list[str | None]:
    """The CSS class of each column: ``text`` is aligned left, None (numbers) right."""
    return [
        None if all(re.match(r"[-+]?[\d.,]+( ± | \[|$)|-?$", row[i]) for row in rows[1:]) else "text"
        for i in range(len(rows[0]))
    ]


def cells(row: Sequence[str], sides: Sequence[str | None]) -> list[Markup]:
    """All cells but the first; the page cuts long texts and shows them in full as a tooltip."""
    return [
        tag("td", cell, class_=side, title=cell if len(cell) > MAX_CELL else None)
        for cell, side in zip(row[1:], sides[1:], strict=True)
    ]


def folded(title: str, content: Markup) -> Markup:
    return tag("details", tag("summary", title), content, class_="folded")
