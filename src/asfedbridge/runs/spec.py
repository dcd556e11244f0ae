"""The complete specification of a run: one frozen dataclass, read from and written to TOML, checked once."""

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import asfedbridge.methods  # noqa: F401  registers every method
from asfedbridge.core.compression import Codec
from asfedbridge.core.errors import BadInput, nearest
from asfedbridge.core.method import METHODS, Method
from asfedbridge.core.task import Neuron, Optimiser, Precision, ShortBatch
from asfedbridge.data.partition import check_partition
from asfedbridge.runs.fleet import MOST_STEPS, name_fleet, parse_fleet

ON_NODES = "nodes"  # in place of a data source: every node of a deployment has its own data
IN_PYTHON = "python"  # in place of a data source: every participant of a `Federation` brings its own data
Table = dict[str, Any]  # nested plain values, as TOML has them
D = TypeVar("D", Method, Neuron, Optimiser)


@dataclass(frozen=True)
class Spec:
    method: Method
    data: str = "digits"  # a name of `asfedbridge list data`, npz:PATH or folder:PATH
    train_per_class: int = 0  # use only the first N training examples of each class; 0: all
    test_per_class: int = 0  # use only the first N test examples of each class; 0: all
    image_size: int = 0  # pixels, images are resized to it; 0: as the source has it
    frames_by: Literal["count", "time"] = "count"  # how T frames share the events of a recording
    skip_damaged: bool = False  # leave out damaged or missing files of the source instead of stopping
    augment: Literal["auto", "none", "crop", "crop+flip", "resized-crop+flip"] = "auto"  # auto: the source's own
    partition: str = "dirichlet"  # or iid, classes:K, quantity:BETA, assigned, flwr:NAME(...); see docs/data.md
    alpha: float = 0.1  # of the Dirichlet partition: smaller is more skewed
    holdout: float = 0.0  # tuning: evaluate on this share of the training images, not on test images
    fleet: str = "5*resnet18:ann,5*resnet18:snn"  # the clients: COUNT*MODEL[@WIDTH]:KIND[:T=STEPS][:b=BITS],...
    T: int = 4  # time steps of SNN clients, and frames of event data
    rounds: int = 100  # of communication
    epochs: int = 5  # of the private backbone, per round
    batch_size: int = 256  # of local training
    short_batch: ShortBatch = "merge"  # merge: a last batch below half of batch_size joins the one before it
    participation: float = 1.0  # share of clients drawn each round
    evaluate_every: int = 1  # evaluate every N rounds, and after the last
    diagnose_every: int = 0  # compare clients (CKA, MMD, gradient cosine) every N rounds; 0: never
    seed: int = 42  # of shards, initial weights and batches
    start: Literal["equal", "by-kind"] = "equal"  # initial weights: one draw for all kinds, or one for each
    feature_dim: int = 256  # of the feature before the classifier, in every backbone and in the Bridge
    projector: Literal["linear", "identity"] = "linear"  # from the last stage to the feature
    twin_rounds: int = 0  # SNN clients train as their ANN twins for the first N rounds
    snn_loss: Literal["ce", "tet"] = "ce"  # supervision of SNN clients in methods without a rule of their own
    quantiser: Literal["lsq", "dorefa"] = "lsq"  # of QNN clients
    compress: Codec = "none"  # compression of payloads, both ways
    device: str = "auto"  # auto (CUDA where there is a device, else the CPU), cpu, cuda, cuda:N, mps
    precision: Precision = "fp32"  # of forward passes and losses; bf16 and fp16 by autocast, fp16 on CUDA only
    threads: int = 0  # of torch, in each process; 0: one per core (engine pool: by its own rule)
    checkpoint_every: int = 1  # write a checkpoint every N rounds
    snapshot_every: int = 0  # keep a checkpoint every N rounds, for later analysis; 0: none
    neuron: Neuron = field(default_factory=Neuron)
    optimiser: Optimiser = field(default_factory=Optimiser)

    def __post_init__(self) -> None:
        for name, least, most in RANGES:
            value = getattr(self, name)
            if not least <= value <= most:
                raise BadInput(f"{name}={value} is out of range; use {least:g} to {most:g}")
        for name, table in (("method", self.method), ("neuron", self.neuron), ("optimiser", self.optimiser)):
            for entry in dataclasses.fields(table):
                value = getattr(table, entry.name)
                for number in value if isinstance(value, tuple) else (value,):
                    if isinstance(number, int | float) and not (math.isfinite(number) and number >= 0):
                        raise BadInput(f"{name}.{entry.name}={value} must be finite and not negative")
        for name, value in (("threshold", self.neuron.threshold), ("sharpness", self.neuron.sharpness)):
            if value == 0:
                raise BadInput(f"neuron.{name}={value} must be above 0")
        if self.neuron.decay > 1:
            raise BadInput(f"neuron.decay={self.neuron.decay} must be at most 1")
        if self.optimiser.momentum >= 1:
            raise BadInput(f"optimiser.momentum={self.optimiser.momentum} must be below 1")
        if self.twin_rounds >= self.rounds:
            raise BadInput(
                f"twin_rounds={self.twin_rounds} with rounds={self.rounds}: no round is left in which SNNs train "
                f"as SNNs; use fewer than {self.rounds}"
            )
        if self.evaluate_every > 1 and self.participation < 1:
            raise BadInput(
                f"evaluate_every={self.evaluate_every} with participation={self.participation}: a client may never be "
                f"drawn in a round that evaluates; set one of them to 1"
            )
        if self.compress != "none" and self.method.bn_buffers == "averaged":
            raise BadInput(
                f"compress={self.compress} with method.bn_buffers=averaged: rounding could make a variance negative; "
                f"set one of them back (none, local)"
            )
        check_partition(self.partition)
        check_device(self.device)
        parse_fleet(self.fleet, self.T)

    def digest(self) -> str:
        """Identity of the results: two specifications with one digest give the same bits."""
        table = to_table(self)
        del table["checkpoint_every"], table["snapshot_every"]
        for name, default in later_fields(type(self.method)).items():
            place, _, key = name.rpartition(".")
            fields = table[place] if place else table
            if fields.get(key) == default:
                del fields[key]
        return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()


