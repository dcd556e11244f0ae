"""Energy with memory accesses, beside SpikingJelly's implementation of the same paper."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tests.export.trained import trained
from torch import Tensor, nn

from asfedbridge.export.energy import byte_pj, energy_with_memory
from asfedbridge.export.loader import Program, Step

T, DECAY, THRESHOLD = 3, 0.5, 0.25


class Spikes(nn.Module):
    """Marks a place of neurons in a list of layers."""


def make_program(layers: Sequence[nn.Module]) -> Program:
    steps: list[Step] = []
    tensors: dict[str, Tensor] = {}
    source = "images"
    for number, layer in enumerate(layers):
        name, options = f"step{number}", {}
        held = {part: f"{name}.{part}" for part in layer.state_dict()}
        tensors |= {held[part]: tensor for part, tensor in layer.state_dict().items()}
        if isinstance(layer, nn.Conv2d):
            options = {"stride": list(layer.stride), "padding": list(layer.padding), "groups": layer.groups}
        elif isinstance(layer, Spikes):
            options = {"steps": T, "decay": DECAY, "threshold": THRESHOLD}
            if not any(step["op"] == "lif" for step in steps):
                steps.append(
                    {"name": "again", "op": "repeat", "inputs": [source], "tensors": {}, "options": {"steps": T}}
                )
                source = "again"
        op = {nn.Conv2d: "conv", nn.Linear: "linear", Spikes: "lif"}[type(layer)]
        steps.append({"name": name, "op": op, "inputs": [source], "tensors": held, "options": options})
        source = name
    return Program(steps, tensors).eval()


class Theirs(nn.Module):
    """The same layers as SpikingJelly runs them: over time from the first neurons on."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        from spikingjelly.activation_based import layer, neuron

        super().__init__()
        first = next((n for n, one in enumerate(layers) if isinstance(one, Spikes)), len(layers))
        self.before, self.after = nn.Sequential(*layers[:first]), nn.Sequential()
        for one in layers[first:]:
            if isinstance(one, nn.Conv2d):
                shape: Any = one.in_channels, one.out_channels, one.kernel_size, one.stride, one.padding
                made = layer.Conv2d(*shape, groups=one.groups, bias=one.bias is not None, step_mode="m")
            elif isinstance(one, nn.Linear):
                made = layer.Linear(one.in_features, one.out_features, step_mode="m")
            else:
                made = neuron.LIFNode(2.0, decay_input=False, v_threshold=THRESHOLD, v_reset=0.0, step_mode="m")
            made.load_state_dict(one.state_dict())
            self.after.append(made)

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x)
        out: Tensor = self.after(torch.stack([x] * T)) if len(self.after) else x
        return out


NETWORKS = {
    "spiking convolutions": lambda: (
        [
            nn.Conv2d(1, 4, 3, padding=1),
            Spikes(),
            nn.Conv2d(4, 6, 3, stride=2, padding=1, bias=False),
            Spikes(),
            nn.Conv2d(6, 8, 1, groups=2),
        ],
        (1, 12, 12),
    ),
    "spiking linear layers": lambda: ([nn.Linear(20, 300), Spikes(), nn.Linear(300, 90)], (20,)),
    "continuous": lambda: ([nn.Conv2d(3, 40, 3, bias=False), nn.Conv2d(40, 40, 5, stride=2)], (3, 40, 40)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_energy_is_what_spikingjelly_says(name: str) -> None:
    pytest.importorskip("spikingjelly")
    from spikingjelly.activation_based.op_counter import LemaireEnergyConfig, estimate_lemaire_energy

    torch.manual_seed(0)
    layers, shape = NETWORKS[name]()
    x = torch.rand(1, *shape)
    theirs = estimate_lemaire_energy(Theirs(layers), x, config=LemaireEnergyConfig(strict=False)).breakdown_pj
    ours = energy_with_memory(make_program(layers), x)
    total = ours.pop("total")
    assert ("membranes" in ours) == name.startswith("spiking")
    names = {"ops": "operations", "inout": "inputs_outputs", "params": "parameters", "potential": "membranes"}
    for part, value in theirs.items():
        if part != "memory_pj":
            own = part.removesuffix("_pj")
            assert 1e6 * ours.get(names.get(own, own), 0) == pytest.approx(value), part
    assert total == pytest.approx(sum(ours.values()))


def test_energy_is_of_one_image() -> None:
    case = trained("snn", "vgg9")
    program = case.subject.trace()
    one_by_one = [energy_with_memory(program, image)["total"] for image in case.images[:3].split(1)]
    assert energy_with_memory(program, case.images[:3])["total"] == pytest.approx(sum(one_by_one) / 3)


def test_large_memories_cost_more() -> None:
    assert [byte_pj(size) for size in (0, 4096, 8192, 32768, 2**20, 2**30)] == [0, 1.25, 2.5, 5, 25, 25]
