"""The plain steps compute what the network computes."""

import dataclasses

import pytest
import torch
from tests.export.trained import FAMILIES, KINDS, MEAN, STD, Trained, digits, normalised, trained
from torch import Tensor, nn

from asfedbridge.core.errors import BadInput
from asfedbridge.core.task import ClientInfo, Kind, Output, Task
from asfedbridge.export.tracing import trace
from asfedbridge.kernels.dispatch import use_path
from asfedbridge.models.neuron import Spiking
from asfedbridge.models.zoo import build_backbone, build_bridge

TOLERANCE = 1e-6  # of the largest logit: sums are in another order where tensors are laid out otherwise


def spikes_of(case: Trained) -> list[Tensor]:
    """Of every neuron of the network, in the order they run."""
    found: list[Tensor] = []
    hooks = {
        layer: layer.register_forward_hook(lambda layer, args, out: found.append(out))
        for layer in case.subject.network.modules()
        if isinstance(layer, Spiking)
    }
    with use_path("torch"), torch.no_grad():
        case.subject.network(normalised(case.images, case.subject))
    for hook in hooks.values():
        hook.remove()
    return found


def check(case: Trained, tolerance: float = TOLERANCE) -> None:
    program = case.subject.trace()
    neurons = [step["name"] for step in program.steps if step["op"] == "lif"]
    program.outputs += neurons
    with torch.no_grad():
        out = program(case.images)
    logits, *spikes = out if neurons else [out]
    largest = logits.abs().max().clamp(min=1)
    assert (logits - case.logits()).abs().max() <= tolerance * largest
    assert logits.std(dim=0).max() > 1e-3  # images make a difference
    expected = spikes_of(case)
    assert len(spikes) == len(expected)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(spikes, expected, strict=True))
    assert not spikes or all(0 < one.mean() < 1 for one in spikes)
    with torch.no_grad():
        assert (program.unpacked()(case.images) - logits).abs().max() <= tolerance


def test_an_snn() -> None:
    check(trained("snn", "resnet18"))


@pytest.mark.long
@pytest.mark.parametrize("model", FAMILIES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_and_family(kind: Kind, model: str) -> None:
    check(trained(kind, model))


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("frames", "size"), [(3, 8), (1, 128)])
def test_event_frames_and_large_images(kind: Kind, frames: int, size: int) -> None:
    check(trained(kind, "resnet18", frames, size))


@pytest.mark.long
def test_dorefa() -> None:
    """Its weights n / half - 1 are rounded twice in training and once here: (2 n - levels) / levels."""
    check(trained("qnn", "vgg9", quantiser="dorefa"), tolerance=1e-5)


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_a_bridge(norm: str) -> None:
    task = Task(10, 1, 8, feature_dim=32)
    bridge = build_bridge(task, 0.25, norm).eval()
    subject = dataclasses.replace(trained("snn", "resnet18").subject, network=bridge)
    images = digits()[0][:8]
    with torch.no_grad():
        assert (subject.trace()(images) - bridge(normalised(images, subject))).abs().max() <= TOLERANCE


def test_a_qnn_without_step_sizes_is_refused() -> None:
    network = build_backbone(Task(10, 1, 8, feature_dim=32), ClientInfo(0, "qnn", "vgg9", 0.125, bits=4))
    with pytest.raises(BadInput, match="step sizes are not initialised; train it first"):
        trace(network, [MEAN], [STD], "client 0")


class Doubling(nn.Module):
    def forward(self, x: Tensor) -> Output:
        logits = (x * 2).flatten(1)
        return Output(logits[None], logits[None])


class Branching(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


@pytest.mark.parametrize(
    ("network", "why"),
    [(Doubling(), "mul.* in its forward is not supported"), (Branching(), "torch.fx cannot trace it")],
)
def test_what_has_no_rule_is_refused_in_one_line(network: nn.Module, why: str) -> None:
    with pytest.raises(BadInput, match=f"client 7 cannot be exported: .*{why}") as error:
        trace(network, [MEAN], [STD], "client 7")
    assert "\n" not in str(error.value)
