"""Spikes and synaptic operations compared with SpikingJelly's counter and counts by hand."""

from collections.abc import Callable

import pytest
import torch
from spikingjelly.activation_based import functional, neuron
from spikingjelly.activation_based import layer as jelly
from spikingjelly.activation_based.op_counter import DispatchCounterMode, SynOpCounter
from torch import nn

import asfedbridge.methods  # noqa: F401  registers every method
from asfedbridge.analysis.firing import count_synops, firing_rates
from asfedbridge.analysis.operations import count_layers
from asfedbridge.core.client import Client
from asfedbridge.core.method import METHODS
from asfedbridge.core.task import Task
from asfedbridge.kernels.dispatch import path_of, use_path
from asfedbridge.models.parts import Projector
from asfedbridge.models.zoo import outline_backbone

Make = Callable[..., Client]


def lively_client(make_client: Make, size: int, method: str = "standalone", T: int = 3) -> Client:
    """A client whose biases make neurons of every layer fire, some often, some never."""
    task = Task(classes=4, channels=3, image_size=size, feature_dim=16)
    client = make_client(METHODS[method](), task, "snn", T=T)
    draws = torch.Generator().manual_seed(1)
    for layer in client.backbone.modules():
        if isinstance(layer, nn.BatchNorm2d | Projector):
            nn.init.uniform_(layer.bias, -0.4, 1.2, generator=draws)
    client.backbone.eval()
    return client


@pytest.mark.parametrize(
    ("size", "method", "T"), [(16, "standalone", 3), (8, "standalone", 2), (12, "sfedhifi", 2), (16, "standalone", 1)]
)
def test_synaptic_operations_equal_spikingjellys(make_client: Make, size: int, method: str, T: int) -> None:
    """Exact equality for every layer, with edges, strides and shortcuts.

    An 8x8 image is reduced to one pixel, whose mean is 0 or 1. SpikingJelly decides by value and counts it as a spike.
    """
    client = lively_client(make_client, size, method, T)
    batches = list(client.shard.test_batches(3))
    found = firing_rates(client, batches)
    counter = SynOpCounter()
    with use_path("torch"), torch.no_grad(), DispatchCounterMode([counter]):
        for x, _ in batches:
            client.backbone(client.place(x))
    theirs = counter.get_counts()
    root = type(client.backbone).__name__
    accidental = sum(theirs.get(f"{root}.projector", {}).values())
    assert (accidental > 0) == (size == 8)
    assert sum(layer.synops for layer in found.values()) == counter.get_total() - accidental > 1000
    for name, layer in found.items():
        if name != "projector":
            assert layer.synops == sum(theirs.get(f"{root}.{name}", {}).values()), name
    assert sum(1 for layer in found.values() if layer.synops) > 15
    assert {name for name, layer in found.items() if not layer.spiking} == {"stem", "projector"}


def test_zero_inputs_do_not_make_a_layer_spike_driven(make_client: Make) -> None:
    """A silent last stage gives zeros to the projector, a black image gives zeros to the stem: both stay dense."""
    client = lively_client(make_client, 16)
    images = [(torch.zeros(2, 3, 16, 16), torch.zeros(2))]
    for layer in client.backbone.stages[-1].modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.constant_(layer.bias, -100.0)
    found = firing_rates(client, images)
    for name in ("stem", "projector"):
        assert (found[name].spiking, found[name].synops, sum(found[name].rates())) == (False, 0, 0.0)
    last = found["stages.3.1.conv2"]
    assert (last.spiking, last.synops, sum(last.rates())) == (True, 0, 0.0)


@pytest.mark.parametrize(
    ("model", "dense"),
    [
        ("resnet18", {"stem", "projector"}),
        ("resnet18-ms", {"stem", "projector", *(f"stages.{s}.0.shortcut.0" for s in (1, 2, 3))}),
        ("vgg9", {"stem", "projector"}),  # a maximum over spikes is a spike
    ],
)
def test_dense_layers_by_model_family(make_client: Make, model: str, dense: set[str]) -> None:
    """The same on the meta device and in a real pass."""
    task = Task(classes=4, channels=3, image_size=16, feature_dim=16)
    client = make_client(METHODS["standalone"](), task, "snn", T=2, model=model)
    outlined = count_layers(outline_backbone(task, client.info), task)
    measured = firing_rates(client, [(torch.randn(2, 3, 16, 16), torch.zeros(2))])
    assert {name for name, layer in outlined.items() if not layer.spiking} == dense
    assert {name for name, layer in measured.items() if not layer.spiking} == dense


