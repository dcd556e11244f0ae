"""Fleets in one line: ``5*resnet18:ann,3*resnet18@0.25:snn:T=8,2*resnet18:qnn:b=4``.

Entries are separated by commas: [count*]model[@width]:kind[:T=steps][:b=bits]. Clients are numbered in the order
written. Kinds are ann, snn (T steps), bnn (1 bit) and qnn (b bits). The fleets of ``FLEETS`` have names;
``N+M`` is N ANN and M SNN clients.
"""

import dataclasses
import re
from collections.abc import Sequence
from typing import TypeVar

import asfedbridge.models.zoo  # noqa: F401  registers every family
from asfedbridge.core.errors import BadInput, nearest
from asfedbridge.core.task import ClientInfo, first_of_each
from asfedbridge.models.registry import MODELS

ENTRY = re.compile(
    r"(?:(?P<count>[^*:@]*)\*)?(?P<model>[^*:@]+)(?:@(?P<width>[^*:@]*))?:(?P<kind>[^*:@]+)(?P<options>(?::[^:]*)*)"
)
FORM = "[count*]model[@width]:kind[:T=steps][:b=bits]"
OPTIONS = {"ann": "", "snn": "T", "bnn": "", "qnn": "b"}  # what a kind may be told
BITS, FEWEST_BITS, MOST_BITS = 4, 2, 8  # of a qnn: where an entry names none, and the limits
N = TypeVar("N", int, float)
MOST_CLIENTS, MOST_STEPS, NARROWEST, WIDEST = 10_000, 64, 0.01, 4.0

# The paper's fleets: ResNet-18 at width 1. ``name_fleet`` writes them with the families and at the width of a recipe.
_SCALES = ("@0.25", "@0.5", "", "@0.25", "@0.5")
_ARCHITECTURES = ("resnet18", "vgg11", "vgg9", "resnet18", "mobilenet")
_LOW_BIT = {"bnn": "bnn", "qnn2": "qnn:b=2", "qnn4": "qnn:b=4", "qnn8": "qnn:b=8"}
FLEETS = {
    "scale": ",".join(f"resnet18{width}:{kind}" for kind in ("ann", "snn") for width in _SCALES),
    "architecture": ",".join(f"{model}:{kind}" for kind in ("ann", "snn") for model in _ARCHITECTURES),
    **{f"{n}+{10 - n}": f"{n}*resnet18:ann,{10 - n}*resnet18:snn" for n in range(1, 10)},
    **{name: f"10*resnet18:{kind}" for name, kind in ({"ann": "ann", "snn": "snn"} | _LOW_BIT).items()},
    **{f"ann+{name}": f"5*resnet18:ann,5*resnet18:{kind}" for name, kind in _LOW_BIT.items()},
}

COUNTS = re.compile(r"(\d+)\+(\d+)")  # N+M; those of ten clients are the paper's, and listed


def name_fleet(text: str, base: Sequence[ClientInfo]) -> str:
    """The line of a named fleet, NAME or NAME@width (also N+M), in the terms of another fleet; any other text as it is.

    Width 1 becomes the width of the widest client of ``base``, and ResNet-18 becomes the family that ``base`` has for
    that kind (or for its first client). The fleet ``architecture`` keeps its families.
    """
    name, at, own = (part.strip() for part in text.partition("@"))
    line = _named(name)
    if line is None:
        return text
    width = max(c.width for c in base)
    if at:
        width = _number(own, float, NARROWEST, WIDEST, f"fleet '{text}': width")
    entries = []
    for entry in line.split(","):
        head, _, kind = entry.partition(":")
        model, _, share = head.partition("@")
        count, star, model = model.rpartition("*")
        if name != "architecture":
            model = next((c.model for c in base if c.kind == kind.partition(":")[0]), base[0].model)
        scaled = width * float(share or 1)
        entries.append(f"{count}{star}{model}{'' if scaled == 1 else f'@{scaled:g}'}:{kind}")
    return ",".join(entries)


def _named(name: str) -> str | None:
    counts = COUNTS.fullmatch(name)
    if not counts:
        return FLEETS.get(name)
    ann, snn = (int(count) for count in counts.groups())
    if not 1 <= ann + snn <= MOST_CLIENTS:
        raise BadInput(f"fleet '{name}': {ann + snn} clients are out of range; use 1 to {MOST_CLIENTS}")
    return ",".join(f"{count}*resnet18:{kind}" for kind, count in (("ann", ann), ("snn", snn)) if count)


def parse_fleet(text: str, steps: int) -> list[ClientInfo]:
    """Clients without data sizes yet; ``steps`` is T where an entry names none."""
    clients: list[ClientInfo] = []
    for number, entry in enumerate(text.split(","), start=1):
        where = f"fleet entry {number} '{entry.strip()}'"
        match = ENTRY.fullmatch(entry.strip())
        if not match:
            named = nearest(entry.strip(), FLEETS) if number == 1 else ""
            raise BadInput(f"{where}: write {FORM}, e.g. 5*resnet18@0.25:snn, or a named fleet{named}")
        count = _number("1" if match["count"] is None else match["count"], int, 1, MOST_CLIENTS, f"{where}: count")
        width = _number(
            "1.0" if match["width"] is None else match["width"], float, NARROWEST, WIDEST, f"{where}: width"
        )
        model, kind = match["model"], match["kind"]
        if model not in MODELS:
            raise BadInput(f"{where}: unknown model '{model}'{nearest(model, MODELS)}")
        if kind not in (kinds := MODELS[model].kinds or tuple(OPTIONS)):
            raise BadInput(f"{where}: unknown kind '{kind}'{nearest(kind, kinds)}")
        given: dict[str, str] = {}
        for option in match["options"].split(":")[1:]:
            key, _, value = option.partition("=")
            if key != OPTIONS[kind] or not key or key in given:
                taken = "an snn takes T=steps, a qnn takes b=bits"
                why = "is given twice" if key in given else f"is not known for kind {kind}; {taken}"
                raise BadInput(f"{where}: option '{option}' {why}")
            given[key] = value
        T, bits = (steps if kind == "snn" else 1), {"bnn": 1, "qnn": BITS}.get(kind, 32)
        if "T" in given:
            T = _number(given["T"], int, 1, MOST_STEPS, f"{where}: T")
        if "b" in given:
            bits = _number(given["b"], int, FEWEST_BITS, MOST_BITS, f"{where}: b")
        for _ in range(count):
            clients.append(ClientInfo(len(clients), kind, model, width, T, bits=bits))  # type: ignore[arg-type]
    if len(clients) > MOST_CLIENTS:
        raise BadInput(f"fleet: {len(clients)} clients are more than {MOST_CLIENTS}")
    return clients


def one_of_each(clients: Sequence[ClientInfo]) -> list[ClientInfo]:
    """The first client of every model, width, kind, T and bits, numbered anew."""
    return [dataclasses.replace(c, id=number) for number, c in enumerate(first_of_each(clients))]


def _number(text: str, kind: type[N], least: float, most: float, where: str) -> N:
    try:
        value = kind(text)
    except ValueError:
        raise BadInput(f"{where} '{text}' is not a number") from None
    if not least <= value <= most:
        raise BadInput(f"{where} {text} is out of range; use {least:g} to {most:g}")
    return value
