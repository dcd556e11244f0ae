from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from asfedbridge.core.losses import cross_entropy
from asfedbridge.core.task import ClientInfo, Kind, Task
from asfedbridge.kernels import sparse_conv
from asfedbridge.models.composed import CONVOLUTIONS, ComposedResNet18, build_composed, outline_composed

Infos = Callable[..., ClientInfo]
Images = Callable[..., Tensor]
KINDS: list[Kind] = ["ann", "snn"]
BANKS = 294_912
SHARES = (0.125, 0.25)


def build(task: Task, info: ClientInfo) -> ComposedResNet18:
    return build_composed(task, info, *SHARES)


@pytest.mark.parametrize("stride", [1, 2])
def test_composed_convolution_equals_bank_then_coefficient(
    task: Task, info: Infos, images: Images, stride: int
) -> None:
    conv = (
        build(task, info(width=0.5)).stages[2][0].conv1
        if stride == 2
        else build(task, info(width=0.5)).stages[3][1].conv2
    )
    groups = conv.in_channels // conv.bank.shape[1]
    assert groups > 1
    x = images(2, channels=conv.in_channels, size=5)
    parts = [F.conv2d(part, conv.bank, stride=stride, padding=1) for part in x.chunk(groups, dim=1)]
    expected = F.conv2d(torch.cat(parts, dim=1), conv.coefficient[:, :, None, None])
    torch.testing.assert_close(conv(x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("width", "coefficient", "author", "ours"),
    [
        (0.25, (128, 256), 542_468, 588_292),
        (0.5, (256, 512), 1_242_724, 1_308_516),
        (0.75, (384, 768), 2_397_636, 2_483_396),
        (1.0, (512, 1024), 4_002_980, 4_108_708),
    ],
)
def test_sizes(cifar100: Task, info: Infos, width: float, coefficient: tuple[int, int], author: int, ours: int) -> None:
    """The authors' network has one linear layer instead of projection and classifier."""
    model = outline_composed(cifar100, info("snn", width=width), *SHARES)
    total = sum(p.numel() for p in model.parameters())
    pooled = round(512 * width)
    head = pooled * 256 + 256 + 256 * 100 + 100
    assert total == ours
    assert total - head + pooled * 100 + 100 == author
    assert sum(bank.numel() for bank in model.banks()) == BANKS
    assert tuple(model.stages[3][1].conv2.bank.shape) == (128, 64, 3, 3)
    assert tuple(model.stages[3][1].conv2.coefficient.shape) == coefficient
    assert tuple(model.stem.weight.shape) == (64, 3, 3, 3)


def test_convolutions_are_named_in_order(task: Task, info: Infos) -> None:
    model = outline_composed(task, info(), *SHARES)
    found = [name.removesuffix(".bank") for name, _ in model.named_parameters() if name.endswith(".bank")]
    assert found == CONVOLUTIONS
    assert len(model.banks()) == len(CONVOLUTIONS) == 16


def test_every_width_starts_with_the_same_orthogonal_banks(task: Task, info: Infos) -> None:
    narrow, wide = build(task, info("ann", width=0.125)), build(task, info("snn", width=0.5))
    for block, other in zip(narrow.blocks(), wide.blocks(), strict=True):
        rows = torch.cat([conv.bank.flatten(1) for conv in (block.conv1, block.conv2)])
        torch.testing.assert_close(rows @ rows.T, torch.eye(len(rows)), rtol=0, atol=1e-5)
        assert torch.equal(block.conv1.bank, other.conv1.bank)
        assert torch.equal(block.conv2.bank, other.conv2.bank)
        assert not torch.equal(block.conv1.bank, block.conv2.bank)
    again = build(replace(task, seed=1), info(width=0.125))
    assert not torch.equal(narrow.banks()[0], again.banks()[0])
    std = wide.stages[3][1].conv2.coefficient.std().item()
    assert std == pytest.approx((2 / 256) ** 0.5, rel=0.05)


def test_ann_and_snn_have_the_same_tensors(task: Task, info: Infos) -> None:
    before = torch.get_rng_state()
    ann, snn = (build(task, info(kind)) for kind in KINDS)
    assert torch.equal(torch.get_rng_state(), before)
    assert list(ann.state_dict()) == list(snn.state_dict())
    assert all(torch.equal(t, snn.state_dict()[name]) for name, t in ann.state_dict().items())
    outline = outline_composed(task, info(), *SHARES)
    assert {n: p.shape for n, p in outline.named_parameters()} == {n: p.shape for n, p in ann.named_parameters()}
    assert not any(name.endswith("conv1.weight") for name in ann.state_dict())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("projector", ["linear", "identity"])
def test_shapes_and_gradients(task: Task, info: Infos, images: Images, kind: Kind, projector: str) -> None:
    task = replace(task, projector=projector, feature_dim=128)
    model = build(task, info(kind, width=0.25))
    out = model(images(6, size=16))
    steps = 2 if kind == "snn" else 1
    assert out.logits_TBC.shape == (steps, 6, 4)
    assert out.feature_TBD.shape == (steps, 6, 128)
    cross_entropy(out.logits, torch.arange(6) % 4).backward()
    assert all(p.grad.abs().max() > 0 for p in model.parameters())


def test_sparse_convolution_is_used(task: Task, info: Infos, images: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    """The paths numba and torch give the same outputs, rates and gradients."""
    x, y = images(6, size=16), torch.arange(6) % 4
    calls: list[str] = []
    originals = {name: getattr(sparse_conv, name) for name in ("convolve", "fork")}

    def watched(name: str, *args: Any) -> Any:
        calls.append(name)
        return originals[name](*args)

    for name in originals:
        monkeypatch.setattr(sparse_conv, name, partial(watched, name))
    results = {}
    for path in ("numba", "torch"):
        monkeypatch.setenv("ASFEDBRIDGE_NEURON", path)
        calls.clear()
        model = build(task, info("snn", width=0.25))
        out = model(x)
        assert calls == (["fork", "convolve"] * 8 if path == "numba" else [])
        cross_entropy(out.logits, y).backward()
        rates = model.eval().input_rates(x)
        results[path] = [out.logits, rates, *(p.grad for p in model.parameters())]
    for fast, plain in zip(results["numba"], results["torch"], strict=True):
        torch.testing.assert_close(fast, plain, rtol=1e-3, atol=1e-5)


def test_input_rates_are_the_mean_inputs_of_convolutions(
    task: Task, info: Infos, images: Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASFEDBRIDGE_NEURON", "torch")  # on this path hooks see every layer
    model = build(task, info("snn")).eval()
    seen: list[Tensor] = []
    for block in model.blocks():
        for conv in (block.conv1, block.conv2):
            conv.register_forward_hook(lambda *args: seen.append(args[1][0]))
    with torch.no_grad():
        for layer in model.modules():
            if hasattr(layer, "running_var"):
                layer.running_var.fill_(0.25)  # makes neurons of all layers spike
        model(images(5))
        expected = torch.tensor([x.mean().item() for x in seen])
        assert all(set(x.unique().tolist()) <= {0.0, 1.0} for x in seen)
        rates = model.input_rates(images(5))
    assert len(expected.unique()) > 10
    torch.testing.assert_close(rates, expected)
