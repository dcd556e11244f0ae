"""Which package may import which: only those that stand before it in ``ORDER``."""

import ast
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import asfedbridge

ROOT = Path(asfedbridge.__file__).parent
ORDER = (
    "core",
    "kernels",
    "models",
    "data",
    "methods",
    "analysis",
    "engines",
    "export",
    "runs",
    "deploy",
    "paper",
    "report",
    "cli",
)
BELOW_THE_LINE = ORDER[ORDER.index("deploy") :]  # consumers of the library, as a user's script is
CORE_MAY_USE = {"torch", "numpy", "lazy_loader", "asfedbridge", *sys.stdlib_module_names}
ONLY_IN = {
    "flwr": "deploy/",
    "pickle": "data/sources/cifar.py",
    "dp_accounting": "runs/privacy.py",
    "mlflow": "runs/callbacks/mlflow_logger.py",
    "wandb": "runs/callbacks/wandb_logger.py",
}  # a package, and the place that may import it
NOWHERE = {"torchvision", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
NAMELESS = {"utils", "base", "common", "helpers", "misc"}


def imports(tree: ast.AST, package: tuple[str, ...]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Line and dotted target of every import, wherever it stands; relative ones are resolved."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, tuple(alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else ()
            module = (*start, *(node.module.split(".") if node.module else ()))
            for alias in node.names:
                yield node.lineno, (*module, alias.name)
        elif isinstance(node, ast.Call):
            named = ast.unparse(node.func) in ("importlib.import_module", "__import__") and node.args
            if named and isinstance(node.args[0], ast.Constant):
                yield node.lineno, tuple(str(node.args[0].value).split("."))


def unpickles(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Calls that pickle without importing pickle."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in ("torch.save", "torch.load", "np.save", "numpy.save"):
                yield node.lineno, called
            for keyword in node.keywords:
                if keyword.arg == "allow_pickle" and ast.unparse(keyword.value) != "False":
                    yield node.lineno, "allow_pickle"


def named_options(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Errors that name an option of the command line: what a library raises must speak Python."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and node.exc:
            texts = [n.value for n in ast.walk(node.exc) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
            for option in re.findall(r"(?<!\S)--[a-z][a-z-]*", " ".join(texts)):
                yield node.lineno, option


def violations(root: Path) -> list[str]:
    """One line for every import below ``root`` (the package's folder) that breaks a rule."""
    found = []
    for file in sorted(root.rglob("*.py")):
        path = file.relative_to(root)
        where = path.as_posix()
        package = ("asfedbridge", *path.parts[:-1])
        layer = path.parts[0].removesuffix(".py")
        tree = ast.parse(file.read_text(encoding="utf-8"))
        if layer in ("__init__", "__main__"):
            layer = "cli" if layer == "__main__" else "runs"  # the public API ends there
        if layer not in ORDER:
            found.append(f"{where}: '{layer}' has no place in the order")
            continue
        if file.stem in NAMELESS:
            found.append(f"{where}: '{file.stem}' names nothing")
        if layer not in BELOW_THE_LINE:
            found += [f"{where}:{line}: an error names {option}" for line, option in named_options(tree)]
        for line, call in unpickles(tree):
            found.append(f"{where}:{line}: {call} pickles")
        for line, target in imports(tree, package):
            top = target[0]
            if top in NOWHERE or (top in ONLY_IN and not where.startswith(ONLY_IN[top])):
                found.append(f"{where}:{line}: imports {top}")
            if layer == "core" and top not in CORE_MAY_USE:
                found.append(f"{where}:{line}: core imports {top}")
            if top == "asfedbridge" and len(target) > 1 and target[1] != "__version__":
                other = target[1]
                if other not in ORDER:
                    found.append(f"{where}:{line}: imports asfedbridge.{other}, which has no place in the order")
                elif ORDER.index(other) > ORDER.index(layer):
                    found.append(f"{where}:{line}: {layer} imports {other}")
    return found


def exports(package: Path) -> set[str]:
    """What a package exports: the names in its stub, ``__init__.pyi``; nothing if it has none."""
    stub = package / "__init__.pyi"
    found = ast.parse(stub.read_text(encoding="utf-8")).body if stub.exists() else []
    imported = {
        alias.asname or alias.name for node in found if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    return imported | {ast.unparse(node.target) for node in found if isinstance(node, ast.AnnAssign)}


def private_imports(root: Path) -> list[str]:
    """One line for every import of a package below the public line that takes what no package above it exports.

    Allowed are ``from asfedbridge.PACKAGE import NAME`` with NAME exported by that package,
    ``from asfedbridge import NAME`` with a public NAME, and ``import asfedbridge``.
    """
    exported = {layer: exports(root / layer) for layer in ORDER if layer not in BELOW_THE_LINE}
    public = exports(root) | {"__version__", *BELOW_THE_LINE}
    found = []
    for file in sorted(root.rglob("*.py")):
        path = file.relative_to(root)
        if path.parts[0].removesuffix(".py") not in (*BELOW_THE_LINE, "__main__"):
            continue
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for line, target in imports(tree, ("asfedbridge", *path.parts[:-1])):
            if target[0] != "asfedbridge" or len(target) == 1:
                continue
            first, names = target[1], target[2:]
            if first in exported and names:
                allowed = len(names) == 1 and names[0] in exported[first]
            else:
                allowed = first in public
            if not allowed:
                found.append(f"{path.as_posix()}:{line}: {'.'.join(target)} is not exported")
    return found


def test_every_import_goes_up() -> None:
    assert violations(ROOT) == []


def test_packages_below_the_line_use_exports() -> None:
    assert private_imports(ROOT) == []


@pytest.mark.parametrize("package", [layer for layer in ORDER if (ROOT / layer / "__init__.pyi").exists()])
def test_every_export_is_there(package: str) -> None:
    module = importlib.import_module(f"asfedbridge.{package}")
    assert exports(ROOT / package)
    assert all(getattr(module, name) is not None for name in exports(ROOT / package))


def test_the_walk_saw_the_package() -> None:
    files = {p.relative_to(ROOT).as_posix() for p in ROOT.rglob("*.py")}
    assert {"core/method.py", "engines/loop.py", "runs/spec.py", "cli/run.py"} <= files
    targets = {t for _, t in imports(ast.parse((ROOT / "cli" / "run.py").read_text()), ("asfedbridge", "cli"))}
    assert ("asfedbridge", "runs", "execute") in targets  # an import inside a function


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("core/a.py", "import asfedbridge.models.zoo", "core/a.py:1: core imports models"),
        ("core/a.py", "from asfedbridge import data", "core/a.py:1: core imports data"),
        ("core/a.py", "import torch, numpy, os\nimport safetensors", "core/a.py:2: core imports safetensors"),
        (
            "models/a.py",
            "def f():\n    from asfedbridge.data.loader import Shard",
            "models/a.py:2: models imports data",
        ),
        ("methods/a.py", "from ..engines import loop", "methods/a.py:1: methods imports engines"),
        ("methods/a.py", "from .. import engines", "methods/a.py:1: methods imports engines"),
        (
            "engines/a.py",
            "from asfedbridge.runs.spec import Spec",
            "engines/a.py:1: engines imports runs",
        ),
        ("report/a.py", "import asfedbridge.cli", "report/a.py:1: report imports cli"),
        ("runs/a.py", "import flwr", "runs/a.py:1: imports flwr"),
        ("data/a.py", "from torchvision import datasets", "data/a.py:1: imports torchvision"),
        ("engines/a.py", "import pickle", "engines/a.py:1: imports pickle"),
        ("engines/a.py", "import torch\ntorch.save({}, 'x')", "engines/a.py:2: torch.save pickles"),
        ("data/a.py", "np.load(f, allow_pickle=True)", "data/a.py:1: allow_pickle pickles"),
        ("core/a.py", "importlib.import_module('asfedbridge.report')", "core/a.py:1: core imports report"),
        ("runs/a.py", "raise E(f'{x}: add --resume')", "runs/a.py:1: an error names --resume"),
        ("extras/a.py", "", "extras/a.py: 'extras' has no place in the order"),
        ("core/utils.py", "", "core/utils.py: 'utils' names nothing"),
    ],
)
def test_the_walk_finds_a_planted_violation(tmp_path: Path, path: str, text: str, expected: str) -> None:
    (tmp_path / path).parent.mkdir()
    (tmp_path / path).write_text(text)
    assert violations(tmp_path) == [expected]


def test_the_walk_lets_good_imports_pass(tmp_path: Path) -> None:
    good = {
        "core/a.py": "import math, torch\nfrom asfedbridge.core import b\nfrom . import b",
        "data/sources/cifar.py": "import pickle",
        "data/b.py": "np.load(f, allow_pickle=False)",
        "deploy/engine.py": "import flwr\nfrom asfedbridge.methods import fedavg\nfrom ..engines.loop import draw",
        "cli.py": "from asfedbridge import __version__\nfrom asfedbridge.report import tables",
        "__main__.py": "from asfedbridge.cli import main",
    }
    for path, text in good.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    assert violations(tmp_path) == []


EXPORTING = {
    "__init__.pyi": "from .runs.api import load as load, run as run",
    "core/__init__.pyi": "from .errors import BadInput as BadInput",
    "runs/__init__.pyi": "from .run import execute as execute\nfrom .spec import Spec as Spec",
    "runs/run.py": "from asfedbridge.core.errors import BadInput",  # above the line, modules are open to each other
    "deploy/engine.py": "",
}


def planted(root: Path, path: str, text: str) -> list[str]:
    for name, content in (EXPORTING | {path: text}).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return private_imports(root)


@pytest.mark.parametrize(
    ("path", "text", "taken"),
    [
        ("report/a.py", "from asfedbridge.runs.spec import Spec", "asfedbridge.runs.spec.Spec"),
        ("report/a.py", "from asfedbridge.runs import apply", "asfedbridge.runs.apply"),
        ("report/a.py", "from asfedbridge.runs import spec", "asfedbridge.runs.spec"),
        ("report/a.py", "from ..runs.spec import Spec", "asfedbridge.runs.spec.Spec"),
        ("paper/a.py", "from asfedbridge.models import MODELS", "asfedbridge.models.MODELS"),  # it exports nothing
        ("deploy/a.py", "import asfedbridge.runs.run", "asfedbridge.runs.run"),
        ("cli/a.py", "def f():\n    from asfedbridge.core.seeds import seed", "asfedbridge.core.seeds.seed"),
        ("cli/a.py", "from asfedbridge import runs", "asfedbridge.runs"),
        ("cli/a.py", "import asfedbridge.methods", "asfedbridge.methods"),
        ("cli/a.py", "from asfedbridge import save", "asfedbridge.save"),
        ("__main__.py", "from asfedbridge.runs import folder", "asfedbridge.runs.folder"),
    ],
)
def test_a_planted_private_import_is_found(tmp_path: Path, path: str, text: str, taken: str) -> None:
    line = text.count("\n") + 1
    assert planted(tmp_path, path, text) == [f"{path}:{line}: {taken} is not exported"]


def test_exported_names_pass(tmp_path: Path) -> None:
    good = [
        "import asfedbridge as afb",
        "from asfedbridge import __version__, load, run",
        "from asfedbridge.runs import Spec, execute",
        "from ..core import BadInput",
        "from asfedbridge.deploy.engine import FlowerEngine",
        "from asfedbridge import deploy",
        "import asfedbridge.report.tables",
        "import torch",
    ]
    assert planted(tmp_path, "cli/a.py", "\n".join(good)) == []


def test_the_architecture_page_names_every_module() -> None:
    """Methods and callbacks are one file each and listed by ``asfedbridge list``; the page names their folders."""
    page = (ROOT.parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\b\w+\.py\b", page))
    listed = {path.name for folder in ("methods", "runs/callbacks") for path in (ROOT / folder).glob("*.py")}
    modules = {path.name for path in ROOT.rglob("*.py")}
    assert modules - listed - {"__init__.py", "__main__.py"} <= named, "modules that the page does not name"
    assert named - modules <= {path.name for path in (ROOT.parents[1] / "tests").glob("*.py")}, "modules that are gone"
