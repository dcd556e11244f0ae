"""Several runs from one command: comma-separated lists of values, and seeds.

``rounds=10,20 method=fml,standalone`` with two seeds are eight runs. A list in a key that takes a single value is a
sweep. In a key whose value may contain commas it is one if every part is a value by itself: names of data sets,
partitions and named fleets, and [first, last] pairs in brackets.
"""

import hashlib
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_origin, get_type_hints

from asfedbridge.core.errors import BadInput
from asfedbridge.core.method import METHODS
from asfedbridge.data.sources.registry import find_source
from asfedbridge.methods import DEFAULT
from asfedbridge.runs.api import recipe
from asfedbridge.runs.fleet import COUNTS, FLEETS
from asfedbridge.runs.keys import NESTED
from asfedbridge.runs.spec import Spec, method_fields
from asfedbridge.runs.toml import parse_value

METHOD_KEYS = ("method", "method.name")
MAX_RUNS = 10_000
MAX_NAME = 100  # characters of a folder name
OUTSIDE_PARENTHESES = re.compile(r",(?![^(]*\))")


def expand(name: str, settings: Mapping[str, str], seeds: Sequence[int] = ()) -> dict[str, Spec]:
    """The specifications of all combinations, by folder name; a single one, without a name, if nothing is listed.

    ``settings`` are keys and values as typed. A field of a method is left out of runs of listed methods that lack it.
    Equal specifications are listed once.
    """
    if seeds and "seed" in settings:
        listed = ",".join(map(str, seeds))
        raise BadInput(f"seed={settings['seed']} with seeds={listed}: give the seeds in one place")
    methods = _methods(settings)
    values = {key: list_values(key, text, methods) for key, text in settings.items()}
    if seeds:
        values["seed"] = [str(seed) for seed in seeds]
    swept = [key for key, found in values.items() if len(found) > 1 or (key == "seed" and seeds)]
    runs, digests = dict[str, Spec](), set[str]()
    for number, combination in enumerate(itertools.product(*values.values())):
        if number == MAX_RUNS:
            raise BadInput(f"the lists have more than {MAX_RUNS} combinations; give shorter ones")
        chosen = dict(zip(values, combination, strict=True))
        (method,) = _methods(chosen)
        own = {key: text for key, text in chosen.items() if len(methods) == 1 or _applies(key, method, methods)}
        spec = recipe(name, {key: parse_value(text) for key, text in own.items()})
        if spec.digest() not in digests:
            digests.add(spec.digest())
            runs[_folder_name({key: own[key] for key in swept if key in own}, runs)] = spec
    return runs


def list_values(key: str, text: str, methods: Sequence[str] = (DEFAULT,)) -> list[str]:
    """The values of a list, or the text itself if it is one value."""
    if "," not in text:
        return [text]
    parts = [part.strip() for part in OUTSIDE_PARENTHESES.split(text)]
    hint = _hint(key, methods)
    if key in METHOD_KEYS or hint in (int, float, bool) or get_origin(hint) is Literal:
        return [part.strip() for part in text.strip("[]").split(",") if part.strip()]
    if get_origin(hint) is tuple:
        found = parse_value(text)
        pairs = isinstance(found, list) and all(isinstance(entry, list) for entry in found)
        return [str(entry) for entry in found] if pairs else [text]
    single: Mapping[str, Callable[[str], bool]] = {"data": _is_source, "partition": bool, "fleet": _is_named_fleet}
    return parts if key in single and all(map(single[key], parts)) else [text]


def _methods(settings: Mapping[str, str]) -> list[str]:
    text = next((settings[key] for key in METHOD_KEYS if key in settings), DEFAULT)
    return [part.strip() for part in text.strip("[]").split(",") if part.strip()] or [text]


def _hint(key: str, methods: Sequence[str]) -> Any:
    """The type of a key; None for an unknown one."""
    head, _, field = key.partition(".")
    if not field:
        return get_type_hints(Spec).get(key)
    if head in NESTED:
        return get_type_hints(NESTED[head]).get(field)
    owners = [METHODS[name] for name in methods if name in METHODS and field in method_fields(METHODS[name])]
    return get_type_hints(owners[0]).get(field) if head == "method" and owners else None


def _applies(key: str, method: str, methods: Sequence[str]) -> bool:
    """False for a field that this method lacks and another one of the list has."""
    head, _, field = key.partition(".")
    if head != "method" or not field or key in METHOD_KEYS:
        return True
    having = [name for name in methods if name in METHODS and field in method_fields(METHODS[name])]
    return not having or method in having


def _is_source(name: str) -> bool:
    try:
        find_source(name)
    except BadInput:
        return False
    return True


def _is_named_fleet(text: str) -> bool:
    name = text.partition("@")[0].strip()
    return name in FLEETS or COUNTS.fullmatch(name) is not None


def _folder_name(settings: Mapping[str, str], taken: Mapping[str, Any]) -> str:
    """KEY=VALUE of what differs, in characters that no shell or file system treats specially."""
    full = ",".join(f"{key.removeprefix('method.')}={text}" for key, text in settings.items())
    name = re.sub(r"[^\w.,=+@-]+", "-", full, flags=re.ASCII).strip("-.")
    if len(name) > MAX_NAME or name in taken:
        name = f"{name[: MAX_NAME - 9]}-{hashlib.sha256(full.encode()).hexdigest()[:8]}"
    return name
