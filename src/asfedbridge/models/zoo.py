"""Backbones and Bridges from a task and a client: checked, outlined and built."""

import copy
from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import lru_cache
from typing import cast

import torch
from torch import nn

from asfedbridge.core import seeds
from asfedbridge.core.client import Client
from asfedbridge.core.errors import BadInput
from asfedbridge.core.task import ClientInfo, Neuron, Output, Task
from asfedbridge.kernels.dispatch import path_of
from asfedbridge.models import mobilenet, vgg  # noqa: F401  families that nobody else imports
from asfedbridge.models.backbone import Backbone
from asfedbridge.models.bridge import Bridge
from asfedbridge.models.lowbit import lower_bits
from asfedbridge.models.neuron import Spiking, make_activation, stem_channels
from asfedbridge.models.parts import M, build
from asfedbridge.models.registry import find_model
from asfedbridge.models.resnet import ResNet18


def check_backbone(task: Task, info: ClientInfo) -> None:
    """Refuse what cannot be built, in one line."""
    if info.kind == "snn" and task.frames not in (1, info.T):
        raise BadInput(
            f"fleet: {info.label} takes T={info.T} steps, but each example has {task.frames} frames (T={task.frames}); "
            f"give all SNN clients of event data the run's own T"
        )
    if info.kind == "snn" and task.twin_rounds and task.frames > 1:
        raise BadInput(
            f"twin_rounds={task.twin_rounds}: on event data {info.label} and its ANN twin have different stems; use 0"
        )
    if not find_model(info.model).family:
        if info.kind == "snn" and task.twin_rounds:
            raise BadInput(f"twin_rounds={task.twin_rounds}: {info.label} is not of a built-in family; use 0")
        _check_output(task, info.shape)
        return
    outline = outline_backbone(replace(task, projector="linear"), info)
    assert isinstance(outline, Backbone)
    channels = outline.pooled
    if task.projector == "identity" and channels != task.feature_dim:
        raise BadInput(
            f"projector=identity: {info.label} ends in {channels} channels, feature_dim is {task.feature_dim}; "
            f"set feature_dim={channels} or projector=linear"
        )
    outline_backbone(task, info)


def make_backbone(task: Task, info: ClientInfo) -> nn.Module:
    model = find_model(info.model)
    if not model.family:
        return model.make(task, info)
    act = make_activation(task, info)
    channels = stem_channels(task, info)
    backbone = model.make(act, channels, task.classes, info.width, task.feature_dim, task.projector)
    assert isinstance(backbone, Backbone)
    backbone.fit_stem(task.image_size)
    lower_bits(backbone, task, info)
    return backbone


def outline_backbone(task: Task, info: ClientInfo) -> nn.Module:
    """The backbone's names and shapes without memory. To look at only: clients of one shape share it."""
    return _outline_backbone(task, info.shape)


def build_backbone(task: Task, info: ClientInfo) -> nn.Module:
    """Initialised from the run's seed alone: clients of one shape and kind start equal, for every method.

    ANN and SNN twins start equal too, unless ``task.start`` is "by-kind".
    """
    return _FIRST.copy_of((task, info.shape), lambda: _first_backbone(task, info.shape))


def check_bridge(width: float) -> None:
    if not 0.05 <= width <= 4:
        raise BadInput(f"method.bridge_width={width} is out of range; use 0.05 to 4")


def outline_bridge(task: Task, width: float, norm: str) -> Bridge:
    """Names and shapes without memory; to look at only."""
    return _outline_bridge(task, width, norm)


def build_bridge(task: Task, width: float, norm: str) -> Bridge:
    return _FIRST.copy_of((task, width, norm), lambda: _first_bridge(task, width, norm))


# Each guard at the boundary asks for an outline, and among thousands of clients somebody new comes in every round: what
# depends on the run and the shape alone is made once, and copied.


class Firsts:
    """Models as they begin. The first to ask gets one of its own; who asks for the like of it, a copy of the next:
    a process with a single client, as nodes have, copies nothing."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: dict[Hashable, nn.Module | None] = {}  # the last one asked for at the end

    def copy_of(self, key: Hashable, make: Callable[[], M]) -> M:
        if key not in self._kept:
            self._kept[key] = None
            if len(self._kept) > self._most:
                del self._kept[next(iter(self._kept))]
            return make()
        model = self._kept.pop(key)
        self._kept[key] = model = make() if model is None else model
        return cast(M, copy.deepcopy(model))

    def clear(self) -> None:
        self._kept.clear()


_FIRST = Firsts(16)


def forget_models() -> None:
    """Empty the caches: a name may stand for another model now."""
    _FIRST.clear()
    _outline_backbone.cache_clear()
    _check_output.cache_clear()


@lru_cache(maxsize=64)
def _outline_backbone(task: Task, info: ClientInfo) -> nn.Module:
    if not find_model(info.model).family:
        return build_backbone(task, info).to("meta")  # who knows what its constructor computes
    with torch.device("meta"):
        return make_backbone(task, info)


def _first_backbone(task: Task, info: ClientInfo) -> nn.Module:
    seed = task.start_seed("backbone", info.kind)
    if not find_model(info.model).family:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return make_backbone(task, info)
    return build(lambda: make_backbone(task, info), torch.Generator().manual_seed(seed))


@lru_cache(maxsize=64)
def _check_output(task: Task, info: ClientInfo) -> None:
    """Try a model that is not ours on two images: shapes, and that it remembers nothing."""
    where = f"model '{info.model}'"
    model = build_backbone(task, info)
    if not isinstance(model, nn.Module):
        raise BadInput(f"{where} makes a {type(model).__name__}; return a torch.nn.Module")
    draws = seeds.generator(task.seed, "check")
    x = torch.randn(2, task.channels, task.image_size, task.image_size, generator=draws)

    def answer() -> Output:
        torch.manual_seed(0)  # of dropout
        out: Output = model(x)
        return out

    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        first, again = answer(), answer()
    if not isinstance(first, Output):
        raise BadInput(f"{where} returns a {type(first).__name__}; return Output(logits_TBC, feature_TBD)")
    for name, size in (("logits_TBC", task.classes), ("feature_TBD", task.feature_dim)):
        shape = tuple(getattr(first, name).shape)
        if shape != (info.T, 2, size):
            raise BadInput(f"{where}: {name} of 2 images has shape {shape}; return {(info.T, 2, size)} for {info.kind}")
    if not torch.allclose(first.logits_TBC, again.logits_TBC):
        raise BadInput(f"{where} answers the same images differently the second time; reset its state in forward")


@lru_cache(maxsize=64)
def _outline_bridge(task: Task, width: float, norm: str) -> Bridge:
    with torch.device("meta"):
        return Bridge(task, width, norm)


def _first_bridge(task: Task, width: float, norm: str) -> Bridge:
    return build(lambda: Bridge(task, width, norm), seeds.generator(task.seed, "bridge"))


def bridge_of(client: Client, name: str = "bridge") -> Bridge:
    """A client's Bridge, or what another method calls its small shared network."""
    bridge = client.modules[name]
    assert isinstance(bridge, Bridge)
    return bridge


def compile_kernels() -> None:
    """Have the machine code of spiking layers ready: seconds on first use, then it comes from a cache."""
    if path_of(torch.empty(0)) != "numba":
        return
    model = build(lambda: ResNet18(Spiking(2, Neuron()), 3, 2, width=0.25), torch.Generator())
    x = torch.zeros(2, 3, 8, 8)
    model(x).logits.sum().backward()
    with torch.inference_mode():
        model.eval()(x)
