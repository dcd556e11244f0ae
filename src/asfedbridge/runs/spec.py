"""The complete specification of a run: one frozen dataclass, validated on creation, read from and written to TOML."""

import dataclasses
import hashlib
import json
import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import numpy

import asfedbridge.methods  # noqa: F401  registers every method
from asfedbridge.core.compression import Codec
from asfedbridge.core.errors import BadInput, nearest
from asfedbridge.core.method import METHODS, Method
from asfedbridge.core.task import Neuron, Optimiser, Precision, ShortBatch
from asfedbridge.data.partition_names import check_partition
from asfedbridge.runs.fleet import MAX_STEPS, name_fleet, parse_fleet, star_counts
from asfedbridge.runs.keys import NESTED, suggest

ON_NODES = "nodes"  # instead of a data source: every node of a deployment has its own data
IN_PYTHON = "python"  # instead of a data source: every participant of a `Federation` has its own data
LARGEST_FLOAT = sys.float_info.max
TABLES = ("method", "neuron", "optimiser")  # fields of a specification that have fields themselves
MIN_NORM_GUARD = 2  # a factor near 1 would refuse clients above the median, which half of them are
Augment = Literal["auto", "none", "crop", "crop+flip", "resized-crop+flip"]
ClientFiles = Literal["bridge", "backbone", "none"]
Table = dict[str, Any]  # nested plain values, as in TOML
D = TypeVar("D", Method, Neuron, Optimiser)


@dataclass(frozen=True)
class Spec:
    method: Method
    data: str = "digits"  # a name of `asfedbridge list data`, npz:PATH or folder:PATH
    train_per_class: int = 0  # use only the first N training examples of each class; 0: all
    test_per_class: int = 0  # use only the first N test examples of each class; 0: all
    image_size: int = 0  # resize images to N x N pixels; 0: the size of the source
    frames_by: Literal["count", "time"] = "count"  # how the events of a recording are divided into T frames
    skip_damaged: bool = False  # leave out damaged or missing files of the source instead of stopping
    augment: Augment = "auto"  # augmentation of training images; auto: the default of the source
    partition: str = "dirichlet"  # dirichlet, iid, classes:K, quantity:BETA, assigned, flwr:NAME(...): docs/data.md
    alpha: float = 0.1  # parameter of the Dirichlet partition; smaller is more skewed
    holdout: float = 0.0  # for tuning: evaluate on this share of the training images instead of test images
    fleet: str = "5*resnet18:ann,5*resnet18:snn"  # the clients: COUNT*MODEL[@WIDTH]:KIND[:T=STEPS][:b=BITS],...
    T: int = 4  # time steps of SNN clients, and frames of event data
    rounds: int = 100  # number of communication rounds
    epochs: int = 5  # epochs of the private backbone per round
    batch_size: int = 256  # batch size of local training
    short_batch: ShortBatch = "merge"  # merge: a last batch below half of batch_size is merged into the one before it
    participation: float = 1.0  # share of clients drawn each round
    evaluate_every: int = 1  # evaluate every N rounds, and after the last
    diagnose_every: int = 0  # compare clients (CKA, MMD, gradient cosine) every N rounds; 0: never
    seed: int = 42  # seed of shards, initial weights and batches
    start: Literal["equal", "by-kind"] = "equal"  # initial weights: one draw for all kinds, or one for each
    feature_dim: int = 256  # size of the feature before the classifier, in every backbone and in the Bridge
    projector: Literal["linear", "identity"] = "linear"  # layer from the last stage to the feature
    twin_rounds: int = 0  # SNN clients train as their ANN twins for the first N rounds
    snn_loss: Literal["ce", "tet"] = "ce"  # supervised loss of SNN clients in methods that define none
    quantiser: Literal["lsq", "dorefa"] = "lsq"  # quantiser of QNN clients
    compress: Codec = "none"  # compression of payloads in both directions
    norm_guard: float = 100.0  # refuse uploads larger than this multiple of the round's median; 0: off
    device: str = "auto"  # auto (CUDA if available, else the CPU), cpu, cuda, cuda:N, mps
    precision: Precision = "fp32"  # precision of forward passes and losses (autocast); fp16 on CUDA only
    threads: int = 0  # torch threads per process; 0: one per core (engine pool: see docs/performance.md)
    checkpoint_every: int = 1  # write a checkpoint every N rounds
    keep_checkpoints: int = 2  # number of recent checkpoints to keep, for --from-round
    snapshot_every: int = 0  # keep the checkpoint of every N-th round for later analysis; 0: none
    client_files: ClientFiles = "bridge"  # trained clients to keep: with all networks, without the Bridge, or none
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
        if 0 < self.norm_guard < MIN_NORM_GUARD:
            raise BadInput(
                f"norm_guard={self.norm_guard} would refuse honest clients; use at least {MIN_NORM_GUARD}, or 0: off"
            )
        if self.twin_rounds >= self.rounds:
            raise BadInput(
                f"twin_rounds={self.twin_rounds} with rounds={self.rounds}: SNN clients would never train as SNNs; "
                f"use fewer than {self.rounds}"
            )
        if self.evaluate_every > 1 and self.participation < 1:
            raise BadInput(
                f"evaluate_every={self.evaluate_every} with participation={self.participation}: a client may never be "
                f"drawn in a round that evaluates; set one of them to 1"
            )
        if self.compress != "none" and self.method.bn_buffers == "averaged":
            raise BadInput(
                f"compress={self.compress} with method.bn_buffers=averaged: rounding could make a variance negative; "
                f"use compress=none or method.bn_buffers=local"
            )
        check_partition(self.partition)
        check_device(self.device)
        parse_fleet(self.fleet, self.T)

    def digest(self) -> str:
        """Identifies the results: specifications with the same digest give the same bits."""
        table = to_table(self)
        for name in ("checkpoint_every", "keep_checkpoints", "snapshot_every", "client_files"):
            del table[name]
        return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()


