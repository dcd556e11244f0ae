"""The sparse convolution against a dense one in double precision."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asfedbridge.kernels import sparse_conv

Threads = Callable[[int], None]
SIZES = [(1, 1), (1, 6), (5, 1), (2, 2), (5, 7)]


def make(inputs: int, outputs: int, seed: int = 0, stride: int = 1) -> nn.Conv2d:
    conv = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
    with torch.no_grad():
        conv.weight.normal_(generator=torch.Generator().manual_seed(seed))
    return conv


def fire(rate: float, *shape: int, seed: int = 1) -> Tensor:
    return (torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < rate).float()


def noise(*shape: int, seed: int = 2) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def take(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[bool]]:
    """Forces sparse or dense code, forward and backward. The list records ``gradient`` of each sparse call."""

    def force(forward: str, backward: str) -> list[bool]:
        calls: list[bool] = []
        original: Callable[..., None] = sparse_conv._scatter

        def counted(*args: Any, gradient: bool) -> None:
            calls.append(gradient)
            original(*args, gradient=gradient)

        monkeypatch.setattr(sparse_conv, "_scatter", counted)
        monkeypatch.setattr(sparse_conv, "DENSE_FORWARD", {"sparse": 2.0, "dense": -1.0}[forward])
        monkeypatch.setattr(sparse_conv, "DENSE_BACKWARD", {"sparse": 2.0, "dense": -1.0}[backward])
        return calls

    return force


def check(conv: nn.Conv2d, spikes: Tensor, up: Tensor) -> None:
    """Compares the output and both gradients, up to rounding of sums in single precision."""
    x, x64 = spikes.clone().requires_grad_(), spikes.double().requires_grad_()
    weight = conv.weight.detach().double().requires_grad_()
    expected = F.conv2d(x64, weight, stride=conv.stride, padding=1)
    expected.backward(up.double())
    conv.weight.grad = None
    out = sparse_conv.convolve(conv, x)
    out.backward(up)
    assert out.dtype == torch.float32
    assert conv.weight.grad is not None
    for value, right in ((out, expected), (conv.weight.grad, weight.grad), (x.grad, x64.grad)):
        # Terms are of size 1, so rounding errors grow with the size of the sum.
        assert value.shape == right.shape
        scale = max(1.0, right.abs().max().item())
        torch.testing.assert_close(value.double(), right, rtol=1e-5, atol=2e-6 * scale)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("channels", [(16, 16), (16, 48), (48, 32), (32, 144), (144, 16)])
@pytest.mark.parametrize("rate", [0.0, 0.02, 0.2, 1.1])
def test_sparse_matches_dense(
    size: tuple[int, int], channels: tuple[int, int], rate: float, take: Callable[..., list[bool]]
) -> None:
    """All borders and image shapes, also without any spike and with spikes only."""
    calls = take("sparse", "sparse")
    check(make(*channels), fire(rate, 3, channels[0], *size), noise(3, channels[1], *size))
    assert calls == [False, True]


@pytest.mark.parametrize("size", [*SIZES, (4, 4), (6, 5)])
@pytest.mark.parametrize("channels", [(16, 16), (16, 48), (48, 32), (32, 144), (144, 16)])
@pytest.mark.parametrize("rate", [0.02, 0.2, 1.1])
def test_stride_2_with_even_and_odd_sizes(
    size: tuple[int, int], channels: tuple[int, int], rate: float, take: Callable[..., list[bool]]
) -> None:
    calls = take("sparse", "sparse")
    out = -(-size[0] // 2), -(-size[1] // 2)
    check(make(*channels, stride=2), fire(rate, 3, channels[0], *size), noise(3, channels[1], *out))
    assert calls == [False, True]


@pytest.mark.parametrize("forward", ["sparse", "dense"])
@pytest.mark.parametrize("backward", ["sparse", "dense"])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_sparse_and_dense_passes_combine(
    forward: str, backward: str, layout: torch.memory_format, take: Callable[..., list[bool]]
) -> None:
    calls = take(forward, backward)
    conv = make(32, 48).to(memory_format=layout)  # type: ignore[call-overload]
    check(conv, fire(0.2, 2, 32, 5, 7).contiguous(memory_format=layout), noise(2, 48, 5, 7))
    assert calls == [False] * (forward == "sparse") + [True] * (backward == "sparse")


@pytest.mark.parametrize("y", [0, 1, 2, 3])
@pytest.mark.parametrize("x", [0, 1, 2])
def test_output_of_one_spike_is_the_rotated_kernel(y: int, x: int, take: Callable[..., list[bool]]) -> None:
    """Rotated by 180 degrees and clipped at the border."""
    take("sparse", "sparse")
    conv, spikes = make(16, 16), torch.zeros(1, 16, 4, 3)
    spikes[0, 5, y, x] = 1
    out = sparse_conv.convolve(conv, spikes)
    for i in range(4):
        for j in range(3):
            dy, dx = y - i + 1, x - j + 1
            inside = 0 <= dy < 3 and 0 <= dx < 3
            expected = conv.weight[:, 5, dy, dx] if inside else torch.zeros(16)
            assert torch.equal(out[0, :, i, j], expected)


@pytest.mark.parametrize("block", [16, 32, 96])
def test_input_channels_in_blocks(block: int, take: Callable[..., list[bool]], monkeypatch: pytest.MonkeyPatch) -> None:
    """144 channels in 9 blocks, in 5 (the last one partial) or in 2. A block of 96 needs a word of 64 spikes and one
    of 32."""
    take("sparse", "sparse")
    monkeypatch.setattr(sparse_conv, "PATCH_BYTES", block * 9 * 32 * 4)
    seen = []
    original = sparse_conv.openmp.spread

    def look(kernel: Any, length: int, tile: int, rows: int, call: Any) -> None:
        seen.append(call(0)[7])
        original(kernel, length, tile, rows, call)

    monkeypatch.setattr(sparse_conv.openmp, "spread", look)
    check(make(144, 32), fire(0.2, 2, 144, 4, 5), noise(2, 32, 4, 5))
    assert seen == [block, block]


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("images", [1, 2, 5])
def test_threads_share_the_images(count: int, images: int, take: Callable[..., list[bool]], threads: Threads) -> None:
    """Also with more threads than images. Each thread sums its own weight gradient."""
    take("sparse", "sparse")
    threads(count)
    check(make(16, 32), fire(0.2, images, 16, 5, 7), noise(images, 32, 5, 7))


def test_firing_rate_selects_sparse_or_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates just below and just above each threshold, estimated from every eighth image."""
    calls: list[bool] = []
    original: Callable[..., None] = sparse_conv._scatter

    def counted(*args: Any, gradient: bool) -> None:
        calls.append(gradient)
        original(*args, gradient=gradient)

    monkeypatch.setattr(sparse_conv, "_scatter", counted)
    monkeypatch.setattr(sparse_conv, "DENSE_FORWARD", 0.25)
    monkeypatch.setattr(sparse_conv, "DENSE_BACKWARD", 0.5)
    conv, size = make(16, 16), 16 * 4 * 4
    taken = {}
    for name, count in {"low": 64, "middle": 65, "high": 128, "dense": 129}.items():
        spikes = torch.ones(9, size)
        spikes[::8] = 0
        spikes[0, :count] = 1
        spikes[8, :count] = 1
        calls.clear()
        sparse_conv.convolve(conv, spikes.view(9, 16, 4, 4)).backward(noise(9, 16, 4, 4))
        taken[name] = list(calls)
    assert taken == {"low": [False, True], "middle": [True], "high": [True], "dense": []}


