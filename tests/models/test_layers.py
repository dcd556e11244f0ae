from collections.abc import Callable

import pytest
import torch
from torch import nn

from asfedbridge.core.task import ClientInfo, Task
from asfedbridge.models.layers import by_layer, layer_shapes, match_by_depth, overwrite_prefix
from asfedbridge.models.zoo import outline_backbone


def network(convolutions: int, matrices: int) -> nn.Module:
    """Convolutions a0, a1, ... and linear layers b0, b1, ..., with norms in between."""
    net = nn.Module()
    for i in range(convolutions):
        net.add_module(f"a{i}", nn.Conv2d(1, 1, 1))
        net.add_module(f"norm{i}", nn.BatchNorm2d(1))
    for i in range(matrices):
        net.add_module(f"b{i}", nn.Linear(1, 1))
    return net


def test_layers_of_resnet18(cifar100: Task, info: Callable[..., ClientInfo]) -> None:
    layers = by_layer(layer_shapes(outline_backbone(cifar100, info(width=1.0))))
    assert len(layers) == 1 + 16 + 3 + 2
    assert layers["stem"] == {"weight": (64, 3, 3, 3)}
    assert layers["stages.1.0.shortcut.0"] == {"weight": (128, 64, 1, 1)}
    assert layers["classifier"] == {"weight": (100, 256), "bias": (100,)}
    assert not any("norm" in name or name.endswith("shortcut.1") for name in layers)


@pytest.mark.parametrize(
    ("ours", "theirs", "places"),
    [
        (4, 4, [0, 1, 2, 3]),
        (4, 2, [0, 0, 1, 1]),  # 0.5, 1, 1.5, 2: halves are rounded up
        (2, 5, [2, 4]),  # 2.5, 5
        (5, 2, [0, 0, 0, 1, 1]),  # 0.4 rounds to 0, which is raised to the first layer
        (3, 7, [1, 4, 6]),  # 2.33, 4.67, 7
    ],
)
def test_layers_match_at_the_same_relative_depth(ours: int, theirs: int, places: list[int]) -> None:
    pairs = match_by_depth(network(ours, 1), network(theirs, 3))
    assert [pairs[f"a{i}"] for i in range(ours)] == [f"a{i}" for i in places]
    assert pairs["b0"] == "b2"  # types do not mix, and the last layer matches the last
    assert len(pairs) == ours + 1


def test_equal_networks_map_one_to_one(cifar100: Task, info: Callable[..., ClientInfo]) -> None:
    pairs = match_by_depth(*(outline_backbone(cifar100, info(kind, width=w)) for kind, w in (("snn", 0.5), ("ann", 1))))
    assert len(pairs) == 22
    assert all(ours == theirs for ours, theirs in pairs.items())


def test_overwrite_prefix_keeps_the_rest() -> None:
    small, large = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[9.0, 8.0, 7.0], [6.0, 5.0, 4.0]])
    assert overwrite_prefix(large, small).tolist() == [[1.0, 2.0, 3.0], [4.0, 5.0, 4.0]]
    assert overwrite_prefix(small, large).tolist() == [[9.0, 8.0], [7.0, 6.0]]
    assert overwrite_prefix(small, -small).tolist() == [[-1.0, -2.0], [-3.0, -4.0]]
    assert small.tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_layer_type_missing_in_the_other_network_is_omitted() -> None:
    convolutional = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4, 2))
    dense = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 2))
    assert match_by_depth(convolutional, dense) == {"2": "1"}
    assert match_by_depth(dense, convolutional) == {"0": "2", "1": "2"}