RANGES: tuple[tuple[str, float, float], ...] = (
    ("train_per_class", 0, 10**9),
    ("test_per_class", 0, 10**9),
    ("alpha", 1e-3, 1e6),
    ("holdout", 0, 0.9),
    ("T", 1, MAX_STEPS),
    ("rounds", 1, 10**6),
    ("epochs", 1, 10**4),
    ("batch_size", 1, 10**6),
    ("participation", 1e-6, 1),
    ("evaluate_every", 1, 10**6),
    ("twin_rounds", 0, 10**6 - 1),
    ("diagnose_every", 0, 10**6),
    ("seed", 0, 2**63 - 1),
    ("norm_guard", 0, 1e30),
    ("feature_dim", 1, 65536),
    ("threads", 0, 4096),
    ("checkpoint_every", 1, 10**6),
    ("keep_checkpoints", 1, 10**6),
    ("snapshot_every", 0, 10**6),
)


def check_device(name: str) -> None:
    """BadInput for an invalid device name; whether the device exists is checked when the run begins."""
    if not re.fullmatch(r"auto|cpu|cuda(:\d{1,4})?|mps", name):
        raise BadInput(f"device={name}: unknown device; use auto, cpu, cuda, cuda:N (for example cuda:1) or mps")


def to_table(spec: Spec) -> Table:
    """Nested plain values; the method's table begins with its name."""
    table = dataclasses.asdict(spec)
    table["method"] = {"name": spec.method.name, **table["method"]}
    return {key: _plain(value) for key, value in table.items()}


def from_table(table: Mapping[str, Any], base: Spec) -> Spec:
    """``base`` with the fields of ``table`` replaced; every name and type is checked.

    A named fleet is expanded with the families of the base's fleet and the width of its widest client.
    """
    changes: Table = {}
    method = _method(table["method"], base.method) if "method" in table else base.method
    for key, value in table.items():
        if key in ("neuron", "optimiser"):
            changes[key] = _update(getattr(base, key), _as_table(value, key), f"{key}.", method)
        elif key != "method":
            changes |= _coerced(Spec, {key: value}, "", method)
    if "fleet" in changes:
        changes["fleet"] = name_fleet(star_counts(changes["fleet"]), parse_fleet(base.fleet, base.T))
    return dataclasses.replace(base, method=method, **changes)


