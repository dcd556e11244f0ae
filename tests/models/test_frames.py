"""Spiking networks on event frames: each time step reads one frame; the input's channels hold all frames."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from asfedbridge.core.errors import BadInput
from asfedbridge.core.task import ClientInfo, Neuron, Task
from asfedbridge.kernels import norm_lif
from asfedbridge.models.composed import build_composed
from asfedbridge.models.neuron import Spiking, _Spike, lif_reference, unfold
from asfedbridge.models.parts import BatchNorm, conv3x3
from asfedbridge.models.zoo import build_backbone, build_bridge, check_backbone, outline_backbone

Infos = Callable[..., ClientInfo]
Images = Callable[..., Tensor]
T = 3


@pytest.fixture
def events(task: Task) -> Task:
    return replace(task, channels=2 * T, frames=T)


class Cell:
    """LIF neurons of one layer that keep their membrane between calls."""

    def __init__(self, neuron: Neuron) -> None:
        self.neuron, self.v = neuron, torch.zeros(())

    def __call__(self, current: Tensor) -> Tensor:
        u = current + self.neuron.decay * self.v
        s: Tensor = _Spike.apply(u - self.neuron.threshold, self.neuron)
        self.v = u * (1 - s)
        return s


def step_by_step(model: Any, x_BCHW: Tensor, neuron: Neuron) -> Tensor:
    """Logits [T, B, C] of a ResNet that processes one frame after the other and keeps its membranes in between."""
    cells: dict[str, Cell] = {}

    def fire(name: str, current: Tensor) -> Tensor:
        return cells.setdefault(name, Cell(neuron))(current)

    logits = []
    for t in range(T):
        frame = torch.stack([x_BCHW[:, 2 * t], x_BCHW[:, 2 * t + 1]], dim=1)
        x = fire("stem", model.norm(model.stem(frame)))
        for i, stage in enumerate(model.stages):
            for j, block in enumerate(stage):
                hidden = fire(f"{i}.{j}.1", block.norm1(block.conv1(x)))
                x = fire(f"{i}.{j}.2", block.norm2(block.conv2(hidden)) + block.shortcut(x))
        logits.append(model.classifier(fire("projector", model.projector(x.mean(dim=(2, 3))))))
    return torch.stack(logits)


@pytest.mark.parametrize("build", ["plain", "composed"])
def test_matches_processing_frame_by_frame(events: Task, info: Infos, images: Images, build: str) -> None:
    """Output and all gradients, in evaluation mode, where a norm's statistics do not depend on the other frames."""
    snn = info("snn", T=T)
    model = build_backbone(events, snn) if build == "plain" else build_composed(events, snn, 0.125, 0.25)
    model = model.double().eval()
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_var.fill_(0.05)  # makes neurons spike, and at different steps
    x = images(4, 2 * T).double().contiguous(memory_format=torch.channels_last)
    ours, theirs = model(x), step_by_step(model, x, events.neuron)
    torch.testing.assert_close(ours.logits_TBC, theirs)
    assert (ours.logits_TBC[0] - ours.logits_TBC[1]).abs().max() > 0.01
    weight = torch.randn(theirs.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    parameters = list(model.parameters())
    mine = torch.autograd.grad((ours.logits_TBC * weight).sum(), parameters)
    reference = torch.autograd.grad((theirs * weight).sum(), parameters)
    for a, b in zip(mine, reference, strict=True):
        torch.testing.assert_close(a, b)
    assert mine[0].abs().max() > 0


def test_fused_kernel_on_frames(images: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fused norm and LIF against ``lif_reference`` on frames sliced by hand."""
    calls: list[bool] = []
    original = norm_lif.norm_lif

    def watched(*args: Any) -> Any:
        calls.append(args[-1])
        return original(*args)

    monkeypatch.setattr(norm_lif, "norm_lif", watched)
    x = images(4, 2 * T).contiguous(memory_format=torch.channels_last)
    stem = conv3x3(2, 16).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    norms = [BatchNorm(16), BatchNorm(16)]
    out = Spiking(T, Neuron(), frames=True).read(stem, norms[0], x)
    assert calls == [False]  # not shared: each step has its own frame
    frames = torch.cat([x[:, 2 * t : 2 * t + 2] for t in range(T)])
    plain = lif_reference(norms[1](stem(frames)).unflatten(0, (T, -1)), Neuron()).flatten(0, 1)
    assert torch.equal(out, plain)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(2))
    for a, b in zip(
        torch.autograd.grad((out * weight).sum(), [stem.weight, norms[0].weight]),
        torch.autograd.grad((plain * weight).sum(), [stem.weight, norms[1].weight]),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_unfold_does_not_mix_examples_steps_and_channels() -> None:
    x = torch.arange(2 * 6 * 3 * 3.0).view(2, 6, 3, 3)
    for layout in (torch.contiguous_format, torch.channels_last):
        out = unfold(x.contiguous(memory_format=layout), 3)
        assert out.is_contiguous(memory_format=torch.channels_last)
        for t in range(3):
            for example in range(2):
                for channel in range(2):
                    assert torch.equal(out[2 * t + example, channel], x[example, 2 * t + channel])


def test_input_channels_of_stems_and_bridge(events: Task, info: Infos, images: Images) -> None:
    ann, snn = outline_backbone(events, info("ann")), outline_backbone(events, info("snn", T=T))
    assert ann.stem.weight.shape[1] == 2 * T
    assert snn.stem.weight.shape[1] == 2
    rest = [[p.shape for n, p in m.named_parameters() if n != "stem.weight"] for m in (ann, snn)]
    assert rest[0] == rest[1]
    assert build_bridge(events, 0.375, "batch")(images(2, 2 * T)).shape == (2, 4)
    assert build_backbone(events, info("ann"))(images(2, 2 * T)).logits_TBC.shape == (1, 2, 4)


def test_snn_whose_steps_differ_from_the_frames_is_rejected(events: Task, info: Infos) -> None:
    check_backbone(events, info("ann"))
    check_backbone(events, info("snn", T=T))
    with pytest.raises(BadInput, match=r"client 0 .* has T=2, but each example has 3 frames"):
        check_backbone(events, info("snn", T=2))
    check_backbone(replace(events, frames=1), info("snn", T=2))  # a single frame is an image


def test_static_images_are_not_frames(task: Task, info: Infos) -> None:
    assert not build_backbone(task, info("snn", T=T)).act.frames
