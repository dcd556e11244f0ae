"""Specifications as TOML text, and values as people type them."""

import json
import tomllib
from pathlib import Path
from typing import Any

from asfedbridge.core.errors import BadInput
from asfedbridge.runs.fields import describe_fields
from asfedbridge.runs.spec import Spec, Table, to_table

COMMENT_COLUMN = 40


def write_toml(spec: Spec, comments: bool = False) -> str:
    """The full specification, ready to edit and run; ``comments`` explains every field."""
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


def read_toml(path: Path) -> Table:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: is not valid TOML: {error}") from None


def parse_value(text: str) -> Any:
    """A TOML value where it is one (4, 0.1, true, [0.1, 0.05]), two numbers as 0.1,0.05, else the text itself."""
    for candidate in (text, f"[{text}]") if "," in text else (text,):
        try:
            value = tomllib.loads(f"value = {candidate}")["value"]
        except tomllib.TOMLDecodeError:
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
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