# Fields that came after the first runs, with the values those runs were made with. A field with this value is left out
# of the digest, so those runs keep their identity. The default of new runs may be another. Fields of a method are
# declared by it (``Method.later``).
LATER: Table = {
    "quantiser": "lsq",
    "frames_by": "count",
    "skip_damaged": False,
    "evaluate_every": 1,
    "diagnose_every": 0,
    "compress": "none",
    "twin_rounds": 0,
    "short_batch": "keep",
    "optimiser.clip": 0.0,
    "optimiser.name": "sgd",
    "precision": "fp32",
    "start": "equal",
}


def later_fields(cls: type[Method] | None) -> Table:
    """``LATER``, and what this method has of such fields."""
    return LATER | ({f"method.{name}": value for name, value in cls.later_fields().items()} if cls else {})


RANGES: tuple[tuple[str, float, float], ...] = (
    ("train_per_class", 0, 10**9),
    ("test_per_class", 0, 10**9),
    ("alpha", 1e-3, 1e6),
    ("holdout", 0, 0.9),
    ("T", 1, MOST_STEPS),
    ("rounds", 1, 10**6),
    ("epochs", 1, 10**4),
    ("batch_size", 1, 10**6),
    ("participation", 1e-6, 1),
    ("evaluate_every", 1, 10**6),
    ("twin_rounds", 0, 10**6 - 1),
    ("diagnose_every", 0, 10**6),
    ("seed", 0, 2**63 - 1),
    ("feature_dim", 1, 65536),
    ("threads", 0, 4096),
    ("checkpoint_every", 1, 10**6),
    ("snapshot_every", 0, 10**6),
)


def check_device(name: str) -> None:
    """BadInput unless it is the name of a device; that it is there is checked where the run begins."""
    if not re.fullmatch(r"auto|cpu|cuda(:\d{1,4})?|mps", name):
        raise BadInput(f"device={name}: unknown device; use auto, cpu, cuda, cuda:N (for example cuda:1) or mps")


def to_table(spec: Spec) -> Table:
    """Nested plain values; the method's name stands first in its table."""
    table = dataclasses.asdict(spec)
    table["method"] = {"name": spec.method.name, **table["method"]}
    return {key: _plain(value) for key, value in table.items()}


