"""The keys of specifications with their documentation, and suggestions for unknown keys."""

import dataclasses
import difflib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from asfedbridge.core.method import METHODS, Method
from asfedbridge.core.task import Neuron, Optimiser
from asfedbridge.methods import DEFAULT
from asfedbridge.runs.fields import CHOICES, describe_fields

NESTED: dict[str, type[Neuron | Optimiser]] = {"neuron": Neuron, "optimiser": Optimiser}
MAX_HINTS = 3
OTHER_WORDS = {  # names in other programs
    "learning_rate": "lr",
    "dataset": "data",
    "wd": "weight_decay",
    "bs": "batch_size",
    **dict.fromkeys(("clients", "num_clients", "model", "models", "backbone"), "fleet"),
    **dict.fromkeys(("steps", "timesteps", "time_steps"), "T"),
}


class Key(NamedTuple):
    """A key, such as ``method.mu``, of every specification or, for the field of a method, of those with ``method``."""

    name: str
    default: Any
    about: str  # empty: not documented
    method: str = ""


def list_keys(spec_class: type) -> Iterator[Key]:
    """All keys: of the run, of its tables, and of every registered method."""
    yield from _fields(spec_class, "", "", skip=("method", *NESTED))
    for name, cls in NESTED.items():
        yield from _fields(cls, f"{name}.")
    yield Key("method", DEFAULT, "a name of `asfedbridge list methods`; each field of it is a key method.FIELD")
    for name, method in sorted(METHODS.items()):
        yield from _fields(method, "method.", name)


def undocumented(keys: Iterable[Key]) -> list[str]:
    """Keys without a comment in the source, except those of users' own methods. A list of choices is not enough."""
    return [
        f"{key.name} ({key.method})" if key.method else key.name
        for key in keys
        if (not key.about or key.about.startswith(CHOICES))
        and (not key.method or METHODS[key.method].__module__.startswith("asfedbridge."))
    ]


def suggest(key: str, known: Sequence[str]) -> str:
    """The end of a message about an unknown key: similar known keys, including nested ones."""
    table, _, word = key.rpartition(".")
    word = OTHER_WORDS.get(word, word)
    last = {name: name.rpartition(".")[2] for name in known}
    found = [name for name in known if last[name] == word]
    found = found or [name for name in known if word in last[name].split("_")]
    found = [name for name in found if name.startswith(f"{table}.")] or found
    found.sort(key=lambda name: not last[name].startswith(word))
    if not found:
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
        nested = difflib.get_close_matches(word, sorted(set(last.values())), n=1, cutoff=0.6)
        found = near or [name for name in known if last[name] in nested]
    if not found and (owners := [name for name, cls in sorted(METHODS.items()) if _has_field(cls, word)]):
        return f"; method.{word} is a key of {_either(owners)}"
    hint = f"; did you mean {_either(found[:MAX_HINTS])}?" if found else ";"
    return f"{hint} `asfedbridge list settings` prints all keys"


def _fields(cls: type, prefix: str, method: str = "", skip: Sequence[str] = ()) -> Iterator[Key]:
    about = describe_fields(cls)
    for field in dataclasses.fields(cls):
        if field.name not in skip:
            yield Key(prefix + field.name, field.default, about[field.name], method)


def _has_field(cls: type[Method], name: str) -> bool:
    return name in {field.name for field in dataclasses.fields(cls)}


def _either(names: Sequence[str]) -> str:
    quoted = [f"'{name}'" for name in names]
    return " or ".join([", ".join(quoted[:-1]), quoted[-1]] if quoted[1:] else quoted)
