"""Plugins: code of the user's own that registers methods, models, data sets or callbacks when it is imported.

It comes from a Python file (``--import FILE.py``, ``load_plugin``) or from an installed package with an entry point in
the group ``asfedbridge.plugins`` (``load_entry_points``). Every process of a run loads the same plugins before it
looks anything up.
"""

import hashlib
import importlib.util
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path

from asfedbridge.core.errors import BadInput

GROUP = "asfedbridge.plugins"
FILES: list[str] = []  # loaded by load_plugin, in order, as absolute paths
PACKAGES: dict[str, str] = {}  # loaded by load_entry_points: the version of each package
_problems: list[str] | None = None  # what load_entry_points returned; None: not called yet


def load_plugin(path: str | Path) -> None:
    """Run a Python file once; files beside it can be imported from it.

    The module's name depends on the file's path alone, so that objects of its classes can be sent to any process that
    has loaded the same file.
    """
    full = Path(path).resolve()
    if str(full) in FILES:
        return
    if full.suffix != ".py" or not full.is_file():
        raise BadInput(f"import {path}: there is no such Python file")
    if str(full.parent) not in sys.path:
        sys.path.append(str(full.parent))
    name = f"asfedbridge_plugin_{hashlib.sha256(str(full).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, full)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise BadInput(f"import {path}: {_describe(error, full)}") from error
    FILES.append(str(full))


def load_entry_points() -> list[str]:
    """Import the plugins of all installed packages, on the first call only; return one line for each that failed.

    A plugin that cannot be imported does not stop the others, or a run that does not need it.
    """
    global _problems
    if _problems is None:
        from importlib import metadata  # takes longer than all else that `asfedbridge --help` imports

        _problems = []
        for entry in sorted(metadata.entry_points(group=GROUP), key=lambda e: (e.name, e.value)):
            package = entry.dist.name if entry.dist else entry.value
            try:
                entry.load()
            except Exception as error:
                _problems.append(
                    f"package {package}: its plugin '{entry.name}' ({entry.value}) was not loaded "
                    f"({_describe(error)}); repair or uninstall the package"
                )
            else:
                PACKAGES[package] = entry.dist.version if entry.dist else ""
    return _problems


def load_all(files: Iterable[str]) -> None:
    """What a process that takes part in a run does first: load what the process that started it had loaded."""
    load_entry_points()
    for file in files:
        load_plugin(file)


def _describe(error: Exception, file: Path | None = None) -> str:
    """One line: the exception, and where in ``file`` it came from."""
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if file and f.filename == str(file)]
    where = f"line {lines[-1]}: " if lines else ""
    return where + " ".join(f"{type(error).__name__}: {error}".split())
