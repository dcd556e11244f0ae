"""Fleets in one line: ``5*resnet18:ann,5*resnet18@0.25:snn:T=8``.

Entries are separated by commas: [count*]model[@width]:kind[:T=steps]. Clients are numbered in the order written.
"""

import dataclasses
import re
from collections.abc import Sequence
from typing import TypeVar

import asfedbridge.models.zoo  # noqa: F401  registers every family
from asfedbridge.core.errors import BadInput, nearest
from asfedbridge.core.protocol import ClientInfo, first_of_each
from asfedbridge.models.registry import MODELS

ENTRY = re.compile(
    r"(?:(?P<count>[^*:@]*)\*)?(?P<model>[^*:@]+)(?:@(?P<width>[^*:@]*))?:(?P<kind>[^*:@]+)(?P<options>(?::[^:]*)*)"
)
KINDS = ("ann", "snn")
N = TypeVar("N", int, float)
MOST_CLIENTS, MOST_STEPS, WIDEST = 10_000, 64, 4.0


def parse_fleet(text: str, steps: int) -> list[ClientInfo]:
    """Clients without data sizes yet; ``steps`` is T where an entry names none."""
    clients: list[ClientInfo] = []
    for number, entry in enumerate(text.split(","), start=1):
        where = f"fleet entry {number} '{entry.strip()}'"
        match = ENTRY.fullmatch(entry.strip())
        if not match:
            raise BadInput(f"{where}: write [count*]model[@width]:kind[:T=steps], e.g. 5*resnet18@0.25:snn")
        count = _number("1" if match["count"] is None else match["count"], int, 1, MOST_CLIENTS, f"{where}: count")
        width = _number("1.0" if match["width"] is None else match["width"], float, 0.01, WIDEST, f"{where}: width")
        model, kind = match["model"], match["kind"]
        if model not in MODELS:
            raise BadInput(f"{where}: unknown model '{model}'{nearest(model, MODELS)}")
        if kind not in (kinds := MODELS[model].kinds or KINDS):
            raise BadInput(f"{where}: unknown kind '{kind}'{nearest(kind, kinds)}")
        given: dict[str, str] = {}
        for option in match["options"].split(":")[1:]:
            key, _, value = option.partition("=")
            if key != "T" or kind != "snn" or key in given:
                again = "is given twice" if key in given else f"is not known for kind {kind}; an snn takes T=steps"
                raise BadInput(f"{where}: option '{option}' {again}")
            given[key] = value
        own_steps = _number(given["T"], int, 1, MOST_STEPS, f"{where}: T") if given else steps
        for _ in range(count):
            clients.append(ClientInfo(len(clients), kind, model, width, own_steps if kind == "snn" else 1))  # type: ignore[arg-type]
    if len(clients) > MOST_CLIENTS:
        raise BadInput(f"fleet: {len(clients)} clients are more than {MOST_CLIENTS}")
    return clients


def one_of_each(clients: Sequence[ClientInfo]) -> list[ClientInfo]:
    """The first client of every model, width, kind and T, numbered anew."""
    return [dataclasses.replace(c, id=number) for number, c in enumerate(first_of_each(clients))]


def _number(text: str, kind: type[N], least: float, most: float, where: str) -> N:
    try:
        value = kind(text)
    except ValueError:
        raise BadInput(f"{where} '{text}' is not a number") from None
    if not least <= value <= most:
        raise BadInput(f"{where} {text} is out of range; use {least:g} to {most:g}")
    return value