def test_the_thresholds_are_rates() -> None:
    assert 0 < sparse_conv.DENSE_FORWARD < 1
    assert 0 < sparse_conv.DENSE_BACKWARD < 1


@pytest.mark.parametrize(
    "options",
    [
        {"stride": 3},
        {"stride": (1, 2)},
        {"stride": (2, 1)},
        {"padding": 0},
        {"padding": 2},
        {"padding": "same"},
        {"dilation": 2},
        {"groups": 2},
        {"bias": True},
        {"kernel_size": 1},
        {"kernel_size": (3, 1)},
        {"in_channels": 24},
        {"out_channels": 24},
        {"in_channels": 3},
        {"padding_mode": "reflect"},
    ],
)
def test_other_convolutions_do_not_fit(options: dict[str, Any]) -> None:
    plain: dict[str, Any] = {
        "in_channels": 32,
        "out_channels": 16,
        "kernel_size": 3,
        "stride": 1,
        "padding": 1,
        "bias": False,
    }
    assert sparse_conv.fits(nn.Conv2d(**plain))
    assert sparse_conv.fits(nn.Conv2d(**plain | {"stride": 2}))
    assert not sparse_conv.fits(nn.Conv2d(**plain | options))


@pytest.mark.parametrize("way", ["sparse", "dense"])
def test_only_some_gradients_are_required(way: str, take: Callable[..., list[bool]]) -> None:
    calls = take(way, way)
    conv, spikes, up = make(16, 32), fire(0.2, 2, 16, 4, 4), noise(2, 32, 4, 4)
    x = spikes.clone().requires_grad_()
    d_x, d_weight = torch.autograd.grad(sparse_conv.convolve(conv, x), (x, conv.weight), up)
    (alone,) = torch.autograd.grad(sparse_conv.convolve(conv, spikes), conv.weight, up)
    assert torch.equal(alone, d_weight)
    conv.requires_grad_(False)
    calls.clear()
    (alone,) = torch.autograd.grad(sparse_conv.convolve(conv, x), x, up)
    assert torch.equal(alone, d_x)
    assert True not in calls  # the weight gradient is not computed
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            out = sparse_conv.convolve(conv, spikes)
            torch.testing.assert_close(out, conv(spikes), rtol=1e-5, atol=1e-5)
        assert not out.requires_grad


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_strided_and_expanded_tensors(layout: torch.memory_format, take: Callable[..., list[bool]]) -> None:
    """The kernel needs contiguous memory, so strided and expanded tensors must be copied."""
    take("sparse", "sparse")
    conv = make(16, 16)
    wide = fire(0.2, 2, 32, 4, 5).contiguous(memory_format=layout)
    check(conv, wide[:, ::2], noise(2, 32, 4, 5).contiguous(memory_format=layout)[:, ::2])
    check(conv, wide[:, :16].transpose(2, 3), noise(2, 16, 4, 5).transpose(2, 3))
    out = sparse_conv.convolve(conv, wide[:, ::2])
    assert torch.equal(out, sparse_conv.convolve(conv, wide[:, ::2].clone(memory_format=torch.contiguous_format)))
    (summed,) = torch.autograd.grad(out.sum(), conv.weight, retain_graph=True)
    (ones,) = torch.autograd.grad(out, conv.weight, torch.ones_like(out))
    assert torch.equal(summed, ones)
    everywhere = torch.ones(1).expand(2, 16, 4, 5)
    assert torch.equal(sparse_conv.convolve(conv, everywhere), sparse_conv.convolve(conv, everywhere.clone()))


