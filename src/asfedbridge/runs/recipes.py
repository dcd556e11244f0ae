"""Recipes: functions that return a complete specification. To write your own, call one and change fields."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from asfedbridge.core.errors import BadInput, nearest
from asfedbridge.core.method import METHODS, Method
from asfedbridge.core.task import Neuron, Optimiser
from asfedbridge.data.sources.registry import SOURCES
from asfedbridge.methods import DEFAULT
from asfedbridge.runs.spec import Spec

BASED_ON = {"extended": "cpu"}  # a recipe inherits the settings of data sets from the recipe it is based on


# Keys of ``Method.recipes``, in the order in which their values are set, and the recipes that set them.
STAGES = {"short": "all but `paper`", "cpu": "`cpu` and `extended`", "extended": "`extended`", "smoke": "`smoke`"}


def demands(recipe: str, data: str) -> dict[str, Any]:
    """Fields of the specification that a data set sets in a recipe, unless the user sets them.

    They are the ``settings`` of its source (data/sources). npz:PATH and folder:PATH have none.
    """
    if data not in SOURCES:
        return {}
    settings = SOURCES[data].settings
    for name in settings:
        if name not in RECIPES:
            raise BadInput(f"data set '{data}' has settings for an unknown recipe '{name}'{nearest(name, RECIPES)}")
    return {**settings.get(BASED_ON.get(recipe, ""), {}), **settings.get(recipe, {})}


def paper(method: str = DEFAULT) -> Spec:
    """The paper's protocol: CIFAR-10, 5 + 5 full ResNet-18, Dirichlet 0.1, 100 rounds. Needs a GPU."""
    return Spec(method=make_method(method), data="cifar10")


def quickstart(method: str = DEFAULT) -> Spec:
    """The default: the handwritten digits that ship with scikit-learn, no download, about two minutes.

    Distillation keeps the paper's weights: stronger ones make backbones worse on digits (docs/results.md). The gain is
    in the fused prediction of backbone and Bridge.
    """
    return replace(
        _short(method),
        data="digits",
        alpha=0.5,
        fleet=_fleet(method, 0.25),
        rounds=30,
        optimiser=Optimiser(lr_ann=0.02, lr_snn=0.1),  # SNNs learn slowly from few images
    )


def cpu(method: str = DEFAULT) -> Spec:
    """Real images on two cores: CIFAR-10 at 16x16, 150 images a client, narrow backbones, 1 to 3 minutes a run.

    One private epoch and one injection epoch per round, and many rounds: the Bridge has learned from every client well
    before the end, and a backbone trained alone stops improving. All test images are used, every twentieth round.
    """
    short = _short(method)
    return replace(
        short,
        method=short.method.at("cpu"),
        data="cifar10",
        **demands("cpu", "cifar10"),
        alpha=0.1,
        fleet=_fleet(method, 0.125),
        rounds=80,
        evaluate_every=20,
    )


def extended(method: str = DEFAULT) -> Spec:
    """`cpu` with extensions of the paper: gated distillation, twin start, a fusion weight from held-out images."""
    spec = cpu(method)
    return replace(spec, method=spec.method.at("extended"), twin_rounds=5 if spec.method.twin_start else 0)


def smoke(method: str = DEFAULT) -> Spec:
    """A smoke test that takes seconds: a few digits, tiny backbones, two rounds. Its accuracies mean nothing."""
    short = quickstart(method)
    return replace(
        short,
        method=short.method.at("smoke"),
        train_per_class=20,
        test_per_class=10,
        fleet="5*resnet18@0.0625:ann,5*resnet18@0.0625:snn",
        T=2,
        rounds=2,
    )


RECIPES: dict[str, Callable[[str], Spec]] = {
    "quickstart": quickstart,
    "cpu": cpu,
    "extended": extended,
    "smoke": smoke,
    "paper": paper,
}


def at_scale(scale: str, method: str, data: str) -> Spec:
    """A recipe on one of the paper's data sets; `smoke` always runs on digits."""
    spec = RECIPES[scale](method)
    return spec if scale == "smoke" else replace(spec, data=data, **demands(scale, data))


def make_method(name: str) -> Method:
    if name not in METHODS:
        raise BadInput(f"method={name}: unknown method{nearest(name, METHODS)}")
    return METHODS[name]()


def _short(method: str) -> Spec:
    """The paper's proportions, not its constants, for runs of a few hundred steps (docs/results.md).

    The surrogate gradient of SNNs is the arctangent. Methods declare further changes in ``Method.recipes``.
    """
    return replace(
        paper(method),
        method=make_method(method).at("short"),
        epochs=1,
        batch_size=16,
        neuron=Neuron(surrogate="atan", sharpness=2.0, detach_reset=True),
        optimiser=Optimiser(lr_ann=0.02, lr_snn=0.05),
        threads=1,  # small models gain nothing from a second thread, and one thread gives the same bits everywhere
    )


def _fleet(method: str, width: float) -> str:
    """VGG-9, which learns in few steps, unless the method requires another family."""
    family = METHODS[method].family or "vgg9"
    return f"5*{family}@{width}:ann,5*{family}@{width}:snn"
