"""Builds the networks of a trained client from its card and its weights."""

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from asfedbridge.core.client import Client
from asfedbridge.core.errors import BadInput, describe_error
from asfedbridge.core.method import METHODS, Method
from asfedbridge.core.payload import Payload
from asfedbridge.data.loader import Shard
from asfedbridge.engines.turn import build_client
from asfedbridge.methods import DEFAULT
from asfedbridge.models.adapter import ModuleMaker
from asfedbridge.models.registry import MODELS, UNNAMED, Model, register_unnamed
from asfedbridge.runs.client_card import ClientCard
from asfedbridge.runs.client_file import BACKBONE, damaged
from asfedbridge.runs.fleet import parse_fleet
from asfedbridge.runs.spec import Spec, from_table

SCRIPTS = ("__main__", "__mp_main__")  # names of the main script, which other programs cannot import
Models = Mapping[str, nn.Module | Callable[[], nn.Module]]


def build_module(card: ClientCard, tensors: Payload, *, models: Models | None = None, trust: bool = False) -> nn.Module:
    """The backbone with its weights, in evaluation mode. Its ``forward`` takes normalised images and returns an
    ``Output``, whose ``.logits`` are the prediction."""
    return rebuild_client(card, tensors, models=models, trust=trust).backbone


def rebuild_client(card: ClientCard, tensors: Payload, *, models: Models | None = None, trust: bool = False) -> Client:
    """The client without data: all its networks with their weights, in evaluation mode.

    A user's own model is looked up by name in ``models`` and in the registry. With ``trust``, it may also be made by
    the function that the card names; importing that function executes code.
    """
    _provide_model(card, models or {}, trust)
    if card.method not in METHODS:
        raise BadInput(f"{card.label}: unknown method '{card.method}'; {_plugin_hint(card)}")
    if MODELS[card.model].family and sum(t.numel() for t in tensors.values()) < card.feature_dim * len(card.classes):
        raise damaged(card.label, "it has fewer weights than its card says")  # before memory is allocated
    spec = _validated(card, card.label)
    empty = torch.zeros(0, card.channels, 8, 8, dtype=torch.uint8), torch.zeros(0, dtype=torch.int64)
    shard = Shard(*empty, *empty, card.mean, card.std, "none")
    try:
        client = build_client(spec.method, card.task, card.info, shard)
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(f"{card.label}: cannot be built: {describe_error(error)}") from error
    for name in [name for name in client.modules if name != BACKBONE and name not in card.extras]:
        del client.modules[name]
    parts: dict[str, Payload] = {name: {} for name in client.modules}
    for key, tensor in tensors.items():
        name, _, rest = key.partition("/")
        if name not in parts:
            raise damaged(card.label, f"'{key[:80]}' does not belong to any network")
        parts[name][rest] = tensor
    for name, module in client.modules.items():
        _load(module, parts[name], f"{card.label}, {name}")
        module.eval()
    return client


def method_of(card: ClientCard) -> Method:
    """The card's method with its hyper-parameters."""
    return _validated(card, card.label).method


def name_factory(make: object) -> str:
    """ "module:qualname" of the function that makes a participant's model; empty if other programs cannot import it."""
    source = make.source if isinstance(make, ModuleMaker) else make
    module, name = getattr(source, "__module__", None), getattr(source, "__qualname__", "")
    importable = isinstance(module, str) and module not in SCRIPTS and name and "<" not in name
    return f"{module}:{name}" if importable and not isinstance(source, nn.Module) else ""


def _provide_model(card: ClientCard, models: Models, trust: bool) -> None:
    if card.model in models:
        source: Any = models[card.model]
    elif card.model in MODELS:
        return
    elif not card.factory:
        raise BadInput(f"{card.label}: unknown model '{card.model}'; {_plugin_hint(card)}")
    elif not trust:
        raise BadInput(
            f"{card.label}: its model is made by {card.factory}, which is imported only with permission; "
            f"use trust=True if you trust the file"
        )
    else:
        module, _, name = card.factory.partition(":")
        try:
            source = importlib.import_module(module)
            for part in name.split("."):
                source = getattr(source, part)
        except Exception as error:
            raise BadInput(f"{card.label}: {card.factory} cannot be imported: {describe_error(error)}") from error
    register_unnamed({**UNNAMED, card.model: Model(ModuleMaker(source), "from a client file", None, family=False)})


def _plugin_hint(card: ClientCard) -> str:
    if card.plugins:
        return f"the run imported {card.plugins[-1]}: load that file with load_plugin"
    return f"pass models={{'{card.model}': ...}}, or load the file that registers it with load_plugin"


def _validated(card: ClientCard, where: object) -> Spec:
    """The card's method, networks and neuron as a validated specification."""
    width = f"@{card.width!r}" if card.width != 1 else ""
    option = {"snn": f":T={card.T}", "qnn": f":b={card.bits}"}.get(card.kind, "")
    try:
        spec = from_table(
            {
                "method": {"name": card.method, **card.method_fields},
                "neuron": dataclasses.asdict(card.neuron),
                "feature_dim": card.feature_dim,
                "projector": card.projector,
                "quantiser": card.quantiser,
                "precision": card.precision,
                "fleet": f"{card.model}{width}:{card.kind}{option}",
            },
            Spec(METHODS[DEFAULT]()),
        )
        (info,) = parse_fleet(spec.fleet, card.T)
        if (info.T, info.bits) != (card.T, card.bits):
            raise BadInput(f"T={card.T}, bits={card.bits} is invalid for a client of kind {card.kind}")
    except BadInput as error:
        raise BadInput(f"{where}: {error}") from None
    return spec


def _load(module: nn.Module, tensors: Payload, what: str) -> None:
    own = module.state_dict()
    for name in sorted(own.keys() ^ tensors.keys()):
        raise damaged(what, f"'{name[:80]}' is {'missing' if name in own else 'not in this network'}")
    for name, tensor in tensors.items():
        if (tensor.shape, tensor.dtype) != (own[name].shape, own[name].dtype):
            sizes = f"{_form(tensor)}, not {_form(own[name])}"
            raise damaged(what, f"'{name[:80]}' is {sizes}")
    module.load_state_dict(tensors)


def _form(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"