def test_channels_last_is_kept(take: Callable[..., list[bool]]) -> None:
    take("sparse", "sparse")
    conv = make(16, 32).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = fire(0.2, 2, 16, 4, 5).contiguous(memory_format=torch.channels_last).requires_grad_()
    out = sparse_conv.convolve(conv, x)
    out.backward(noise(2, 32, 4, 5).contiguous(memory_format=torch.channels_last))
    assert all(t.is_contiguous(memory_format=torch.channels_last) for t in (out, x.grad, conv.weight.grad))


def test_default_dtype_is_ignored(take: Callable[..., list[bool]]) -> None:
    take("sparse", "sparse")
    conv, spikes = make(16, 16), fire(0.2, 2, 16, 4, 5)
    torch.set_default_dtype(torch.float64)
    try:
        check(conv, spikes, noise(2, 16, 4, 5).float())
    finally:
        torch.set_default_dtype(torch.float32)


def test_no_second_derivative(take: Callable[..., list[bool]]) -> None:
    take("sparse", "sparse")
    conv, x = make(16, 16), fire(0.2, 1, 16, 4, 4).requires_grad_()
    (grad,) = torch.autograd.grad((sparse_conv.convolve(conv, x) ** 2).sum(), conv.weight, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


def branches(conv: nn.Conv2d, side: nn.Conv2d | None, x: Tensor) -> tuple[Tensor, Tensor]:
    """Both branches computed by torch."""
    return conv(x), x if side is None else side(x)


@pytest.mark.parametrize("way", ["sparse", "dense"])
@pytest.mark.parametrize(("shortcut", "stride"), [("identity", 1), ("1x1", 1), ("1x1", 2)])
def test_fork_matches_two_branches(way: str, shortcut: str, stride: int, take: Callable[..., list[bool]]) -> None:
    """Both outputs, and the gradients of input and weights when both outputs have a gradient."""
    take(way, way)
    conv = make(16, 32, stride=stride)
    side = None if shortcut == "identity" else nn.Conv2d(16, 32, 1, stride, bias=False)
    spikes = fire(0.2, 3, 16, 5, 7).contiguous(memory_format=torch.channels_last)
    x = spikes.clone().requires_grad_()
    outs = branches(conv, side, x)
    ups = [noise(*out.shape, seed=5 + i) for i, out in enumerate(outs)]
    wanted = [x, conv.weight, *([] if side is None else [side.weight])]
    expected = torch.autograd.grad(outs, wanted, ups)
    forked = sparse_conv.fork(conv, side, x)
    for value, right in zip((*forked, *torch.autograd.grad(forked, wanted, ups)), (*outs, *expected), strict=True):
        torch.testing.assert_close(value, right, rtol=1e-5, atol=1e-4)
    assert torch.equal(x, spikes)


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("shortcut", ["identity", "1x1"])
def test_fork_with_a_gradient_of_one_output(which: int, shortcut: str, take: Callable[..., list[bool]]) -> None:
    """The other output has no gradient, so nothing is added. Gradients that are not required are not computed."""
    calls = take("sparse", "sparse")
    conv, side = make(16, 16), None if shortcut == "identity" else nn.Conv2d(16, 16, 1, bias=False)
    spikes = fire(0.2, 2, 16, 4, 4)
    x = spikes.clone().requires_grad_()
    up = noise(2, 16, 4, 4)
    (expected,) = torch.autograd.grad(branches(conv, side, x)[which], x, up)
    (got,) = torch.autograd.grad(sparse_conv.fork(conv, side, x)[which], x, up)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-4)
    calls.clear()
    conv.requires_grad_(False)
    (got,) = torch.autograd.grad(sum(sparse_conv.fork(conv, side, x)), x, up)
    assert calls == [False]
    conv.requires_grad_(True)
    (d_weight,) = torch.autograd.grad(sum(sparse_conv.fork(conv, side, spikes)), conv.weight, up)
    (right,) = torch.autograd.grad(conv(spikes), conv.weight, up)
    torch.testing.assert_close(d_weight, right, rtol=1e-5, atol=1e-4)


