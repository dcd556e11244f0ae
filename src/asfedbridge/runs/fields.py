"""Descriptions of the fields of a specification, from the comments in the source and the choices in the types."""

import dataclasses
import inspect
import io
import tokenize
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

CHOICES = "one of "


@cache
def describe_fields(cls: type) -> dict[str, str]:
    """One line for each field of a dataclass: its comment in the source and, for a ``Literal``, the choices."""
    comments: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if dataclasses.is_dataclass(base):
            comments |= _read_comments(base)
    hints = get_type_hints(cls)
    return {
        field.name: "; ".join(filter(None, [comments.get(field.name, ""), _choices(hints[field.name])]))
        for field in dataclasses.fields(cls)
    }


def _choices(hint: Any) -> str:
    return CHOICES + ", ".join(map(str, get_args(hint))) if get_origin(hint) is Literal else ""


def _read_comments(cls: type) -> dict[str, str]:
    """Comments at the end of the lines on which this class, not a base, declares fields."""
    try:
        source = inspect.getsource(cls)
    except (OSError, TypeError):  # no source file, as in an interactive shell
        return {}
    names = inspect.get_annotations(cls)
    found: dict[str, str] = {}
    for line in source.splitlines():
        name = line.strip().partition(":")[0]
        if name in names and name not in found:
            found[name] = _comment_of(line)
    return found


def _comment_of(line: str) -> str:
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(line.strip()).readline))
    except (tokenize.TokenError, IndentationError):  # the first line of a longer statement
        return ""
    return next((t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT), "")
