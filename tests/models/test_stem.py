"""Stems: 3x3 for small images (CIFAR), 7x7 and a max-pool for large ones (ImageNet)."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from asfedbridge.core.task import ClientInfo, Kind, Task
from asfedbridge.models import neuron
from asfedbridge.models.composed import build_composed
from asfedbridge.models.neuron import lif_reference
from asfedbridge.models.zoo import build_backbone, build_bridge

Infos = Callable[..., ClientInfo]
Images = Callable[..., Tensor]


@pytest.mark.parametrize(
    ("size", "kernel", "first"), [(8, 3, 8), (64, 3, 64), (127, 3, 127), (128, 7, 32), (224, 7, 56)]
)
@pytest.mark.parametrize("kind", ["ann", "snn"])
def test_stem_by_image_size(
    task: Task, info: Infos, images: Images, kind: Kind, size: int, kernel: int, first: int
) -> None:
    task = replace(task, image_size=size)
    x = images(1, size=size)
    for model in (build_backbone(task, info(kind)), build_composed(task, info(kind), 0.125, 0.125)):
        assert model.stem.kernel_size == (kernel, kernel)
        with torch.no_grad():
            assert model.enter(x).shape[2:] == (first, first)
    body = build_bridge(task, 0.25, "group").body
    assert body.stem.kernel_size == (kernel, kernel)
    with torch.no_grad():
        assert body(x)[0].shape[2:] == (first, first)


def test_names_do_not_depend_on_the_image_size(task: Task, info: Infos) -> None:
    small, large = (build_backbone(replace(task, image_size=s), info("snn")) for s in (64, 224))
    assert list(small.state_dict()) == list(large.state_dict())
    differ = [n for n, t in small.state_dict().items() if t.shape != large.state_dict()[n].shape]
    assert differ == ["stem.weight"]


def test_pool_before_relu_equals_pool_after_relu(task: Task, info: Infos, images: Images) -> None:
    """He et al. pool after the ReLU; the results are bit-identical."""
    model = build_backbone(replace(task, image_size=128), info("ann", width=0.25))
    x = images(3, size=128)
    torch.testing.assert_close(model.enter(x), F.max_pool2d(model.norm(model.stem(x)).relu(), 3, 2, 1), rtol=0, atol=0)


@pytest.mark.parametrize("path", ["numba", "torch"])
def test_snn_stem_matches_the_reference(
    task: Task, info: Infos, images: Images, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spikes and the stem's gradient, on the paths numba and torch."""
    if path == "torch":
        monkeypatch.setattr(neuron, "path_of", lambda x: "torch")
    model = build_backbone(replace(task, image_size=128), info("snn", width=0.25, T=3))
    x, weight = images(2, size=128), images(6, 16, 32, seed=1)
    spikes = model.enter(x)
    (spikes * weight).sum().backward()
    found = model.stem.weight.grad.clone()
    model.zero_grad()
    current = F.max_pool2d(model.norm(model.stem(x)), 3, 2, 1)
    expected = lif_reference(torch.stack([current] * 3), task.neuron).flatten(0, 1)
    (expected * weight).sum().backward()
    assert torch.equal(spikes, expected)
    assert set(spikes.unique().tolist()) == {0.0, 1.0}
    torch.testing.assert_close(found, model.stem.weight.grad, rtol=1e-4, atol=1e-4)