def test_fork_does_not_modify_incoming_gradients(take: Callable[..., list[bool]]) -> None:
    """The in-place sum must not write to a gradient that was passed in."""
    take("sparse", "sparse")
    conv, x = make(16, 16), fire(0.2, 2, 16, 4, 4).requires_grad_()
    ups = noise(2, 16, 4, 4, seed=1), noise(2, 16, 4, 4, seed=2)
    kept = [up.clone() for up in ups]
    torch.autograd.grad(sparse_conv.fork(conv, None, x), x, ups)
    assert all(torch.equal(up, was) for up, was in zip(ups, kept, strict=True))


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("outputs", "inputs"), [(16, 16), (48, 16), (16, 32), (80, 112)])
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_patches_are_copies_of_taps(stride: int, outputs: int, inputs: int, layout: torch.memory_format) -> None:
    weight = torch.randn(outputs, inputs, 3, 3, generator=torch.Generator().manual_seed(0))
    patches = torch.empty(inputs, 3, 3, outputs)
    sparse_conv._copy_patches(patches, weight.contiguous(memory_format=layout), stride, back=False)
    for row in range(3):
        for column, tap in enumerate(sparse_conv.KERNEL_COLUMNS[stride]):
            assert torch.equal(patches[:, row, column], weight[:, :, 2 - row, tap].t())
    returned = torch.empty_like(weight, memory_format=torch.channels_last)
    sparse_conv._copy_patches(patches, returned, stride, back=True)
    assert torch.equal(returned, weight)
