"""Fields of specifications, and the fields in which runs differ."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asfedbridge.core import is_there, read_toml
from asfedbridge.runs import SPEC

Fields = dict[str, Any]  # of a specification, by dotted name
METHOD = "method."


def read_fields(folder: Path) -> Fields:
    """The specification of a run; empty if the folder has none."""
    file = folder / SPEC
    return flatten(read_toml(file, "restore it or name other folders")) if is_there(file) else {}


def flatten(table: dict[str, Any], prefix: str = "") -> Fields:
    flat: Fields = {}
    for key, value in table.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def name_changes(tables: Sequence[Fields]) -> list[str]:
    """For each table, the fields that vary among the tables and in which it does not have the majority's value."""
    keys = dict.fromkeys(key for table in tables for key in table)
    counts = {key: Counter(repr(table[key]) if key in table else "" for table in tables) for key in keys}
    return [
        ", ".join(
            f"{key.removeprefix(METHOD)}={value if isinstance(value, str) else json.dumps(value, default=str)}"
            for key, value in table.items()
            if len(counts[key]) > 1 and 2 * counts[key][repr(value)] <= counts[key].total()
        )
        for table in tables
    ]
