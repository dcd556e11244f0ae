"""Reads JSON objects with type checks; errors name the file, the entry and the expected type."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asfedbridge.core.errors import BadInput
from asfedbridge.core.reading import RESTORE, read_json
from asfedbridge.engines.files import is_there

MAX_NUMBER = 1e100  # squares and sums of such numbers are still finite
REQUIRED: Any = object()


class Entries(Mapping[str, Any]):
    """A record that is also a mapping of all entries it was read from, including those without an attribute."""

    entries: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """All entries, as read and as written."""
        return dict(self.entries)

    def __getitem__(self, name: str) -> Any:
        return self.entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


@dataclass(frozen=True)
class JsonTable:
    """A JSON object of ``file``; ``what``: the expected content of the file; ``where``: the object's place in it."""

    entries: Mapping[str, Any]
    file: Path
    what: str
    where: str = ""

    def text(self, name: str, default: str = REQUIRED) -> str:
        return str(self._get(name, str, "text", default))

    def whole(self, name: str, default: int = REQUIRED) -> int:
        value = int(self._get(name, int, "a whole number", default))
        self._float(name, value)  # must fit a float: tables and charts divide by it
        return value

    def within(self, name: str, least: int, most: int) -> int:
        """A whole number in a range."""
        value = self.whole(name)
        if not least <= value <= most:
            raise self.wrong(name, f"{least} to {most}")
        return value

    def choice(self, name: str, known: tuple[Any, ...]) -> Any:
        """One of the ``known`` strings, such as the arguments of a Literal."""
        value = self.text(name)
        if value not in known:
            raise self.wrong(name, f"one of {', '.join(known)}")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings; empty if it is missing."""
        found = self.items(name, [])
        if not all(isinstance(entry, str) for entry in found):
            raise self.wrong(name, "a list of strings")
        return tuple(found)

    def number(self, name: str, default: float = REQUIRED) -> float:
        return self._float(name, self._get(name, int | float, "a number", default))

    def optional_number(self, name: str) -> float | None:
        """None if the entry is null or missing."""
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
        """A list of numbers and nulls."""
        found = self.items(name)
        if any(isinstance(v, bool) or not isinstance(v, int | float | None) for v in found):
            raise self.wrong(name, "a list of numbers")
        return tuple(None if value is None else self._float(name, value) for value in found)

    def vector(self, name: str) -> tuple[float, ...]:
        """A list of numbers."""
        found = self.series(name)
        if None in found:
            raise self.wrong(name, "a list of numbers")
        return tuple(value for value in found if value is not None)

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

    def check_format(self, current: int) -> None:
        """Raise BadInput unless the format is ``current``. A file without a format is accepted."""
        if self.whole("format", current) != current:
            raise BadInput(
                f"{self.file}: format={self.entries['format']} is not supported; this version of asfedbridge reads "
                f"format {current}; create the file again, or use the version that wrote it"
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
        if not -MAX_NUMBER <= value <= MAX_NUMBER:  # also true for NaN
            raise self.wrong(name, "finite and at most 1e100")
        return float(value)


def read_table(file: Path, fix: str = RESTORE) -> dict[str, Any] | None:
    """The object in ``file``; None if there is no such file."""
    if not is_there(file):
        return None
    found = read_json(file, fix)
    if not isinstance(found, dict):
        raise BadInput(f"{file}: is not a JSON object; {fix}")
    return found
