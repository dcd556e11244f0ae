"""What docs/fleets.md shows, taken from its text."""

import re
import shlex
from pathlib import Path

import pytest

from asfedbridge import cli
from asfedbridge.runs.fleet import FLEETS, FORM

PAGE = (Path(__file__).parents[1] / "docs" / "fleets.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("line", [line for line in PAGE.splitlines() if line.startswith("asfedbridge ")])
def test_every_line_is_one_that_runs(line: str) -> None:
    args = cli.build_parser().parse_args(shlex.split(line)[1:])
    assert args.command == "run"
    assert cli.resolve(args.what).fleet


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
