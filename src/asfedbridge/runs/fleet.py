"""Parses fleets such as ``5*resnet18:ann,3*resnet18@0.25:snn:T=8,2*resnet18:qnn:b=4``.

Entries are separated by commas: [count*]model[@width]:kind[:T=steps][:b=bits]. Clients are numbered in this order.
Kinds are ann, snn (T steps), bnn (1 bit) and qnn (b bits). ``FLEETS`` are named fleets; ``N+M`` is N ANN and M SNN
clients. ``5xresnet18:ann`` is read as ``5*resnet18:ann``, because some shells expand an asterisk.
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
OPTIONS = {"ann": "", "snn": "T", "bnn": "", "qnn": "b"}  # the option of each kind
DEFAULT_BITS, MIN_BITS, MAX_BITS = 4, 2, 8  # of a qnn
N = TypeVar("N", int, float)
MAX_CLIENTS, MAX_STEPS, MIN_WIDTH, MAX_WIDTH = 10_000, 64, 0.01, 4.0

# The paper's fleets: ResNet-18 at width 1. ``name_fleet`` adapts them to the families and the width of a recipe.
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

TIMES = re.compile(r"(?<![^,\s])(\d+)x(?=[^,]*:)")  # 5x before a model
COUNTS = re.compile(r"(\d{1,9})\+(\d{1,9})")  # N+M; those with ten clients are the paper's and are in FLEETS


def name_fleet(text: str, base: Sequence[ClientInfo]) -> str:
    """A named fleet, NAME or NAME@width (also N+M), expanded with the models of ``base``. Other text is unchanged.

    Width 1 becomes the width of the widest client of ``base``, and ResNet-18 becomes the family that ``base`` has for
    that kind (or for its first client). The fleet ``architecture`` keeps its families.
    """
    name, at, own = (part.strip() for part in text.partition("@"))
    line = _named(name)
    if line is None:
        return text
    width = max(c.width for c in base)
    if at:
        width = _number(own, float, MIN_WIDTH, MAX_WIDTH, f"fleet '{text}': width")
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


def star_counts(text: str) -> str:
    """A fleet with ``*`` after every count, for one that has ``x``; names of registered models stay as they are."""
    entries = (
        e if e.strip().partition(":")[0].partition("@")[0] in MODELS else TIMES.sub(r"\1*", e) for e in text.split(",")
    )
    return ",".join(entries)


def _named(name: str) -> str | None:
    counts = COUNTS.fullmatch(name)
    if not counts:
        return FLEETS.get(name)
    ann, snn = (int(count) for count in counts.groups())
    if not 1 <= ann + snn <= MAX_CLIENTS:
        raise BadInput(f"fleet '{name}': {ann + snn} clients are out of range; use 1 to {MAX_CLIENTS}")
    return ",".join(f"{count}*resnet18:{kind}" for kind, count in (("ann", ann), ("snn", snn)) if count)


def parse_fleet(text: str, steps: int) -> list[ClientInfo]:
    """Clients without data sizes; ``steps`` is T of entries without one."""
    clients: list[ClientInfo] = []
    for number, entry in enumerate(star_counts(text).split(","), start=1):
        where = f"fleet entry {number} '{entry.strip()}'"
        match = ENTRY.fullmatch(entry.strip())
        if not match:
            named = nearest(entry.strip(), FLEETS) if number == 1 else ""
            raise BadInput(f"{where}: write {FORM}, e.g. 5*resnet18@0.25:snn, or a named fleet{named}")
        for client in parse_entry(match, steps, where):
            clients.append(dataclasses.replace(client, id=len(clients)))
    if len(clients) > MAX_CLIENTS:
        raise BadInput(f"fleet: {len(clients)} clients are out of range; use 1 to {MAX_CLIENTS}")
    return clients


def parse_entry(match: re.Match[str], steps: int, where: str) -> list[ClientInfo]:
    """The clients of a match of ``ENTRY``, all with id 0. Error messages begin with ``where``."""
    count = _number("1" if match["count"] is None else match["count"], int, 1, MAX_CLIENTS, f"{where}: count")
    width = _number("1.0" if match["width"] is None else match["width"], float, MIN_WIDTH, MAX_WIDTH, f"{where}: width")
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
    T, bits = (steps if kind == "snn" else 1), {"bnn": 1, "qnn": DEFAULT_BITS}.get(kind, 32)
    if "T" in given:
        T = _number(given["T"], int, 1, MAX_STEPS, f"{where}: T")
    if "b" in given:
        bits = _number(given["b"], int, MIN_BITS, MAX_BITS, f"{where}: b")
    return [ClientInfo(0, kind, model, width, T, bits=bits)] * count  # type: ignore[arg-type]


def one_of_each(clients: Sequence[ClientInfo]) -> list[ClientInfo]:
    """The first client of every model, width, kind, T and bits, renumbered from 0."""
    return [dataclasses.replace(c, id=number) for number, c in enumerate(first_of_each(clients))]


def _number(text: str, kind: type[N], least: float, most: float, where: str) -> N:
    try:
        value = kind(text)
    except ValueError:
        raise BadInput(f"{where} '{text}' is not a number") from None
    if not least <= value <= most:
        raise BadInput(f"{where} {text} is out of range; use {least:g} to {most:g}")
    return value
