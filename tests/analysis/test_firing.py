"""Spikes and synaptic operations against SpikingJelly's counter and a count by hand."""

from collections.abc import Callable

import pytest
import torch
from spikingjelly.activation_based.op_counter import DispatchCounterMode, SynOpCounter
from torch import nn

import asfedbridge.methods  # noqa: F401  registers every method
from asfedbridge.analysis.firing import count_synops, firing_rates
from asfedbridge.core.protocol import METHODS, Client, Task
from asfedbridge.models.parts import Projector
from asfedbridge.models.paths import path_of, use_path

Make = Callable[..., Client]


def lively_client(make_client: Make, size: int, method: str = "standalone", T: int = 3) -> Client:
    """Biases that let neurons of every layer fire, some often, some never."""
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
def test_synaptic_operations_are_spikingjellys(make_client: Make, size: int, method: str, T: int) -> None:
    """Integer for integer, layer for layer, with edges, strides and shortcuts; an 8x8 image ends as one pixel."""
    client = lively_client(make_client, size, method, T)
    batches = list(client.shard.test_batches(3))
    found = firing_rates(client, batches)
    counter = SynOpCounter()
    with use_path("torch"), torch.no_grad(), DispatchCounterMode([counter]):
        for x, _ in batches:
            client.backbone(client.place(x))
    theirs = counter.get_counts()
    root = type(client.backbone).__name__
    assert sum(layer.synops for layer in found.values()) == counter.get_total() > 1000
    for name, layer in found.items():
        assert layer.synops == sum(theirs.get(f"{root}.{name}", {}).values()), name
    assert sum(1 for layer in found.values() if layer.synops) > 15
    dense = {name for name, layer in found.items() if not layer.binary}
    assert dense == ({"stem"} if size == 8 else {"stem", "projector"})


def test_rates_are_shares_of_nonzero_inputs(make_client: Make) -> None:
    """The spikes of the feature enter the classifier: counted from the output, step by step."""
    client = lively_client(make_client, 16)
    batches = list(client.shard.test_batches(3))
    with use_path("torch"), torch.no_grad():
        feature_TBD = torch.cat([client.backbone(client.place(x)).feature_TBD for x, _ in batches], dim=1)
    layer = firing_rates(client, batches)["classifier"]
    assert layer.rates() == pytest.approx(feature_TBD.mean(dim=(1, 2)).tolist(), abs=1e-6)
    assert layer.macs == 16 * 4
    assert layer.sops == pytest.approx(layer.synops / 4)  # no edges in a linear layer: the paper's formula is exact


def test_the_formula_overcounts_at_edges_alone(make_client: Make) -> None:
    for name, layer in firing_rates(
        lively_client(make_client, 16), [(torch.randn(4, 3, 16, 16), torch.zeros(4))]
    ).items():
        exact = layer.synops / 4
        if layer.binary and "conv" in name:
            assert exact <= layer.sops * 1.000001
            assert exact > 0.4 * layer.sops or layer.sops == 0


def test_measuring_changes_nothing(make_client: Make) -> None:
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
    """With weights and spikes of one and zero, the sum of the outputs is that number."""
    x = (torch.rand(3, 4, 7, 6, generator=torch.Generator().manual_seed(0)) < 0.3).double()
    ones = nn.Conv2d(
        4, conv.out_channels, conv.kernel_size, conv.stride, conv.padding, conv.dilation, conv.groups, False
    )
    nn.init.ones_(ones.weight)
    assert count_synops(conv, x) == int(ones.double()(x).sum().round())
