"""Selects a path for spiking layers; all paths compute the same function."""

import copy
import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from asfedbridge.core.errors import BadInput
from asfedbridge.core.losses import cross_entropy
from asfedbridge.core.task import ClientInfo, Neuron, Task
from asfedbridge.kernels import dispatch, norm_lif, sparse_conv, spikingjelly
from asfedbridge.kernels.dispatch import VARIABLE
from asfedbridge.models import neuron
from asfedbridge.models.neuron import SURROGATES, Spiking, lif, lif_reference
from asfedbridge.models.zoo import build_backbone

Infos = Callable[..., ClientInfo]
Images = Callable[..., Tensor]
Threads = Callable[[int], None]
SHARPNESS = {"triangle": 1.5, "rectangle": 0.4, "sigmoid": 4.0, "atan": 2.0}
SHAPE = (3, 5, 7, 11)  # 1155 numbers per step: one full tile and part of a second


@pytest.fixture
def force(monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], None]:
    def use(path: str | None) -> None:
        monkeypatch.delenv(VARIABLE, raising=False) if path is None else monkeypatch.setenv(VARIABLE, path)

    return use


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Labels of the implementations called, in order."""
    calls: list[str] = []

    def watch(module: object, name: str, label: str) -> None:
        original = getattr(module, name)

        def counted(*args: object, **options: object) -> object:
            calls.append(label)
            return original(*args, **options)

        monkeypatch.setattr(module, name, counted)

    watch(norm_lif, "lif", "numba lif")
    watch(norm_lif, "norm_lif", "numba norm_lif")
    watch(sparse_conv, "convolve", "numba convolve")
    watch(sparse_conv, "fork", "numba fork")
    watch(spikingjelly, "lif_spikingjelly", "spikingjelly lif")
    watch(neuron._Lif, "apply", "torch lif")
    return calls


def currents(steps: int, *shape: int, layout: str = "contiguous", seed: int = 0) -> Tensor:
    """Random currents [steps, *shape] around the threshold."""
    x = 0.4 + 0.8 * torch.randn(steps * shape[0], *shape[1:], generator=torch.Generator().manual_seed(seed))
    if layout == "channels_last":
        x = x.contiguous(memory_format=torch.channels_last)
    if layout == "strided":
        x = torch.stack([x, -x], -1)[..., 0].transpose(2, 3)
    return x.unflatten(0, (steps, -1))


def check_lif(x: Tensor, constants: Neuron, up: Tensor) -> None:
    """Spikes must be equal; gradients must agree within a few roundings of the largest term."""
    results = []
    for run in (lif, lif_reference):
        leaf = x.clone(memory_format=torch.preserve_format).requires_grad_()
        spikes = run(leaf, constants)
        spikes.backward(up)
        results.append((spikes.detach(), leaf.grad))
    (spikes, grad), (expected, right) = results
    assert torch.equal(spikes, expected)
    assert right.abs().max() > 0
    torch.testing.assert_close(grad, right, rtol=1e-5, atol=1e-5 * right.abs().max().item())


# Converting other decays to SpikingJelly's time constant rounds them: see test_spikingjelly.py.
@pytest.mark.parametrize(
    ("path", "decay"),
    [*itertools.product(["numba", "torch"], [0.5, 0.9, 0.25]), ("spikingjelly", 0.5)],
)
@pytest.mark.parametrize("surrogate", SURROGATES)
@pytest.mark.parametrize("detach", [False, True])
@pytest.mark.parametrize("steps", [1, 2, 4, 8, 16])
def test_every_path_matches_the_reference(
    path: str, surrogate: str, detach: bool, decay: float, steps: int, force: Callable[[str], None], taken: list[str]
) -> None:
    force(path)
    constants = Neuron(decay, 1.0, surrogate, SHARPNESS[surrogate], detach)  # type: ignore[arg-type]
    check_lif(currents(steps, *SHAPE), constants, currents(steps, *SHAPE, seed=1))
    assert taken == [f"{path} lif"]


@pytest.mark.parametrize("path", ["numba", "torch"])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "strided"])
@pytest.mark.parametrize("upstream", ["contiguous", "channels_last", "strided"])
@pytest.mark.parametrize("threshold", [1.0, 0.3, 2.0])
def test_every_layout(
    path: str, layout: str, upstream: str, threshold: float, force: Callable[[str], None], threads: Threads
) -> None:
    """Layouts of input and gradient, thresholds that float32 cannot represent exactly, two threads."""
    force(path)
    threads(2)
    up = currents(3, *SHAPE, layout="contiguous" if upstream == "strided" else upstream, seed=1)
    if upstream == "strided":
        up = torch.stack([up, -up], -1)[..., 0]
    x = currents(3, *(SHAPE if layout != "strided" else (3, 5, 11, 7)), layout=layout)
    assert x.shape == up.shape
    check_lif(x, Neuron(0.9, threshold), up)


@pytest.mark.parametrize("path", ["numba", "torch"])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_output_keeps_the_memory_layout(path: str, layout: str, force: Callable[[str], None]) -> None:
    force(path)
    x = currents(3, *SHAPE, layout=layout).requires_grad_()
    out = lif(x, Neuron())
    out.backward(currents(3, *SHAPE, seed=1))
    kept = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}[layout]
    assert out.flatten(0, 1).is_contiguous(memory_format=kept)
    assert x.grad.flatten(0, 1).is_contiguous(memory_format=kept)


@pytest.mark.parametrize("path", ["numba", "torch"])
def test_flat_and_odd_shapes(path: str, force: Callable[[str], None]) -> None:
    """[T, B] and [T, B, D], strided and expanded: a projector's output has no spatial axes."""
    force(path)
    wide = currents(4, 6, 10)
    for x in (wide, wide[:, :, ::2], wide[..., 0], wide.transpose(1, 2), wide[0].expand(4, 6, 10), wide[:, :1]):
        check_lif(x, Neuron(), torch.randn(x.shape, generator=torch.Generator().manual_seed(1)))
    flat = torch.rand(4, 6)[:, ::2]
    assert torch.equal(lif(flat, Neuron()), lif_reference(flat, Neuron()))
    one = torch.tensor(0.7).expand(4, 2, 3, 1, 1)
    assert torch.equal(lif(one, Neuron()), lif_reference(one, Neuron()))