def from_table(table: Mapping[str, Any], base: Spec) -> Spec:
    """``base`` with the fields of ``table`` in place of its own; every name and type is checked.

    A named fleet is written out with the families of the base's fleet and at the width of its widest client.
    """
    changes: Table = {}
    for key, value in table.items():
        if key == "method":
            changes[key] = _method(value, base.method)
        elif key in ("neuron", "optimiser"):
            changes[key] = _update(getattr(base, key), _as_table(value, key), f"{key}.")
        else:
            changes |= _coerced(Spec, {key: value}, "")
    if "fleet" in changes:
        changes["fleet"] = name_fleet(changes["fleet"], parse_fleet(base.fleet, base.T))
    return dataclasses.replace(base, **changes)


def apply_overrides(spec: Spec, overrides: Mapping[str, Any]) -> Spec:
    """``spec`` with dotted keys changed, e.g. {"method.mu": 0.1, "rounds": 5}."""
    table: Table = {}
    for key, value in overrides.items():
        head, _, rest = key.partition(".")
        if not rest:
            entry = {"name": value} if key == "method" and isinstance(value, str) else value
            table[head] = table.get(head, {}) | entry if isinstance(entry, dict) else entry
        else:
            if head not in ("method", "neuron", "optimiser"):
                raise BadInput(f"unknown key '{key}'{nearest(key, known_keys(spec))}")
            table[head] = {**_as_table(table.get(head, {}), head), rest: value}
    return from_table(table, spec)


def restored(table: Mapping[str, Any]) -> Table:
    """The table of a stored run; fields that it lacks because they came later get the values it was run with."""
    full: Table = {key: dict(value) if isinstance(value, Mapping) else value for key, value in table.items()}
    method = full.setdefault("method", {})
    cls = METHODS.get(str(method.get("name"))) if isinstance(method, dict) else None
    for name, value in later_fields(cls).items():
        place, _, key = name.rpartition(".")
        fields = full.setdefault(place, {}) if place else full
        if isinstance(fields, dict):
            fields.setdefault(key, value)
    return full


def known_keys(spec: Spec) -> list[str]:
    keys = []
    for name, value in to_table(spec).items():
        keys += [f"{name}.{k}" for k in value] if isinstance(value, dict) else [name]
    return ["method", *keys]


def method_fields(cls: type[Method]) -> dict[str, Any]:
    """Hyper-parameters and their defaults."""
    return {f.name: f.default for f in dataclasses.fields(cls)}


def _method(value: Any, base: Method) -> Method:
    table = dict(_as_table({"name": value} if isinstance(value, str) else value, "method"))
    name = table.pop("name", base.name)
    if not isinstance(name, str) or name not in METHODS:
        raise BadInput(f"method={name}: unknown method{nearest(str(name), METHODS)}")
    start = base if name == base.name else METHODS[name]()
    return _update(start, table, "method.")


def _update(instance: D, table: Mapping[str, Any], prefix: str) -> D:
    return dataclasses.replace(instance, **_coerced(type(instance), table, prefix))


def _as_table(value: Any, key: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise BadInput(f"{key}={value!r} must be a table; set its fields as {key}.FIELD=VALUE")
    return value


def _coerced(cls: type, table: Mapping[str, Any], prefix: str) -> Table:
    known = get_type_hints(cls)
    hints = {f.name: known[f.name] for f in dataclasses.fields(cls)}
    values: Table = {}
    for key, value in table.items():
        if key not in hints:
            extra = ["name"] if prefix == "method." else []
            raise BadInput(f"unknown key '{prefix}{key}'{nearest(key, [*hints, *extra])}")
        values[key] = _coerce(value, hints[key], f"{prefix}{key}")
    return values


def _coerce(value: Any, hint: Any, name: str) -> Any:
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise BadInput(f"{name}={value}: unknown choice{nearest(str(value), get_args(hint))}")
        return value
    if get_origin(hint) is tuple:  # a ramp: two numbers, or one that stays
        numbers = value if isinstance(value, list | tuple) else [value, value]
        if len(numbers) != len(get_args(hint)):
            raise BadInput(f"{name}={value!r}: give {len(get_args(hint))} numbers, first and last")
        return tuple(_coerce(n, kind, name) for n, kind in zip(numbers, get_args(hint), strict=True))
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        if not math.isfinite(value):
            raise BadInput(f"{name}={value} must be a finite number")
        return float(value)
    if isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    raise BadInput(f"{name}={value!r} must be {words.get(hint, hint)}")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    return list(value) if isinstance(value, tuple) else value