class Jelly(nn.Module):
    """A network of SpikingJelly's layers with [T, B, ...] inside, in which every neuron fires at every step."""

    def __init__(self, T: int) -> None:
        super().__init__()
        self.T = T
        convolutions = jelly.Conv2d(1, 2, 1), neuron.IFNode(), jelly.Conv2d(2, 3, 3, padding=1), jelly.Flatten()
        self.body = nn.Sequential(*convolutions, jelly.Linear(3 * 16, 5))
        nn.init.ones_(self.body[0].bias)
        nn.init.zeros_(self.body[0].weight)
        functional.set_step_mode(self, "m")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        functional.reset_net(self)
        out: torch.Tensor = self.body(x.repeat(self.T, 1, 1, 1, 1))
        return out


def test_a_spikingjelly_network_by_hand(make_client: Make) -> None:
    """Two images of 4x4 pixels at T = 3: along one side a 3x3 kernel connects 3 * 4 - 2 pairs of pixels."""
    client = make_client(METHODS["standalone"](), Task(classes=5, channels=1, image_size=4, feature_dim=5), "snn")
    client.modules["backbone"] = Jelly(3)
    first, second, last = firing_rates(client, [(torch.zeros(2, 1, 4, 4), torch.zeros(2))]).values()
    assert (first.spiking, first.synops, first.macs) == (False, 0, 2 * 16)
    assert (second.spiking, second.synops, second.macs) == (True, 2 * 3 * (2 * 3) * 10**2, 2 * 3 * 9 * 16)
    assert second.sops == 3 * second.macs
    assert (last.spiking, last.synops) == (False, 0)  # reads the convolution's output: real numbers


def test_rates_are_shares_of_nonzero_inputs(make_client: Make) -> None:
    """Spikes entering the classifier, counted from the feature at every step."""
    client = lively_client(make_client, 16)
    batches = list(client.shard.test_batches(3))
    with use_path("torch"), torch.no_grad():
        feature_TBD = torch.cat([client.backbone(client.place(x)).feature_TBD for x, _ in batches], dim=1)
    layer = firing_rates(client, batches)["classifier"]
    assert layer.rates() == pytest.approx(feature_TBD.mean(dim=(1, 2)).tolist(), abs=1e-6)
    assert layer.macs == 16 * 4
    assert layer.sops == pytest.approx(layer.synops / 4)  # no edges in a linear layer: the paper's formula is exact


def test_formula_overcounts_only_at_edges(make_client: Make) -> None:
    for name, layer in firing_rates(
        lively_client(make_client, 16), [(torch.randn(4, 3, 16, 16), torch.zeros(4))]
    ).items():
        exact = layer.synops / 4
        if layer.spiking and "conv" in name:
            assert exact <= layer.sops * 1.000001
            assert exact > 0.4 * layer.sops or layer.sops == 0


def test_measuring_does_not_change_the_client(make_client: Make) -> None:
    client = lively_client(make_client, 16)
    before, path = client.state_dict(), path_of(torch.empty(0))
    firing_rates(client, client.shard.test_batches(4))
    after = client.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert not any(layer._forward_hooks for layer in client.backbone.modules())
    assert path_of(torch.empty(0)) == path


@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv2d(4, 6, 3, padding=1),
        nn.Conv2d(4, 6, 3, stride=2, padding=1),
        nn.Conv2d(4, 6, 1, stride=2),
        nn.Conv2d(4, 4, 3, padding=1, groups=4),
        nn.Conv2d(4, 6, (3, 5), padding=(0, 2), dilation=(2, 1)),
    ],
)
def test_each_spike_counts_for_every_output_it_reaches(conv: nn.Conv2d) -> None:
    """With weights of one and spikes of 0 or 1, this is the sum of the outputs."""
    x = (torch.rand(3, 4, 7, 6, generator=torch.Generator().manual_seed(0)) < 0.3).double()
    ones = nn.Conv2d(
        4, conv.out_channels, conv.kernel_size, conv.stride, conv.padding, conv.dilation, conv.groups, False
    )
    nn.init.ones_(ones.weight)
    assert count_synops(conv, x) == int(ones.double()(x).sum().round())