@pytest.mark.parametrize("path", ["numba", "torch", "spikingjelly"])
def test_membrane_exactly_at_the_threshold(path: str, force: Callable[[str], None]) -> None:
    """Multiples of 1/4 with decay 1/2 are exact in float32, so membranes hit the threshold exactly. With triangle and
    rectangle they also hit the edges of the surrogate exactly."""
    force(path)
    x = torch.randint(-2, 6, (4, 3, 5, 7, 11), generator=torch.Generator().manual_seed(0)) / 4
    assert (x[0] == 1).sum() > 100
    for surrogate, sharpness in {"triangle": 1.0, "rectangle": 0.5}.items():
        check_lif(x, Neuron(surrogate=surrogate, sharpness=sharpness), currents(4, *SHAPE, seed=1))  # type: ignore[arg-type]
    below = torch.tensor([[1.0, 1.0 - 2**-24, 1.0 + 2**-23]])
    assert lif(below, Neuron()).tolist() == [[1.0, 0.0, 1.0]]


def test_threshold_that_float32_rounds(force: Callable[[str], None]) -> None:
    """Float32 cannot represent 0.3. An input equal to the nearest float must spike on all paths or on none."""
    x = torch.tensor([[0.3]])
    x = torch.stack([x, x.nextafter(torch.tensor(-1.0)), x.nextafter(torch.tensor(1.0))], -1)
    for path in ("numba", "torch"):
        force(path)
        assert torch.equal(lif(x, Neuron(threshold=0.3)), lif_reference(x, Neuron(threshold=0.3)))


@pytest.mark.parametrize("path", ["numba", "torch"])
@pytest.mark.parametrize("decay", [0.9, 0.3])
def test_each_operation_is_rounded_on_its_own(path: str, decay: float, force: Callable[[str], None]) -> None:
    """The second current brings the membrane to the threshold, up to rounding. A fused multiply-add rounds once instead
    of twice and would change which neurons spike."""
    force(path)
    first = 0.999 * torch.rand(2000, generator=torch.Generator().manual_seed(0))
    x = torch.stack([first, 1 - decay * first]).unsqueeze(1)
    spikes = lif_reference(x, Neuron(decay))
    exact = x[1].double() + torch.tensor(decay).double() * x[0].double()
    assert (spikes[1] != (exact.float() >= 1)).sum() > 20  # spikes that rounding once would change
    assert torch.equal(lif(x, Neuron(decay)), spikes)


