"""JSON objects read with checked types: the error for a wrong entry names the file, the entry and what it must be."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asfedbridge.core.errors import BadInput

REQUIRED: Any = object()


class Entries(Mapping[str, Any]):
    """A record that is also a mapping of all entries it was read from, those that have no attribute included."""

    entries: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """What the record was read from, and what is written."""
        return dict(self.entries)

    def __getitem__(self, name: str) -> Any:
        return self.entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


@dataclass(frozen=True)
class JsonTable:
    """A JSON object of ``file``; ``what`` says what the file should be, ``where`` the object's place in it."""

    entries: Mapping[str, Any]
    file: Path
    what: str
    where: str = ""

    def text(self, name: str, default: str = REQUIRED) -> str:
        return str(self._get(name, str, "text", default))

    def whole(self, name: str, default: int = REQUIRED) -> int:
        value = int(self._get(name, int, "a whole number", default))
        self._float(name, value)  # tables and charts divide it
        return value

    def number(self, name: str, default: float = REQUIRED) -> float:
        return self._float(name, self._get(name, int | float, "a number", default))

    def optional_number(self, name: str) -> float | None:
        """None where the entry is null or missing."""
        return None if self.entries.get(name) is None else self.number(name)

    def numbers(self, name: str, default: Mapping[str, float] = REQUIRED) -> dict[str, float]:
        """An object whose values are numbers."""
        found = self._get(name, dict, "an object of numbers", default)
        for value in found.values():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise self.wrong(name, "an object of numbers")
        return {key: self._float(name, value) for key, value in found.items()}

    def flag(self, name: str) -> bool:
        value = self.entries.get(name)
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def series(self, name: str) -> tuple[float | None, ...]:
        """A list of finite numbers and nulls."""
        found = self.items(name)
        if any(isinstance(v, bool) or not isinstance(v, int | float | None) for v in found):
            raise self.wrong(name, "a list of numbers")
        numbers = tuple(None if value is None else self._float(name, value) for value in found)
        if not all(number is None or math.isfinite(number) for number in numbers):
            raise self.wrong(name, "a list of finite numbers")
        return numbers

    def items(self, name: str, default: list[Any] = REQUIRED) -> list[Any]:
        return list(self._get(name, list, "a list", default))

    def table(self, name: str, default: Mapping[str, Any] = REQUIRED) -> "JsonTable":
        found = self._get(name, dict, "an object", default)
        return JsonTable(found, self.file, self.what, f"{self.where}{name}.")

    def tables(self, name: str) -> list["JsonTable"]:
        """A list of objects."""
        found = self.items(name)
        if not all(isinstance(entry, dict) for entry in found):
            raise self.wrong(name, "a list of objects")
        return [JsonTable(e, self.file, self.what, f"{self.where}{name}[{i}].") for i, e in enumerate(found)]

    def check_format(self, newest: int) -> None:
        """Files from before there was a version have none."""
        if not 0 <= self.whole("format", 0) <= newest:
            raise BadInput(
                f"{self.file}: format={self.entries['format']} is newer than {newest}, the newest that this version of "
                f"asfedbridge reads; update asfedbridge"
            )

    def wrong(self, name: str, expected: str) -> BadInput:
        value = self.entries.get(name, REQUIRED)
        given = "is missing" if value is REQUIRED else f"={json.dumps(value)[:40]}"
        return BadInput(
            f"{self.file}: is not {self.what}: {self.where}{name}{'' if given[0] == '=' else ' '}{given} "
            f"(must be {expected}); restore it, or remove it"
        )

    def _get(self, name: str, kind: Any, expected: str, default: Any) -> Any:
        value = self.entries.get(name, default)
        if value is REQUIRED or not isinstance(value, kind) or isinstance(value, bool):
            raise self.wrong(name, expected)
        return value

    def _float(self, name: str, value: float) -> float:
        try:
            return float(value)
        except OverflowError:
            raise self.wrong(name, "a number below 1e308") from None


def read_table(file: Path, fix: str = "restore it, or remove it") -> dict[str, Any] | None:
    """The object in ``file``; None if there is no such file."""
    if not file.exists():
        return None
    try:
        found = json.loads(file.read_bytes())
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise BadInput(f"{file}: is not a JSON object; {fix}")
    return found
