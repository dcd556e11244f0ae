"""The registry of models. A registered model can be used in fleets and appears in ``asfedbridge list models``.

- ``register_family``: a ``Backbone`` for every kind and width. Initial values come from the run's seed; ANN and SNN
  twins start equal.
- ``register_model``: any ``torch.nn.Module`` whose ``forward`` returns an ``Output``. It is constructed with the task
  and the client and initialises itself; torch's generator is seeded with the run's seed first.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar, get_args

from torch import nn

from asfedbridge.core.errors import BadInput, nearest
from asfedbridge.core.task import Kind
from asfedbridge.models.backbone import Backbone

F = TypeVar("F", bound=type[Backbone])
M = TypeVar("M", bound=Callable[..., nn.Module])


@dataclass(frozen=True)
class Model:
    make: Callable[..., nn.Module]
    about: str  # one line for ``asfedbridge list models``
    kinds: tuple[str, ...] | None  # None: all kinds
    family: bool


MODELS: dict[str, Model] = {}
UNNAMED: dict[str, Model] = {}  # entries of MODELS that come from a Federation, not from a decorator; sent to workers


def register_family(name: str, about: str) -> Callable[[F], F]:
    """Class decorator for subclasses of ``Backbone``."""

    def enter(family: F) -> F:
        _enter(name, Model(family, about, None, family=True))
        return family

    return enter


def register_model(name: str, about: str, kinds: tuple[str, ...] = ("ann",)) -> Callable[[M], M]:
    """Decorator for a class or function ``make(task, info) -> nn.Module``. ``kinds`` lists the kinds it supports."""
    if isinstance(kinds, str) or not kinds or not set(kinds) <= set(get_args(Kind)):
        raise ValueError(f"model '{name}': kinds={kinds!r} must be a tuple of some of {', '.join(get_args(Kind))}")

    def enter(make: M) -> M:
        _enter(name, Model(make, about, tuple(kinds), family=False))
        return make

    return enter


def find_model(name: str) -> Model:
    if name not in MODELS:
        raise BadInput(f"unknown model '{name}'{nearest(name, MODELS)}")
    return MODELS[name]


def register_unnamed(models: Mapping[str, Model]) -> None:
    """Registers the models of a ``Federation``, which come from objects of the user's script, and removes those of
    previous ones."""
    for name in UNNAMED:
        MODELS.pop(name, None)
    UNNAMED.clear()
    for name, model in models.items():
        _enter(name, model)
        UNNAMED[name] = model


def _enter(name: str, model: Model) -> None:
    if not name or set(name) & set("*@:,= "):
        raise ValueError(f"invalid model name '{name}': use at least one character, and none of * @ : , = or space")
    known = MODELS.get(name)
    # A worker process imports the main script under another name and registers the same model again.
    if known and (_name_of(known.make), known.family) != (_name_of(model.make), model.family):
        raise ValueError(f"model '{name}' is already registered; choose another name")
    MODELS[name] = model


def _name_of(make: Callable[..., nn.Module]) -> str:
    return getattr(make, "__qualname__", repr(make))  # callable objects have no __qualname__
