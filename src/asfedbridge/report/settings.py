"""What the specifications of runs say, and in what they differ."""

import json
import tomllib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asfedbridge.core import BadInput
from asfedbridge.runs import SPEC

Fields = dict[str, Any]  # of a specification, by dotted name
METHOD = "method."


def read_fields(folder: Path) -> Fields:
    """The specification of a run; empty where the folder has none."""
    file = folder / SPEC
    try:
        return flatten(tomllib.loads(file.read_text(encoding="utf-8", errors="replace"))) if file.exists() else {}
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"{file}: is not valid TOML ({error}); restore it or name other folders") from None


def flatten(table: dict[str, Any], prefix: str = "") -> Fields:
    flat: Fields = {}
    for key, value in table.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def name_changes(tables: Sequence[Fields]) -> list[str]:
    """For each table, the fields that vary among them, unless it has the value that most of them have."""
    keys = dict.fromkeys(key for table in tables for key in table)
    counts = {key: Counter(repr(table[key]) if key in table else "" for table in tables) for key in keys}
    return [
        ", ".join(
            f"{key.removeprefix(METHOD)}={value if isinstance(value, str) else json.dumps(value)}"
            for key, value in table.items()
            if len(counts[key]) > 1 and 2 * counts[key][repr(value)] <= counts[key].total()
        )
        for table in tables
    ]
