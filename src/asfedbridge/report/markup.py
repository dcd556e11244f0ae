"""Builds HTML and SVG. Every string that is not `Markup` is escaped."""

from collections.abc import Iterable
from html import escape

VOID = {"meta", "link", "input"}  # HTML elements without an end tag
CLOSED = {"path", "rect", "use"}  # SVG elements that are self-closing when empty


class Markup(str):
    """A string that is already HTML."""


Child = str | int | float | None | Iterable["Child"]


def join(*children: Child) -> Markup:
    """Concatenate children; None is skipped."""
    parts: list[str] = []
    for child in children:
        if isinstance(child, Markup):
            parts.append(child)
        elif isinstance(child, str):
            parts.append(escape(child))
        elif isinstance(child, int | float):
            parts.append(show(child))
        elif child is not None:
            parts.append(join(*child))
    return Markup("".join(parts))


def tag(name: str, *children: Child, **attributes: str | int | float | bool | None) -> Markup:
    """An element. ``class_`` becomes class and ``data_x`` becomes data-x; None and False are left out."""
    words = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        text = value if isinstance(value, str) else show(value)
        words.append(key if value is True else f'{key}="{escape(text)}"')
    opening, content = f"<{' '.join(words)}", join(*children)
    if name in VOID or (name in CLOSED and not content):
        return Markup(f"{opening}{'' if name in VOID else '/'}>")
    return Markup(f"{opening}>{content}</{name}>")


def show(number: float) -> str:
    """A number with at most one decimal: 12 or 12.5, never 12.50 or 1e-05."""
    return f"{number:.1f}".rstrip("0").rstrip(".") if isinstance(number, float) else str(number)