def apply_overrides(spec: Spec, overrides: Mapping[str, Any]) -> Spec:
    """``spec`` with dotted keys changed, e.g. {"method.mu": 0.1, "rounds": 5}."""
    table: Table = {}
    for key, value in overrides.items():
        head, _, rest = key.partition(".")
        if not rest:
            entry = {"name": value} if key == "method" and isinstance(value, str) else value
            table[head] = table.get(head, {}) | entry if isinstance(entry, dict) else entry
        else:
            if head not in TABLES:
                raise BadInput(f"unknown key '{key}'{suggest(key, known_keys(spec))}")
            table[head] = {**_as_table(table.get(head, {}), head), rest: value}
    return from_table(table, spec)


def known_keys(spec: Spec) -> list[str]:
    return _keys(type(spec.method))


def _keys(method: type[Method]) -> list[str]:
    own = {"method": ["name", *method_fields(method)], **{name: method_fields(cls) for name, cls in NESTED.items()}}
    keys = ["method"]
    for name in (entry.name for entry in dataclasses.fields(Spec)):
        keys += [f"{name}.{key}" for key in own[name]] if name in own else [name]
    return keys


def method_fields(cls: type[Method | Neuron | Optimiser]) -> dict[str, Any]:
    """Hyper-parameters and their defaults."""
    return {f.name: f.default for f in dataclasses.fields(cls)}


def _method(value: Any, base: Method) -> Method:
    table = dict(_as_table({"name": value} if isinstance(value, str) else value, "method"))
    name = table.pop("name", base.name)
    if not isinstance(name, str) or name not in METHODS:
        raise BadInput(f"method={name}: unknown method{nearest(str(name), METHODS)}")
    start = base if name == base.name else METHODS[name]()
    return _update(start, table, "method.", start)


def _update(instance: D, table: Mapping[str, Any], prefix: str, method: Method) -> D:
    return dataclasses.replace(instance, **_coerced(type(instance), table, prefix, method))


def _as_table(value: Any, key: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        other = "the name or an instance of a Method" if key == "method" else "a table"
        raise BadInput(f"{key}={value!r} must be {other}; set its fields as {key}.FIELD=VALUE")
    return value


@cache
def _hints(cls: type) -> dict[str, Any]:
    """Types of the fields."""
    known = get_type_hints(cls)
    return {f.name: known[f.name] for f in dataclasses.fields(cls)}


def _coerced(cls: type, table: Mapping[str, Any], prefix: str, method: Method) -> Table:
    """Values of the right types for fields of ``cls``; ``method`` is that of the specification, for error messages."""
    hints = _hints(cls)
    values: Table = {}
    for key, value in table.items():
        if key not in hints:
            table_name, _, rest = key.partition("_")
            if not prefix and rest and table_name in TABLES:
                raise BadInput(f"unknown key '{key}'; write {table_name}.{rest}, in Python {table_name}__{rest}")
            raise BadInput(f"unknown key '{prefix}{key}'{suggest(prefix + key, _keys(type(method)))}")
        values[key] = _coerce(value, hints[key], f"{prefix}{key}")
    return values


def _coerce(value: Any, hint: Any, name: str) -> Any:
    if isinstance(value, numpy.generic):
        value = value.item()
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise BadInput(f"{name}={value}: unknown choice{nearest(str(value), get_args(hint))}")
        return value
    if get_origin(hint) is tuple:  # a ramp: two numbers, or one for both ends
        numbers = value if isinstance(value, list | tuple) else [value, value]
        if len(numbers) != len(get_args(hint)):
            raise BadInput(f"{name}={value!r}: give {len(get_args(hint))} numbers, first and last")
        return tuple(_coerce(n, kind, name) for n, kind in zip(numbers, get_args(hint), strict=True))
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        if not -LARGEST_FLOAT <= value <= LARGEST_FLOAT:  # also true for NaN
            raise BadInput(f"{name}={value} must be a finite number")
        return float(value)
    if hint is str and isinstance(value, str) and not _is_unicode(value):
        raise BadInput(f"{name}={value!r} is not valid Unicode and cannot be written to spec.toml; rename the file")
    if isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    raise BadInput(f"{name}={value!r} must be {words.get(hint, hint)}")


def _is_unicode(text: str) -> bool:
    """False if the command line contained bytes that are not UTF-8."""
    return not any("\ud800" <= c <= "\udfff" for c in text)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    return list(value) if isinstance(value, tuple) else value
