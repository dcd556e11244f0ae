"""Recipes: functions that return a complete specification. Derive your own by calling one and changing fields."""

from collections.abc import Callable
from dataclasses import replace

from asfedbridge.core.errors import BadInput, nearest
from asfedbridge.core.protocol import METHODS, Method
from asfedbridge.experiments.spec import Spec
from asfedbridge.methods.as_fedbridge import ASFedBridge


def paper(method: str = "as-fedbridge") -> Spec:
    """The paper's protocol: CIFAR-10, 5 + 5 full ResNet-18, Dirichlet 0.1, 100 rounds. Needs a GPU."""
    return Spec(method=make_method(method), data="cifar10")


def cpu(method: str = "as-fedbridge") -> Spec:
    """Real images on two cores: CIFAR-10 at 16x16, narrow backbones, minutes per run."""
    return replace(
        paper(method),
        method=_scaled(method),
        image_size=16,
        train_per_class=200,
        test_per_class=100,
        fleet="5*resnet18@0.25:ann,5*resnet18@0.25:snn",
        rounds=40,
        epochs=1,
        batch_size=32,
    )


def quickstart(method: str = "as-fedbridge") -> Spec:
    """The default: handwritten digits that ship with scikit-learn, no download, about a minute."""
    return replace(cpu(method), data="digits", image_size=0, train_per_class=0, test_per_class=0, rounds=20, alpha=0.5)


RECIPES: dict[str, Callable[[str], Spec]] = {"quickstart": quickstart, "cpu": cpu, "paper": paper}


def make_method(name: str) -> Method:
    if name not in METHODS:
        raise BadInput(f"method={name}: unknown method{nearest(name, METHODS)}")
    return METHODS[name]()


def _scaled(name: str) -> Method:
    """A short run gives the Bridge a few hundred steps, not the paper's 2,000: see docs/results.md."""
    method = make_method(name)
    if isinstance(method, ASFedBridge):
        return replace(method, bridge_width=0.5, bridge_lr=0.05, alpha_kd_ann=(1.0, 1.0), alpha_kd_snn=(1.0, 1.0))
    return method
