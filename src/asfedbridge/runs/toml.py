"""Specifications as TOML text, and values typed on the command line."""

import json
from typing import Any

from asfedbridge.core.errors import BadInput
from asfedbridge.core.reading import parse_toml
from asfedbridge.core.reading import read_toml as read_toml
from asfedbridge.runs.fields import describe_fields
from asfedbridge.runs.spec import Spec, Table, to_table

COMMENT_COLUMN = 40


def write_toml(spec: Spec, comments: bool = False) -> str:
    """The full specification, ready to edit and run; ``comments`` adds a description of every field."""
    table = to_table(spec)
    plain = {key: value for key, value in table.items() if not isinstance(value, dict)}
    parts = ["\n".join(_lines(plain, Spec, comments))]
    for key, value in table.items():
        if isinstance(value, dict):
            parts.append("\n".join([f"[{key}]", *_lines(value, type(getattr(spec, key)), comments)]))
    return "\n\n".join(parts) + "\n"


def _lines(fields: Table, cls: type, comments: bool) -> list[str]:
    lines = [f"{key} = {_value(value)}" for key, value in fields.items()]
    if not comments:
        return lines
    known = describe_fields(cls)
    column = min(max(map(len, lines)), COMMENT_COLUMN)
    texts = [known.get(key, "") for key in fields]
    return [f"{line:<{column}}  # {text}" if text else line for line, text in zip(lines, texts, strict=True)]


def parse_value(text: str) -> Any:
    """A TOML value (4, 0.1, true, [0.1, 0.05]), a list without brackets (0.1,0.05), or else the text itself."""
    for candidate in (text, f"[{text}]") if "," in text else (text,):
        try:
            value = parse_toml(f"value = {candidate}")["value"]
        except ValueError:
            continue
        if isinstance(value, bool | int | float | str | list):
            return value
    return text


def parse_assignment(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise BadInput(f"'{text}' is not KEY=VALUE; e.g. rounds=5 or method.bridge_lr=0.01")
    return key.strip(), parse_value(value.strip())


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{', '.join(_value(v) for v in value)}]"
    return _quoted(value) if isinstance(value, str) else repr(value)


def _quoted(text: str) -> str:
    """A basic string of TOML with non-printable characters escaped."""
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in quoted)
