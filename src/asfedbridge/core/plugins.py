"""Plugins: user code that registers methods, models, data sets or callbacks on import.

A plugin is a Python file (``--import FILE.py``, ``load_plugin``) or an installed package with an entry point in the
group ``asfedbridge.plugins`` (``load_entry_points``). Every process of a run loads the same plugins before it uses a
registry.
"""

import hashlib
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path

from asfedbridge.core.errors import BadInput, describe_error
from asfedbridge.core.reading import is_there

GROUP = "asfedbridge.plugins"
FILES: list[str] = []  # absolute paths of the files loaded by load_plugin, in order
PACKAGES: dict[str, str] = {}  # versions of the packages loaded by load_entry_points
_problems: list[str] | None = None  # the result of load_entry_points; None: not called yet


def load_plugin(path: str | Path) -> None:
    """Execute a Python file once. It can import files in its folder.

    The module name depends only on the path, so objects of its classes can be sent to any process that has loaded the
    same file.
    """
    full = Path(path).resolve()
    if str(full) in FILES:
        return
    if full.suffix != ".py" or not is_there(full) or not full.is_file():
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
        raise BadInput(f"import {path}: {describe_error(error, str(full))}") from error
    FILES.append(str(full))


def load_entry_points() -> list[str]:
    """Import the plugins of all installed packages on the first call; return one line for each that failed.

    A failed import does not affect other plugins or runs that do not need it.
    """
    global _problems
    if _problems is None:
        from importlib import metadata  # slower than all other imports of `asfedbridge --help`

        _problems = []
        for entry in sorted(metadata.entry_points(group=GROUP), key=lambda e: (e.name, e.value)):
            package = entry.dist.name if entry.dist else entry.value
            try:
                entry.load()
            except Exception as error:
                _problems.append(
                    f"package {package}: its plugin '{entry.name}' ({entry.value}) was not loaded "
                    f"({describe_error(error)}); repair or uninstall the package"
                )
            else:
                PACKAGES[package] = entry.dist.version if entry.dist else ""
    return _problems


def load_all(files: Iterable[str]) -> None:
    """Load the plugins of the parent process. Every process of a run calls this first."""
    load_entry_points()
    for file in files:
        load_plugin(file)
