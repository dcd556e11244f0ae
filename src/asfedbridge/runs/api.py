"""The functions ``recipe``, ``run`` and ``federate`` of the public API."""

import importlib
import itertools
import os
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from asfedbridge.core.errors import BadInput
from asfedbridge.core.method import Method
from asfedbridge.core.plugins import load_entry_points
from asfedbridge.data.sources.registry import data_root as find_data_root
from asfedbridge.methods import DEFAULT
from asfedbridge.runs.callback import Callback
from asfedbridge.runs.federation import Federation, dotted, start_recipe
from asfedbridge.runs.recipes import demands, quickstart
from asfedbridge.runs.result import Result, load
from asfedbridge.runs.run import execute
from asfedbridge.runs.setting import Setting
from asfedbridge.runs.spec import Spec, apply_overrides, from_table
from asfedbridge.runs.toml import read_toml

ENGINES = ("local", "pool", "flower")
# Modules of packages that build on this one, imported on demand.
FLOWER, PROGRESS = "asfedbridge.deploy.local_run", "asfedbridge.report.progress"


def recipe(name: str | Path = "quickstart", changes: Mapping[str, Any] | None = None, /, **keys: Any) -> Spec:
    """The specification of a run: a recipe or a .toml file, with changes.

    Keys are those of the command line. A dotted key, such as method.mu, is an entry of ``changes`` or is written with
    two underscores: ``method__mu=0.1``. ``method`` is a name or an instance of a ``Method``. A recipe applies the
    settings of the data set unless they are given; a file does not.

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
    *,
    engine: str = "local",
    workers: int = 0,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    data_root: str | Path | None = None,
    progress: bool = False,
    from_round: int | None = None,
) -> Result:
    """Run a specification and return the result, which is read from the run folder.

    Args:
        spec: from ``recipe``, or the name of a recipe or .toml file.
        out: the run folder; by default a new one below ``runs/``.
        engine: where clients are trained: "local" (this process), "pool" (worker processes) or "flower" (SuperNodes
            of Flower on this machine). All give the same bits. A script that uses "pool" needs
            ``if __name__ == "__main__":``.
        workers: the number of worker processes of "pool"; 0: one per core.
        resume: continue from the last checkpoint in ``out``, if it holds a run of the same specification.
        callbacks: instances of ``Callback``, which observe the run and may stop it.
        data_root: the folder of downloaded data sets.
        progress: print a line for each round to stderr.
        from_round: with ``resume``, go back to the checkpoint after this many rounds (``keep_checkpoints``).

    >>> result = afb.run(afb.recipe("smoke", method="fedavg"), out="runs/mine", engine="pool")
    >>> result.accuracy
    {'ann': 18.2, 'snn': 11.9, 'all': 15.05}
    """
    _load_plugins()
    spec = spec if isinstance(spec, Spec) else recipe(spec)
    return _execute(spec, out, engine, workers, resume, callbacks, data_root, progress, from_round=from_round)


def federate(
    federation: Federation,
    rounds: int | None = None,
    *,
    engine: str = "local",
    out: str | Path | None = None,
    workers: int = 0,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    progress: bool = False,
    from_round: int | None = None,
    **settings: Any,
) -> Result:
    """Train a federation of your own models and data sets; further ``settings`` are those of ``Federation``.

    With ``engine="pool"``, worker processes import the models: classes and functions must be defined at the top level
    of a module or of the script, and the script needs ``if __name__ == "__main__":``. Data sets are read in this
    process and need not be importable.

    >>> result = afb.federate(federation, rounds=20, engine="pool", out="runs/mine")
    """
    _load_plugins()
    if not isinstance(federation, Federation):
        raise BadInput(f"federation={federation!r} must be a Federation(method, clients)")
    if engine == "flower":
        raise BadInput("engine=flower: the participants are objects of this process; use engine=local or engine=pool")
    if rounds is not None:
        settings["rounds"] = rounds
    spec, setting = federation.prepare(**settings)
    return _execute(spec, out, engine, workers, resume, callbacks, None, progress, setting, from_round)


def default_folder(spec: Spec) -> Path:
    """A new run folder, for a run that names none."""
    start = Path("runs") / f"{spec.method.name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    names = (start if number == 1 else start.with_name(f"{start.name}-{number}") for number in itertools.count(1))
    return next(folder for folder in names if not folder.exists())


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
    from_round: int | None = None,
) -> Result:
    if engine not in ENGINES:
        raise BadInput(f"engine={engine}: unknown engine; use one of {', '.join(ENGINES)}")
    if type(workers) is not int or workers < 0:
        raise BadInput(f"workers={workers!r} must be a number of processes, or 0 for one per core")
    if workers and engine != "pool":
        raise BadInput(f"workers={workers}: the {engine} engine has no workers; use engine=pool")
    if not isinstance(callbacks, Sequence) or not all(isinstance(callback, Callback) for callback in callbacks):
        raise BadInput(f"callbacks={callbacks!r} must be a list of instances of Callback, e.g. [EarlyStopping()]")
    if resume and out is None:
        raise BadInput("resume=True needs out, the folder of the run to resume")
    if from_round is not None:
        check_from_round(from_round, resume)
    if not isinstance(out, str | Path | None) or out == "":
        raise BadInput(f"out={out!r} must be the path of a run folder, or None for a new one")
    folder = Path(out) if out is not None else default_folder(spec)
    found = find_data_root(str(root) if root is not None else None)
    if engine == "flower":
        if callbacks:
            raise BadInput(
                "callbacks: objects cannot be sent to the server's process of engine=flower; register the callback and "
                "name it on the command line, or use engine=local or engine=pool"
            )
        tell = print if progress else _say_nothing
        importlib.import_module(FLOWER).execute(spec, folder, found, tell, resume, from_round=from_round)
    else:
        shown = [importlib.import_module(PROGRESS).Progress()] if progress else []
        threads = torch.get_num_threads()
        try:
            options: dict[str, Any] = {"resume": resume, "engine": engine, "workers": workers, "from_round": from_round}
            execute(spec, folder, found, [*shown, *callbacks], setting=setting, **options)
        finally:
            torch.set_num_threads(threads)  # restore the setting of the calling process
    return load(folder)


def check_from_round(from_round: int, resume: bool) -> None:
    if type(from_round) is not int or from_round < 1:
        raise BadInput(f"from_round={from_round!r} must be a number of rounds, 1 or more")
    if not resume:
        raise BadInput(f"from_round={from_round} works only with resume; add resume=True")


def _say_nothing(*_: Any) -> None:
    pass


def _load_plugins() -> None:
    for problem in load_entry_points():
        warnings.warn(problem, stacklevel=3)
