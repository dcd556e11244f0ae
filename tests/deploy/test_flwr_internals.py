"""What the package uses of flwr beyond its public API: all of it in one module, and all of it there."""

import ast
from pathlib import Path

import pytest

import asfedbridge.deploy
from asfedbridge.deploy import flwr_internals

PUBLIC = ("flwr.app", "flwr.clientapp", "flwr.serverapp")
WHAT_TO_DO = """
This flwr lacks internals that asfedbridge.deploy uses. For each line: find in flwr's source what replaces it, and
change its entry in deploy/flwr_internals.py and the code that uses it. If it has become public API, import it from
there and delete the entry. Then run tests/deploy and tests/conformance/test_flower.py with --all. If nothing replaces
it, lower the upper bound of flwr in pyproject.toml to the last version that passes."""


def test_this_flwr_has_all_that_is_used() -> None:
    wrong = flwr_internals.check()
    assert wrong == [], WHAT_TO_DO


def test_a_missing_part_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = flwr_internals.Internal("flwr.no_such_module", "run", "runs a turn, in a fork")
    less = flwr_internals.INTERNALS["run_clientapp"]._replace(needs=("no_such_parameter",))
    monkeypatch.setattr(flwr_internals, "INTERNALS", {"gone": gone, "less": less})
    first, second = flwr_internals.check()
    assert "no flwr.no_such_module.run" in first
    assert "pip install" in first
    assert second == "less (runs a turn, in a fork): it has no no_such_parameter"


def test_nothing_else_imports_internals() -> None:
    found = []
    for file in sorted(Path(asfedbridge.deploy.__path__[0]).glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            found += [f"{file.name}: {n}" for n in names if n.split(".")[0] == "flwr" and n not in PUBLIC]
    assert found == []


def test_every_entry_is_used() -> None:
    folder = Path(asfedbridge.deploy.__path__[0])
    text = "".join(file.read_text(encoding="utf-8") for file in folder.glob("*.py") if file.stem != "flwr_internals")
    assert [name for name in flwr_internals.INTERNALS if name not in text] == []
