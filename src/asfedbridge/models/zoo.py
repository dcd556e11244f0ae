"""Checks, outlines and builds backbones and Bridges for a task and a client."""

import copy
from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import lru_cache
from typing import cast

import torch
from torch import nn

from asfedbridge.core import seeds
from asfedbridge.core.client import Client
from asfedbridge.core.errors import BadInput, describe_error
from asfedbridge.core.task import ClientInfo, Neuron, Output, Task
from asfedbridge.kernels.dispatch import noticing_compilation, path_of
from asfedbridge.models import mobilenet, vgg  # noqa: F401  imported to register their families
from asfedbridge.models.backbone import Backbone
from asfedbridge.models.bridge import Bridge
from asfedbridge.models.lowbit import lower_bits
from asfedbridge.models.neuron import Spiking, make_activation, stem_channels
from asfedbridge.models.parts import M, build
from asfedbridge.models.registry import find_model
from asfedbridge.models.resnet import ResNet18


def check_backbone(task: Task, info: ClientInfo) -> None:
    """Raises ``BadInput`` if the backbone cannot be built."""
    if info.kind == "snn" and task.frames not in (1, info.T):
        raise BadInput(
            f"fleet: {info.label} has T={info.T}, but each example has {task.frames} frames; "
            f"on event data, leave T out of the fleet or use T={task.frames}"
        )
    if info.kind == "snn" and task.twin_rounds and task.frames > 1:
        raise BadInput(
            f"twin_rounds={task.twin_rounds}: on event data {info.label} and its ANN twin have different stems; "
            "use twin_rounds=0"
        )
    if not find_model(info.model).family:
        if info.kind == "snn" and task.twin_rounds:
            raise BadInput(f"twin_rounds={task.twin_rounds}: {info.label} is not of a model family; use twin_rounds=0")
        _check_output(task, info.shape)
        return
    outline = outline_backbone(replace(task, projector="linear"), info)
    assert isinstance(outline, Backbone)
    channels = outline.pooled
    if task.projector == "identity" and channels != task.feature_dim:
        raise BadInput(
            f"projector=identity: {info.label} ends in {channels} channels, but feature_dim is {task.feature_dim}; "
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
    """The backbone on the meta device: names and shapes without memory. Do not modify it: it is cached."""
    return _outline_backbone(task, info.shape)


def build_backbone(task: Task, info: ClientInfo) -> nn.Module:
    """Builds a backbone whose initial values depend only on the run's seed: clients of one shape and kind start equal.

    ANN and SNN twins start equal too, unless ``task.start`` is "by-kind".
    """
    return _CACHE.copy_of((task, info.shape), lambda: _make_initial_backbone(task, info.shape))


def check_bridge(width: float) -> None:
    if not 0.05 <= width <= 4:
        raise BadInput(f"method.bridge_width={width} is out of range; use 0.05 to 4")


def outline_bridge(task: Task, width: float, norm: str) -> Bridge:
    """The Bridge on the meta device: names and shapes without memory. Do not modify it: it is cached."""
    return _outline_bridge(task, width, norm)


def build_bridge(task: Task, width: float, norm: str) -> Bridge:
    return _CACHE.copy_of((task, width, norm), lambda: _make_initial_bridge(task, width, norm))


# The payload guard needs an outline for every message, and a large fleet builds clients in every round. Outlines and
# initial models depend only on the task and the client's shape, so both are cached.


class ModelCache:
    """An LRU cache of initial models. Builds on first request, caches on the second, then returns deep copies. A
    process with a single client, such as a Flower node, therefore neither stores nor copies a model."""

    def __init__(self, max_models: int) -> None:
        self._max_models = max_models
        self._kept: dict[Hashable, nn.Module | None] = {}  # most recently used last

    def copy_of(self, key: Hashable, make: Callable[[], M]) -> M:
        if key not in self._kept:
            self._kept[key] = None
            if len(self._kept) > self._max_models:
                del self._kept[next(iter(self._kept))]
            return make()
        model = self._kept.pop(key)
        self._kept[key] = model = make() if model is None else model
        return cast(M, copy.deepcopy(model))

    def clear(self) -> None:
        self._kept.clear()


_CACHE = ModelCache(16)


def forget_models() -> None:
    """Clears the caches. Needed when a name is registered again for another model."""
    _CACHE.clear()
    _outline_backbone.cache_clear()
    _check_output.cache_clear()


@lru_cache(maxsize=64)
def _outline_backbone(task: Task, info: ClientInfo) -> nn.Module:
    if not find_model(info.model).family:
        return build_backbone(task, info).to("meta")  # its constructor may need real values
    with torch.device("meta"):
        return make_backbone(task, info)


def _make_initial_backbone(task: Task, info: ClientInfo) -> nn.Module:
    seed = task.start_seed("backbone", info.kind)
    if not find_model(info.model).family:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return make_backbone(task, info)
    return build(lambda: make_backbone(task, info), torch.Generator().manual_seed(seed))


@lru_cache(maxsize=64)
def _check_output(task: Task, info: ClientInfo) -> None:
    """Builds a user's model and runs it on two images, twice. Checks the output's shape and values, and that the model
    keeps no state between calls."""
    where = f"model '{info.model}'"
    try:
        model = build_backbone(task, info)
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(f"{where} cannot be built: {describe_error(error)}") from error
    if not isinstance(model, nn.Module):
        raise BadInput(f"{where} is a {type(model).__name__}; return a torch.nn.Module")
    if not any(p.requires_grad for p in model.parameters()):
        raise BadInput(f"{where} has no trainable parameter; set requires_grad=True for those to be trained")
    draws = seeds.generator(task.seed, "check")
    x = torch.randn(2, task.channels, task.image_size, task.image_size, generator=draws)

    def run_model() -> Output:
        torch.manual_seed(0)  # for dropout
        out: Output = model(x)
        return out

    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            first, again = run_model(), run_model()
    except Exception as error:
        images = "x".join(map(str, x.shape[1:]))
        raise BadInput(f"{where} cannot take images of {images}: {describe_error(error)}") from error
    if not isinstance(first, Output):
        raise BadInput(f"{where} returns a {type(first).__name__}; return Output(logits_TBC, feature_TBD)")
    for name, size in (("logits_TBC", task.classes), ("feature_TBD", task.feature_dim)):
        shape = tuple(getattr(first, name).shape)
        if shape != (info.T, 2, size):
            raise BadInput(f"{where}: {name} of 2 images has shape {shape}; return {(info.T, 2, size)} for {info.kind}")
        if not getattr(first, name).isfinite().all():
            raise BadInput(f"{where}: {name} of 2 images is not finite; check its initial weights and its divisions")
    if not torch.allclose(first.logits_TBC, again.logits_TBC):
        raise BadInput(f"{where} returns other logits for the same images on a second call; reset its state in forward")


@lru_cache(maxsize=64)
def _outline_bridge(task: Task, width: float, norm: str) -> Bridge:
    with torch.device("meta"):
        return Bridge(task, width, norm)


def _make_initial_bridge(task: Task, width: float, norm: str) -> Bridge:
    return build(lambda: Bridge(task, width, norm), seeds.generator(task.seed, "bridge"))


def bridge_of(client: Client, name: str = "bridge") -> Bridge:
    """A client's Bridge, or under another ``name`` the shared network of another method."""
    bridge = client.modules[name]
    assert isinstance(bridge, Bridge)
    return bridge


def compile_kernels(on_compile: Callable[[], None] = lambda: None) -> None:
    """Compiles the numba kernels of spiking layers, or loads them from the disk cache.

    ``on_compile`` is called once if something is compiled, which takes seconds.
    """
    if path_of(torch.empty(0)) != "numba":
        return
    with noticing_compilation(on_compile):
        _use_kernels()


def _use_kernels() -> None:
    model = build(lambda: ResNet18(Spiking(2, Neuron()), 3, 2, width=0.25), torch.Generator())
    x = torch.zeros(2, 3, 8, 8)
    model(x).logits.sum().backward()
    with torch.inference_mode():
        model.eval()(x)
