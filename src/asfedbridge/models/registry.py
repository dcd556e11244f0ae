"""All models by name. A model is made known by one decorator; the command line, fleets and lists follow from it.

- ``register_family``: a ``Backbone`` of every kind and width. Its values come from the run's seed, twins start equal.
- ``register_model``: any ``torch.nn.Module`` whose ``forward`` returns an ``Output``. It is called with the task and
  the client; it initialises itself, from a generator that the run's seed has set.
"""

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from torch import nn

from asfedbridge.core.errors import BadInput, nearest
from asfedbridge.models.backbone import Backbone

F = TypeVar("F", bound=type[Backbone])
M = TypeVar("M", bound=Callable[..., nn.Module])


@dataclass(frozen=True)
class Model:
    make: Callable[..., nn.Module]
    about: str  # one line for ``asfedbridge list models``
    kinds: tuple[str, ...] | None  # None: every kind there is
    family: bool


MODELS: dict[str, Model] = {}
FILES: list[str] = []  # what ``load_file`` has run: worker processes run them too


def register_family(name: str, about: str) -> Callable[[F], F]:
    """Class decorator for families on ``Backbone``."""

    def enter(family: F) -> F:
        _enter(name, Model(family, about, None, family=True))
        return family

    return enter


def register_model(name: str, about: str, kinds: tuple[str, ...] = ("ann",)) -> Callable[[M], M]:
    """Decorator for a class or function ``make(task, info) -> nn.Module``; ``kinds`` is what it can be in a fleet."""

    def enter(make: M) -> M:
        _enter(name, Model(make, about, kinds, family=False))
        return make

    return enter


def find_model(name: str) -> Model:
    if name not in MODELS:
        raise BadInput(f"unknown model '{name}'{nearest(name, MODELS)}")
    return MODELS[name]


def load_file(path: str) -> None:
    """Run a Python file that registers models, here and in every worker process that is started later."""
    full = str(Path(path).resolve())
    if full in FILES:
        return
    if not full.endswith(".py") or not Path(full).is_file():
        raise BadInput(f"--import {path}: there is no such Python file")
    sys.path.append(str(Path(full).parent))  # for what stands beside it
    spec = importlib.util.spec_from_file_location(f"asfedbridge_import_{len(FILES)}", full)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    FILES.append(full)


def _enter(name: str, model: Model) -> None:
    if not name or set(name) & set("*@:,= "):
        raise ValueError(f"a fleet cannot name a model '{name}': leave out spaces and any of * @ : , =")
    known = MODELS.get(name)
    # A worker process runs the main script again under another name: the same model, not a second one.
    if known and (known.make.__qualname__, known.family) != (model.make.__qualname__, model.family):
        raise ValueError(f"two models are called '{name}'")
    MODELS[name] = model
