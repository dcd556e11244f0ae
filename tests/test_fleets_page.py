"""What docs/fleets.md shows, taken from its text."""

import re
from pathlib import Path

from asfedbridge import cli
from asfedbridge.runs.fleet import FLEETS, FORM

PAGE = (Path(__file__).parents[1] / "docs" / "fleets.md").read_text(encoding="utf-8")


def test_the_grammar_is_the_parsers() -> None:
    assert f"```\n{FORM}\n```" in PAGE


def test_every_named_fleet_is_in_the_table() -> None:
    named = {
        name for row in re.findall(r"^\| (`.*?) \|", PAGE, flags=re.MULTILINE) for name in re.findall(r"`(.+?)`", row)
    }
    assert set(FLEETS) - named == {f"{n}+{10 - n}" for n in range(2, 9)}  # 1+9 ... 9+1


def test_every_named_fleet_can_be_shown() -> None:
    for name in FLEETS:
        assert cli.resolve(["paper", f"fleet={name}"]).fleet == FLEETS[name]