@pytest.mark.parametrize("path", ["numba", "torch"])
@pytest.mark.parametrize("steps", [1, 3])
def test_no_second_derivative(path: str, steps: int, force: Callable[[str], None]) -> None:
    force(path)
    x = currents(steps, 2, 3).requires_grad_()
    (grad,) = torch.autograd.grad((lif(x, Neuron()) ** 2).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


# Selection


def test_default_path(force: Callable[[str | None], None]) -> None:
    force(None)
    x = torch.zeros(2, 2)
    assert dispatch.path_of(x) == "numba"
    for dtype in (torch.float64, torch.float16, torch.bfloat16):
        assert dispatch.path_of(x.to(dtype)) == "torch"
    assert dispatch.path_of(x.to("meta")) == "torch"
    with torch.autocast("cpu", torch.bfloat16):
        assert dispatch.path_of(x) == "torch"
    assert dispatch.path_of(x) == "numba"
    assert dispatch.available_paths("cpu") == ["numba", "torch"]
    assert dispatch.available_paths("mps") == ["torch"]


@pytest.mark.parametrize("path", ["numba", "torch", "spikingjelly"])
def test_environment_variable_forces_a_path(path: str, force: Callable[[str], None], taken: list[str]) -> None:
    force(path)
    act, norm, conv = Spiking(2, Neuron()), nn.BatchNorm2d(16), nn.Conv2d(16, 16, 3, padding=1, bias=False)
    x = torch.randn(4, 16, 3, 3, generator=torch.Generator().manual_seed(0))
    spikes = act.after(norm, x, x)
    act.read(nn.Identity(), norm, x)
    act.convolve(conv, spikes)
    act.fork(conv, nn.Sequential(), spikes)
    act(x)
    assert dispatch.path_of(x) == path
    fast = ["numba norm_lif", "numba norm_lif", "numba convolve", "numba fork", "numba lif"]
    assert taken == (fast if path == "numba" else [f"{path} lif"] * 3)


def test_forced_numba_falls_back_to_torch_for_other_dtypes(force: Callable[[str], None], taken: list[str]) -> None:
    force("numba")
    act, norm = Spiking(2, Neuron()), nn.BatchNorm2d(3).double()
    out = act.after(norm, torch.randn(4, 3, 3, 3, dtype=torch.float64))
    assert out.dtype == torch.float64
    assert taken == ["torch lif"]


@pytest.mark.parametrize("path", ["numba", "spikingjelly"])
def test_autocast_uses_torch(path: str, force: Callable[[str], None], taken: list[str]) -> None:
    force(path)
    act, conv = Spiking(2, Neuron()), nn.Conv2d(16, 16, 3, padding=1, bias=False)
    x = torch.randn(4, 16, 3, 3, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", torch.bfloat16):
        out = act.convolve(conv, act.after(nn.BatchNorm2d(16), x))
    assert out.dtype == torch.bfloat16
    assert taken == ["torch lif"]


def test_unsupported_layers_use_torch(force: Callable[[str], None], taken: list[str]) -> None:
    """Their neurons still use the numba kernel."""
    force("numba")
    act, x = Spiking(2, Neuron()), torch.randn(4, 6, 3, 3)
    act.after(nn.GroupNorm(2, 6), x)
    act.read(nn.Identity(), nn.Identity(), x)
    narrow = nn.Conv2d(6, 6, 3, padding=1, bias=False)
    act.convolve(narrow, act(x))
    act.fork(narrow, nn.Sequential(), x)
    act.convolve(nn.Conv2d(16, 16, 3, padding=1, bias=False), torch.zeros(0, 16, 3, 3))
    assert taken == ["numba lif"] * 3


@pytest.mark.parametrize("name", ["numbe", "cuda", "Torch"])
def test_unknown_path_is_rejected_in_one_line(name: str, force: Callable[[str], None]) -> None:
    force(name)
    with pytest.raises(BadInput) as error:
        lif(torch.zeros(2, 2), Neuron())
    message = str(error.value)
    assert "\n" not in message
    assert all(part in message for part in (VARIABLE, name, *dispatch.PATHS))


def test_empty_environment_variable_forces_nothing(force: Callable[[str], None]) -> None:
    force("")
    assert dispatch.forced_path() is None


@pytest.mark.parametrize("name", ["numba", "spikingjelly"])
def test_forced_path_is_not_installed(name: str, force: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "installed", lambda package: False)
    force(name)
    with pytest.raises(BadInput, match=f"{VARIABLE}={name}.*not installed.*pip install {name}") as error:
        lif(torch.zeros(2, 2), Neuron())
    assert "\n" not in str(error.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="with CUDA, two paths are in use")
@pytest.mark.parametrize("path", [None, "numba", "torch"])
def test_describe_marks_the_path_in_use(path: str | None, force: Callable[[str | None], None]) -> None:
    force(path)
    described = dispatch.describe()
    assert list(described) == list(dispatch.PATHS)
    assert [name for name, text in described.items() if text.endswith("(in use)")] == [path or "numba"]
    states = ("(in use)", "(available)", "(not installed)", "(no CUDA device here)")
    assert all(text.endswith(states) for text in described.values())


def test_describe_marks_missing_packages(force: Callable[[str | None], None], monkeypatch: pytest.MonkeyPatch) -> None:
    force(None)
    monkeypatch.setattr(dispatch, "installed", lambda package: False)
    described = dispatch.describe()
    assert described["numba"].endswith("(not installed)")
    assert described["torch"].endswith("(in use)")


# Whole networks


@pytest.fixture
def snn(task: Task, info: Infos) -> Callable[..., nn.Module]:
    """16 to 128 channels: every kernel is used."""

    def make(seed: int = 0, kind: str = "snn") -> nn.Module:
        return build_backbone(replace(task, image_size=16, seed=seed), info(kind, width=0.25, T=2))

    return make


def blocks_of(model: nn.Module, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    seen: list[Tensor] = []
    hooks = [block.register_forward_hook(lambda *args: seen.append(args[2])) for s in model.stages for block in s]
    out = model(x)
    for hook in hooks:
        hook.remove()
    return out.logits, [*seen, out.feature_TBD]


def test_network_trains_without_numba(
    snn: Callable[..., nn.Module],
    images: Images,
    taken: list[str],
    force: Callable[[str | None], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    force(None)
    monkeypatch.setattr(dispatch, "installed", lambda package: False)
    model = snn()
    cross_entropy(model(images(2, size=16)).logits, torch.tensor([0, 1])).backward()
    assert set(taken) == {"torch lif"}
    assert all(p.grad.abs().max() > 0 for p in model.stages.parameters())


@pytest.mark.parametrize("training", [True, False])
def test_network_matches_torch_in_double_precision(
    snn: Callable[..., nn.Module], images: Images, training: bool, force: Callable[[str], None], taken: list[str]
) -> None:
    """Uses the first seed for which both precisions produce the same spikes: one membrane within rounding of its
    threshold would change everything after it."""
    force("numba")
    for seed in range(10):
        narrow = snn(seed)
        x, y = images(2, size=16, seed=seed), torch.tensor([0, 3])
        if not training:
            with torch.no_grad():
                for layer in narrow.modules():
                    if isinstance(layer, nn.BatchNorm2d):
                        layer.momentum = 1.0
                narrow(x)  # sets running statistics with which neurons spike
            narrow.eval()
        wide = copy.deepcopy(narrow).double()
        taken.clear()
        logits, spikes = blocks_of(narrow, x)
        fast = list(taken)
        expected, right = blocks_of(wide, x.double())
        if all(torch.equal(a.double(), b) for a, b in zip(spikes, right, strict=True)):
            break
    else:
        raise AssertionError("the spikes differ for every seed")
    # one activation in the stem, two in each of eight blocks; two convolutions per block, the first one in a fork
    assert fast.count("numba norm_lif") == 17
    assert fast.count("numba convolve") == fast.count("numba fork") == 8
    assert fast.count("numba lif") == 1
    assert "torch lif" not in fast
    assert set(taken[len(fast) :]) == {"torch lif"}
    assert sum(s.sum() for s in spikes) > 100
    assert any(sparse_conv.firing_rate(s) < sparse_conv.DENSE_FORWARD for s in spikes[:7])  # some are sparse
    torch.testing.assert_close(logits.double(), expected, rtol=1e-5, atol=1e-5)
    cross_entropy(logits, y).backward()
    cross_entropy(expected, y).backward()
    assert list(narrow.state_dict()) == list(wide.state_dict())
    for (name, p), q in zip(narrow.named_parameters(), wide.parameters(), strict=True):
        assert q.grad.abs().max() > 0, name
        error = (p.grad.double() - q.grad).norm() / q.grad.norm()
        assert error < 1e-3, name
    for (name, b), c in zip(narrow.named_buffers(), wide.buffers(), strict=True):
        torch.testing.assert_close(b.double(), c.double(), rtol=1e-4, atol=1e-5, msg=name)


def test_network_is_deterministic(snn: Callable[..., nn.Module], images: Images, force: Callable[[str], None]) -> None:
    force("numba")
    results = []
    for _ in range(2):
        model = snn()
        loss = cross_entropy(model(images(2, size=16)).logits, torch.tensor([0, 1]))
        loss.backward()
        results.append([loss.detach(), *(p.grad for p in model.parameters()), *model.buffers()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("path", ["torch", "numba"])
def test_ann_is_independent_of_the_path(
    snn: Callable[..., nn.Module], images: Images, path: str, force: Callable[[str | None], None], taken: list[str]
) -> None:
    results = []
    for name in (None, path):
        force(name)
        model = snn(kind="ann")
        logits = model(images(2, size=16)).logits
        cross_entropy(logits, torch.tensor([0, 1])).backward()
        results.append([logits.detach(), *(p.grad for p in model.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    assert taken == []
