"""Layer counts by the paper's equation, and torch's counter with our two corrections."""

import dataclasses

import pytest
import torch
from torch import nn

from asfedbridge.analysis.operations import Layer, count_layers, make_counter, profile
from asfedbridge.core.task import ClientInfo, Neuron, Task
from asfedbridge.models.neuron import Spiking
from asfedbridge.models.zoo import outline_backbone, outline_bridge

TASK = Task(classes=5, channels=2, image_size=16, feature_dim=8)


@pytest.mark.parametrize("kind", ["ann", "snn"])
def test_sum_over_layers_equals_torchs_count(kind: str) -> None:
    steps = 3 if kind == "snn" else 1
    network = outline_backbone(TASK, ClientInfo(0, kind, "resnet18", 0.25, steps))  # type: ignore[arg-type]
    layers = count_layers(network, TASK)
    with make_counter() as counter, torch.no_grad():
        network(torch.empty(1, 2, 16, 16, device="meta"))
    assert 2 * sum(layer.macs * layer.steps for layer in layers.values()) == counter.get_total_flops()
    assert layers["stem"] == Layer(16 * 16 * 16 * 2 * 9, 1, True, False)  # runs once for a static image
    assert layers["stages.1.0.shortcut.0"] == Layer(8 * 8 * 32 * 16, steps, True, kind == "snn")
    assert layers["classifier"] == Layer(8 * 5, steps, False, kind == "snn")


def test_backward_pass_has_two_products_per_forward_product() -> None:
    """Except for the stem, which has no input gradient. Norms: two operations per value forward, four backward."""
    network = outline_bridge(TASK, 0.5, "batch")
    layers = count_layers(network, TASK)
    forward = 2 * sum(layer.macs for layer in layers.values())
    sizes = [(12, 16), (32, 8), (60, 4), (110, 2)]
    values = 12 * 16**2 + sum(
        channels * side**2 * (2 if number == 0 else 3) for number, (channels, side) in enumerate(sizes)
    )
    found = profile(network, TASK, 4)
    assert found.forward == 4 * (forward + 2 * values)
    assert found.backward == 4 * (2 * forward - 2 * layers["body.stem"].macs + 4 * values)


def test_profile_removes_its_hooks() -> None:
    network = outline_bridge(TASK, 0.5, "batch")
    assert profile(network, TASK, 2) == profile(network, TASK, 2)
    assert all(p.grad is None for p in network.parameters())
    assert not any(layer._forward_hooks for layer in network.modules())


def test_group_norm_is_counted() -> None:
    batch, group = (profile(outline_bridge(TASK, 0.5, norm), TASK, 2) for norm in ("batch", "group"))
    assert batch == group


@pytest.mark.parametrize(("groups", "stride"), [(1, 1), (1, 2), (4, 1), (8, 2)])
def test_gradients_of_grouped_convolutions_cost_what_the_forward_pass_costs(groups: int, stride: int) -> None:
    conv = nn.Conv2d(8, 8, 3, stride, 1, groups=groups, bias=False)
    x = torch.randn(2, 8, 6, 6, requires_grad=True)
    with make_counter() as counter:
        out = conv(x)
        forward = counter.get_total_flops()
        out.sum().backward()
    assert forward == 2 * out.numel() * 8 // groups * 9
    assert counter.get_total_flops() == 3 * forward


def test_feature_dim_affects_the_count() -> None:
    wide = dataclasses.replace(TASK, feature_dim=16)
    narrow, wider = (count_layers(outline_bridge(task, 0.5, "batch"), task)["head"].macs for task in (TASK, wide))
    assert wider == 2 * narrow


def test_two_of_three_products_of_a_layer_are_driven_by_spikes() -> None:
    """By hand, for two images at T = 3: forward product and weight gradient; the input gradient is dense."""
    steps, batch = 3, 2
    stem, conv, head = 2 * 4 * 9 * 16**2, 4 * 5 * 9 * 16**2, 5 * 16**2 * 6  # multiply-accumulates
    with torch.device("meta"):
        network = nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1),  # reads the image: dense, no input gradient
            Repeat(steps),
            Spiking(steps, Neuron()),
            nn.Conv2d(4, 5, 3, padding=1),  # reads spikes
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(5 * 16**2, 6),  # reads real numbers
        )
    found = profile(network, TASK, batch)
    assert found.spiking == 2 * batch * steps * conv
    assert found.forward - found.spiking == 2 * batch * (stem + steps * head)
    assert found.backward - found.spiking == 2 * batch * (stem + steps * (conv + 2 * head))


class Repeat(nn.Module):
    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x] * self.steps)
