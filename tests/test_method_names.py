"""No module outside ``methods`` and ``paper`` knows a particular method: what it needs is a member of ``Method``."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import asfedbridge
from asfedbridge import methods
from asfedbridge.core.method import METHODS

ROOT = Path(asfedbridge.__file__).parent
MAY_NAME = ("methods", "paper")
NAMES = frozenset(name for name, cls in METHODS.items() if cls.__module__.startswith(methods.__name__))
MODULES = frozenset(file.stem for file in Path(methods.__path__[0]).glob("*.py")) - {"__init__"}
PLAIN = {"str", "dict", "Mapping", "Method"}  # whether it is a method yet, or its name or table


def imported(node: ast.AST, package: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Dotted targets of an import, relative ones resolved."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield tuple(alias.name.split("."))
    elif isinstance(node, ast.ImportFrom):
        start = package[: len(package) - node.level + 1] if node.level else ()
        for alias in node.names:
            yield (*start, *(node.module.split(".") if node.module else ()), alias.name)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):  # of importlib.import_module
        yield tuple(node.value.split("."))


def inspected(node: ast.AST) -> str:
    """The call that asks what a method is or has, if the node is one."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args):
        return ""
    if node.func.id not in ("isinstance", "issubclass", "getattr", "hasattr"):
        return ""
    subject = ast.unparse(node.args[0]).removeprefix("type(").rstrip(")")
    if subject.rpartition(".")[2].lstrip("_") != "method":
        return ""
    kinds = {one.strip() for one in ast.unparse(node.args[1]).strip("()").replace("|", ",").split(",")}
    return "" if node.func.id == "isinstance" and kinds <= PLAIN else node.func.id


def violations(root: Path) -> list[str]:
    """One line for every place below ``root`` (the package's folder) that knows a particular method."""
    found = []
    for file in sorted(root.rglob("*.py")):
        path = file.relative_to(root)
        if path.parts[0] in MAY_NAME:
            continue
        package = ("asfedbridge", *path.parts[:-1])
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            where = f"{path.as_posix()}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in NAMES:
                found.append(f"{where}: names {node.value}")
            for target in imported(node, package):
                if target[:2] == ("asfedbridge", "methods") and len(target) > 2 and target[2] in MODULES:
                    found.append(f"{where}: imports methods.{target[2]}")
            if call := inspected(node):
                found.append(f"{where}: {call} of a method")
    return found


def test_methods_are_known_to_themselves_and_to_the_paper_alone() -> None:
    assert violations(ROOT) == []


def test_the_walk_knows_all_methods() -> None:
    assert len(NAMES) == 13
    assert {"as_fedbridge", "averaging", "bridge_sharing", "fedtgp"} <= MODULES
    assert {methods.DEFAULT, methods.REFERENCE} <= NAMES


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("runs/a.py", "x = 1\nif spec.method.name == 'fml': pass", ["runs/a.py:2: names fml"]),
        ("cli/a.py", "def f(method='as-fedbridge'): pass", ["cli/a.py:1: names as-fedbridge"]),
        ("report/a.py", "T = {'mh-pflid': 1}", ["report/a.py:1: names mh-pflid"]),
        ("report/a.py", "match name:\n    case 'sfedhifi': pass", ["report/a.py:2: names sfedhifi"]),
        ("runs/a.py", "from asfedbridge.methods.fedavg import FedAvg", ["runs/a.py:1: imports methods.fedavg"]),
        ("runs/a.py", "from asfedbridge.methods import averaging", ["runs/a.py:1: imports methods.averaging"]),
        ("runs/a.py", "def f():\n    from ..methods import fedtgp", ["runs/a.py:2: imports methods.fedtgp"]),
        ("runs/a.py", "import asfedbridge.methods.fml as m", ["runs/a.py:1: imports methods.fml"]),
        ("runs/a.py", "import_module('asfedbridge.methods.fml')", ["runs/a.py:1: imports methods.fml"]),
        ("analysis/a.py", "isinstance(method, FedTGP)", ["analysis/a.py:1: isinstance of a method"]),
        ("analysis/a.py", "isinstance(spec.method, (str, FedTGP))", ["analysis/a.py:1: isinstance of a method"]),
        ("analysis/a.py", "issubclass(type(spec.method), Any)", ["analysis/a.py:1: issubclass of a method"]),
        ("engines/a.py", "getattr(self.method, 'bn_buffers', 'local')", ["engines/a.py:1: getattr of a method"]),
        ("engines/a.py", "hasattr(self._method, 'x')", ["engines/a.py:1: hasattr of a method"]),
    ],
)
def test_the_walk_finds_a_planted_violation(tmp_path: Path, path: str, text: str, expected: list[str]) -> None:
    (tmp_path / path).parent.mkdir()
    (tmp_path / path).write_text(text)
    assert violations(tmp_path) == expected


def test_the_walk_lets_the_rest_pass(tmp_path: Path) -> None:
    good = {
        "methods/a.py": "isinstance(method, FedAvg) or method.name == 'fedavg'",
        "paper/a.py": "from asfedbridge.methods import fedavg\nROWS = ('fedavg', 'fml')",
        "runs/a.py": "from asfedbridge.methods import DEFAULT\nisinstance(method, str | dict)",
        "cli/a.py": "import asfedbridge.methods\nfrom asfedbridge import methods",
        "report/a.py": "print('as fedavg does', getattr(spec, 'method'), method.bn_buffers)",
    }
    for path, text in good.items():
        (tmp_path / path).parent.mkdir()
        (tmp_path / path).write_text(text)
    assert violations(tmp_path) == []
