"""Functions of the public API: ``recipe``, ``run`` and ``federate``. ``import asfedbridge as afb`` has them all."""

import importlib
import os
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asfedbridge.core.errors import BadInput
from asfedbridge.core.method import Method
from asfedbridge.core.plugins import load_entry_points
from asfedbridge.data.sources.registry import data_root as find_data_root
from asfedbridge.methods import DEFAULT
from asfedbridge.runs.callback import Callback
from asfedbridge.runs.federation import Federation, dotted, start_recipe
from asfedbridge.runs.recipes import demands, quickstart
from asfedbridge.runs.result import Result, load
from asfedbridge.runs.run import Setting, execute
from asfedbridge.runs.spec import Spec, apply_overrides, from_table
from asfedbridge.runs.toml import read_toml

ENGINES = ("local", "pool", "flower")
# Parts of packages that build on this one; imported when they are asked for.
FLOWER, PROGRESS = "asfedbridge.deploy.local_run", "asfedbridge.report.progress"


def recipe(name: str | Path = "quickstart", changes: Mapping[str, Any] | None = None, /, **keys: Any) -> Spec:
    """The specification of a run: a recipe, or a .toml file, with changes.

    Keys are those of the command line. A dotted key, such as method.mu, is an entry of ``changes`` or is written with
    two underscores: ``method__mu=0.1``. ``method`` is a name, or an instance of a ``Method``. A recipe applies
    the settings of the data set unless they are given; a file is used as it is.

    >>> afb.recipe("cpu", method="fedprox", method__mu=0.1, data="npz:mine.npz", seed=1)
    >>> afb.recipe("cpu", {"method.mu": 0.1, "optimiser.lr_ann": 0.02}, method="fedprox")
    """
    _load_plugins()
    settings = {**(changes or {}), **dotted(keys)}
    method = settings.get("method", DEFAULT)
    if isinstance(method, Method):
        del settings["method"]
    if str(name).endswith(".toml"):
        spec = from_table(read_toml(Path(name)), quickstart())
        if isinstance(method, Method):
            raise BadInput(f"method={method!r} with {name}: name the method, and set its fields as method__FIELD")
        return apply_overrides(spec, settings)
    spec = start_recipe(str(name), method if isinstance(method, str | Method) else DEFAULT)
    return apply_overrides(spec, {**demands(str(name), str(settings.get("data", ""))), **settings})


def run(
    spec: Spec | str,
    out: str | Path | None = None,
    engine: str = "local",
    workers: int = 0,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    data_root: str | Path | None = None,
    progress: bool = False,
) -> Result:
    """Train a federation to the end of its specification; the result is read from the run folder.

    Args:
        spec: from ``recipe``, or the name of a recipe or .toml file.
        out: the run folder; by default a new one below ``runs/``.
        engine: where clients work: "local" (this process), "pool" (worker processes) or "flower" (SuperNodes of
            Flower on this machine). The bits are the same. A script that uses "pool" needs
            ``if __name__ == "__main__":``.
        workers: the number of worker processes of "pool"; 0: as many as cores.
        resume: go on from the last checkpoint in ``out``, if there is a run of the same specification.
        callbacks: instances of ``Callback``, which observe the run and may stop it.
        data_root: the folder of downloaded data sets.
        progress: print a line for each round to stderr.

    >>> result = afb.run(afb.recipe("smoke", method="fedavg"), out="runs/mine", engine="pool")
    >>> result.accuracy
    {'ann': 18.2, 'snn': 11.9, 'all': 15.05}
    """
    _load_plugins()
    spec = spec if isinstance(spec, Spec) else recipe(spec)
    return _execute(spec, out, engine, workers, resume, callbacks, data_root, progress)


def federate(
    federation: Federation,
    rounds: int | None = None,
    engine: str = "local",
    out: str | Path | None = None,
    workers: int = 0,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    progress: bool = False,
    **settings: Any,
) -> Result:
    """Train a federation of your own models and data sets; further ``settings`` are those of ``Federation``.

    With ``engine="pool"``, workers import what the federation is made of: classes and functions must stand at the top
    level of a module or of the script, and the script needs ``if __name__ == "__main__":``. Data sets are read in this
    process and need not be importable.

    >>> result = afb.federate(federation, rounds=20, engine="pool", out="runs/mine")
    """
    _load_plugins()
    if engine == "flower":
        raise BadInput("engine=flower: the participants are objects of this process; use engine=local or engine=pool")
    if rounds is not None:
        settings["rounds"] = rounds
    spec, setting = federation.prepare(**settings)
    return _execute(spec, out, engine, workers, resume, callbacks, None, progress, setting)


def default_folder(spec: Spec) -> Path:
    """The run folder of a run that names none."""
    return Path("runs") / f"{spec.method.name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"


def _execute(
    spec: Spec,
    out: str | Path | None,
    engine: str,
    workers: int,
    resume: bool,
    callbacks: Sequence[Callback],
    root: str | Path | None,
    progress: bool,
    setting: Setting | None = None,
) -> Result:
    if engine not in ENGINES:
        raise BadInput(f"engine={engine}: unknown engine; use one of {', '.join(ENGINES)}")
    if type(workers) is not int or workers < 0:
        raise BadInput(f"workers={workers!r} must be a number of processes, or 0 for one per core")
    if workers and engine != "pool":
        raise BadInput(f"workers={workers}: the {engine} engine has none; use engine=pool")
    if isinstance(callbacks, Callback) or not all(isinstance(callback, Callback) for callback in callbacks):
        raise BadInput(f"callbacks={callbacks!r} must be a list of instances of Callback, e.g. [EarlyStopping()]")
    if resume and out is None:
        raise BadInput("resume=True needs out, the folder of the run to go on with")
    folder = Path(out) if out is not None else default_folder(spec)
    found = find_data_root(str(root) if root is not None else None)
    if engine == "flower":
        if callbacks:
            raise BadInput(
                "callbacks: objects cannot be sent to the server's process of engine=flower; register the callback and "
                "name it on the command line, or use engine=local or engine=pool"
            )
        tell = print if progress else _say_nothing
        importlib.import_module(FLOWER).execute(spec, folder, found, tell, resume)
    else:
        shown = [importlib.import_module(PROGRESS).Progress()] if progress else []
        execute(spec, folder, found, [*shown, *callbacks], resume, engine, workers, setting)
    return load(folder)


def _say_nothing(*_: Any) -> None:
    pass


def _load_plugins() -> None:
    for problem in load_entry_points():
        warnings.warn(problem, stacklevel=3)
