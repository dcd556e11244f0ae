"""All models by name. A model is made known by one decorator; the command line, fleets and lists follow from it.

- ``register_family``: a ``Backbone`` of every kind and width. Its values come from the run's seed, twins start equal.
- ``register_model``: any ``torch.nn.Module`` whose ``forward`` returns an ``Output``. It is called with the task and
  the client; it initialises itself, from a generator that the run's seed has set.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
UNNAMED: dict[str, Model] = {}  # those of MODELS that no import registers: they are sent to worker processes


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


def register_unnamed(models: Mapping[str, Model]) -> None:
    """Have these models, and no other unnamed ones: those of a ``Federation``, made of objects of the user's script."""
    for name in UNNAMED:
        MODELS.pop(name, None)
    UNNAMED.clear()
    for name, model in models.items():
        _enter(name, model)
        UNNAMED[name] = model


def _enter(name: str, model: Model) -> None:
    if not name or set(name) & set("*@:,= "):
        raise ValueError(f"a fleet cannot name a model '{name}': leave out spaces and any of * @ : , =")
    known = MODELS.get(name)
    # A worker process runs the main script again under another name: the same model, not a second one.
    if known and (_name_of(known.make), known.family) != (_name_of(model.make), model.family):
        raise ValueError(f"two models are called '{name}'")
    MODELS[name] = model


def _name_of(make: Callable[..., nn.Module]) -> str:
    return getattr(make, "__qualname__", repr(make))  # an object that can be called has none
