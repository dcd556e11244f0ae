"""All backbones by name."""

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import torch

from asfedbridge.core import seeds
from asfedbridge.core.errors import BadInput
from asfedbridge.core.protocol import Client, ClientInfo, Neuron, Task
from asfedbridge.models.backbone import Backbone
from asfedbridge.models.bridge import Bridge
from asfedbridge.models.lowbit import lower_bits
from asfedbridge.models.neuron import Spiking, make_activation, stem_channels
from asfedbridge.models.parts import build
from asfedbridge.models.paths import path_of
from asfedbridge.models.resnet import ResNet18

BACKBONES: dict[str, Callable[..., Backbone]] = {"resnet18": ResNet18}
DESCRIPTIONS = {"resnet18": "ResNet-18 for 8x8 to 256x256 images, ANN and spiking, any width multiplier"}


def check_backbone(task: Task, info: ClientInfo) -> None:
    """Refuse what cannot be built, in one line."""
    if info.kind == "snn" and task.frames not in (1, info.T):
        raise BadInput(
            f"fleet: {info.label} takes T={info.T} steps, but each example has {task.frames} frames (T={task.frames}); "
            f"give all SNN clients of event data the run's own T"
        )
    channels = outline_backbone(replace(task, projector="linear"), info).pooled
    if task.projector == "identity" and channels != task.feature_dim:
        raise BadInput(
            f"projector=identity: {info.label} ends in {channels} channels, feature_dim is {task.feature_dim}; "
            f"set feature_dim={channels} or projector=linear"
        )


def make_backbone(task: Task, info: ClientInfo) -> Backbone:
    act = make_activation(task, info)
    channels = stem_channels(task, info)
    model = BACKBONES[info.model](act, channels, task.classes, info.width, task.feature_dim, task.projector)
    model.fit_stem(task.image_size)
    lower_bits(model, task, info)
    return model


def outline_backbone(task: Task, info: ClientInfo) -> Backbone:
    """The backbone's names and shapes without memory. To look at only: clients of one shape share it."""
    return _outline_backbone(task, info.shape)


def build_backbone(task: Task, info: ClientInfo) -> Backbone:
    """Initialised from the run's seed alone: clients of one shape start equal, for every method, ANN or SNN."""
    return copy.deepcopy(_first_backbone(task, info.shape))


def check_bridge(width: float) -> None:
    if not 0.05 <= width <= 4:
        raise BadInput(f"method.bridge_width={width} is out of range; use 0.05 to 4")


def outline_bridge(task: Task, width: float, norm: str) -> Bridge:
    """Names and shapes without memory; to look at only."""
    return _outline_bridge(task, width, norm)


def build_bridge(task: Task, width: float, norm: str) -> Bridge:
    return copy.deepcopy(_first_bridge(task, width, norm))


# Each guard at the boundary asks for an outline, and among thousands of clients somebody new comes in every round: what
# depends on the run and the shape alone is made once, and copied.


@lru_cache(maxsize=64)
def _outline_backbone(task: Task, info: ClientInfo) -> Backbone:
    with torch.device("meta"):
        return make_backbone(task, info)


@lru_cache(maxsize=8)
def _first_backbone(task: Task, info: ClientInfo) -> Backbone:
    return build(lambda: make_backbone(task, info), seeds.generator(task.seed, "backbone"))


@lru_cache(maxsize=64)
def _outline_bridge(task: Task, width: float, norm: str) -> Bridge:
    with torch.device("meta"):
        return Bridge(task, width, norm)


@lru_cache(maxsize=8)
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
