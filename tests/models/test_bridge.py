from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from asfedbridge.core.losses import cross_entropy
from asfedbridge.core.task import Task
from asfedbridge.models.zoo import build_bridge, outline_bridge

Images = Callable[..., Tensor]
NORMS = ["batch", "group"]
WIDTH = 0.375


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("width", [0.0625, 0.5, 0.75, 1.0])
def test_widths_build_and_have_five_ports(task: Task, images: Images, width: float, norm: str) -> None:
    reading = build_bridge(task, width, norm).read(images(2))
    sizes = [round(size * width) for size in (24, 64, 120, 220)]
    assert reading.logits_BC.shape == (2, 4)
    assert [tuple(r.shape) for r in reading.rates] == [
        *((2, size, side, side) for size, side in zip(sizes, (8, 4, 2, 1), strict=True)),
        (2, 16),
    ]
    assert all(0 <= r.min() <= r.max() <= 1 for r in reading.rates)


@pytest.mark.parametrize(("channels", "size"), [(1, 28), (5, 16), (2, 48), (3, 64)])
def test_small_images_of_any_size(task: Task, images: Images, channels: int, size: int) -> None:
    bridge = build_bridge(replace(task, channels=channels, image_size=size), WIDTH, "batch")
    assert bridge(images(2, channels, size)).shape == (2, 4)


def test_ports_do_not_change_the_logits(task: Task, images: Images) -> None:
    """Not even with scales so large that all rates are zero."""
    bridge, x = build_bridge(task, WIDTH, "group"), images(3)
    plain = bridge(x)
    with torch.no_grad():
        for port in bridge.body.ports:
            port.log_scale.fill_(20.0)
    reading = bridge.read(x)
    assert torch.equal(reading.logits_BC, plain)
    assert all(r.max() < 1e-6 for r in reading.rates)


@pytest.mark.parametrize("log_scale", [-5.0, 0.0, 3.0])
def test_scale_of_a_port_is_positive(task: Task, images: Images, log_scale: float) -> None:
    bridge = build_bridge(task, WIDTH, "group")
    port = bridge.body.ports[-1]
    assert port.log_scale.tolist() == [0.0] * 16  # starts at one
    with torch.no_grad():
        port.log_scale.fill_(log_scale)
        activation = bridge.body(images(2))[-1]
        expected = (activation.double() / torch.tensor(log_scale).double().exp()).clamp(0, 1).float()
        torch.testing.assert_close(port(activation), expected)


def test_gradient_of_rates_reaches_the_body_but_not_the_head(task: Task, images: Images) -> None:
    bridge = build_bridge(task, WIDTH, "batch")
    sum(r.sum() for r in bridge.read(images(4)).rates).backward()
    assert all(p.grad is not None for p in bridge.body.parameters())
    assert all(p.grad is None for p in bridge.head.parameters())


def test_building_does_not_use_the_global_generator(task: Task) -> None:
    before = torch.get_rng_state()
    one, same = (build_bridge(task, WIDTH, "batch") for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(t, same.state_dict()[name]) for name, t in one.state_dict().items())
    other = build_bridge(replace(task, seed=7), WIDTH, "batch")
    assert not torch.equal(other.body.stem.weight, one.body.stem.weight)


def test_body_does_not_depend_on_the_number_of_classes(task: Task) -> None:
    bodies = [build_bridge(replace(task, classes=c), WIDTH, "batch").body.state_dict() for c in (4, 9)]
    assert all(torch.equal(t, bodies[1][name]) for name, t in bodies[0].items())


def test_outline_has_no_memory(task: Task) -> None:
    outline, built = outline_bridge(task, 0.5, "batch"), build_bridge(task, 0.5, "batch")
    assert all(p.is_meta for p in outline.parameters())
    assert {n: p.shape for n, p in outline.named_parameters()} == {n: p.shape for n, p in built.named_parameters()}


@pytest.mark.parametrize("norm", NORMS)
def test_batch_of_one_trains(task: Task, images: Images, norm: str) -> None:
    bridge = build_bridge(task, WIDTH, norm).train()
    reading = bridge.read(images(1))
    (cross_entropy(reading.logits_BC, torch.tensor([0])) + sum(r.mean() for r in reading.rates)).backward()
    assert bridge.head.bias.grad.abs().max() > 0
    assert all(torch.isfinite(p.grad).all() for p in bridge.parameters() if p.grad is not None)
    assert all(torch.isfinite(b).all() for b in bridge.buffers())


@pytest.mark.parametrize("norm", NORMS)
def test_one_step_lowers_the_loss(task: Task, images: Images, norm: str) -> None:
    bridge, x, y = build_bridge(task, WIDTH, norm), images(16), torch.arange(16) % 4
    loss = cross_entropy(bridge(x), y)
    loss.backward()
    torch.optim.SGD(bridge.parameters(), lr=0.05).step()
    assert cross_entropy(bridge(x), y) < loss - 0.01
