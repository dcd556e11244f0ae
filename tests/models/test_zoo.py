"""Properties of every registered family, as ANN and as SNN."""

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asfedbridge.core.errors import BadInput
from asfedbridge.core.losses import cross_entropy
from asfedbridge.core.task import ClientInfo, Kind, Task
from asfedbridge.kernels import norm_lif, sparse_conv
from asfedbridge.kernels.dispatch import VARIABLE
from asfedbridge.models.mobilenet import Depthwise
from asfedbridge.models.neuron import lif_reference
from asfedbridge.models.registry import MODELS
from asfedbridge.models.zoo import build_backbone, check_backbone, outline_backbone

Images = Callable[..., Tensor]
KINDS: list[Kind] = ["ann", "snn"]
NAMES = sorted(name for name, model in MODELS.items() if model.family)
RESNETS = [name for name in NAMES if name.startswith("resnet18")]
# values between the stages of an SNN
BETWEEN = dict.fromkeys(NAMES, "binary") | {"resnet18-sew": "whole", "resnet18-ms": "real"}


def client(name: str, kind: Kind = "snn", width: float = 0.125, T: int = 2) -> ClientInfo:
    return ClientInfo(0, kind, name, width, T if kind == "snn" else 1)


def test_architectures_of_the_paper_are_registered() -> None:
    assert {"resnet18", "vgg9", "vgg11", "mobilenet", "resnet18-sew", "resnet18-ms"} <= set(NAMES)


def test_models_start_equal_and_share_no_memory() -> None:
    task = Task(classes=3, channels=1, image_size=8, feature_dim=16, seed=7)
    models = [build_backbone(task, client("resnet18")) for _ in range(4)]
    for other in models[1:]:
        assert all(torch.equal(a, b) for a, b in zip(models[0].parameters(), other.parameters(), strict=True))
    addresses = {p.data_ptr() for model in models for p in model.parameters()}
    assert len(addresses) == sum(len(list(model.parameters())) for model in models)
    for model in models:  # modifying them does not change the next one that is built
        with torch.no_grad():
            next(model.parameters()).fill_(9)
    assert not torch.equal(next(build_backbone(task, client("resnet18")).parameters()), next(models[0].parameters()))


def test_start_by_kind() -> None:
    equal = Task(classes=3, channels=1, image_size=8, feature_dim=16)
    own = replace(equal, start="by-kind")
    kinds: list[Kind] = ["ann", "snn", "bnn", "qnn"]

    def stem(task: Task, kind: Kind, id: int = 0) -> bytes:
        bits = {"bnn": 1, "qnn": 4}.get(kind, 32)
        info = ClientInfo(id, kind, "resnet18", 0.125, 2 if kind == "snn" else 1, bits=bits)
        return build_backbone(task, info).stem.weight.detach().contiguous().numpy().tobytes()

    assert len({stem(equal, kind) for kind in kinds}) == 1
    assert len({stem(own, kind) for kind in kinds}) == 4
    assert all(stem(own, kind, id=5) == stem(own, kind) for kind in kinds)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_small_images_of_any_size(task: Task, images: Images, name: str, kind: Kind) -> None:
    """Also odd sizes, and a batch of one whose last map is one pixel."""
    model = build_backbone(task, client(name, kind))
    for size, count in ((8, 1), (9, 2), (34, 1), (64, 1)):
        out = model(images(count, size=size))
        assert out.logits_TBC.shape == (model.act.steps, count, 4)
        assert out.feature_TBD.shape == (model.act.steps, count, 16)
        assert torch.isfinite(out.logits_TBC).all()
    cross_entropy(model(images(1, size=8)).logits, torch.tensor([0])).backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("name", NAMES)
def test_large_images(task: Task, images: Images, name: str) -> None:
    with torch.no_grad():
        out = build_backbone(task, client(name, "ann", 0.05)).eval()(images(1, size=224))
    assert torch.isfinite(out.logits).all()


@pytest.mark.parametrize("name", NAMES)
def test_values_between_the_stages_of_an_snn(task: Task, images: Images, name: str) -> None:
    model = build_backbone(task, client(name, width=0.25, T=3))
    seen: list[Tensor] = []
    for stage in model.stages:
        stage.register_forward_hook(lambda *args: seen.append(args[2]))
    out = model(images(16, size=16))
    assert set(out.feature_TBD.unique().tolist()) == {0.0, 1.0}
    torch.testing.assert_close(out.logits_TBC, model.classifier(out.feature_TBD))  # no neuron after the classifier
    for x in seen[:2]:
        if BETWEEN[name] == "binary":
            assert set(x.unique().tolist()) == {0.0, 1.0}
        elif BETWEEN[name] == "whole":
            assert torch.equal(x, x.round())
            assert x.min() == 0
            assert x.max() >= 2
        else:
            assert x.min() < 0
            assert len(x.unique()) > 100
    if BETWEEN[name] != "whole":
        assert set(seen[-1].unique().tolist()) == {0.0, 1.0}  # the input of the pooling


@pytest.mark.parametrize("name", NAMES)
def test_new_snn_spikes_and_all_parameters_have_gradients(task: Task, images: Images, name: str) -> None:
    model = build_backbone(replace(task, feature_dim=256), client(name, width=0.25, T=4))
    out = model(images(16, size=16))
    assert 0.001 < out.feature.mean().item() < 0.5
    cross_entropy(out.logits, torch.arange(16) % 4).backward()
    assert not [n for n, p in model.named_parameters() if not p.grad.abs().max() > 0]


@pytest.fixture
def batch(images: Images) -> tuple[Tensor, Tensor]:
    """Four classes, each a colour plus noise."""
    y = torch.arange(32) % 4
    colours = torch.tensor([[1.0, 1.0, 1.0], [1.0, -1.0, -1.0], [-1.0, 1.0, -1.0], [-1.0, -1.0, 1.0]])
    return colours[y].view(32, 3, 1, 1) + 0.5 * images(32, size=16), y


@pytest.mark.parametrize(("name", "kind"), [(n, k) for n in NAMES for k in KINDS if (n, k) != ("mobilenet", "snn")])
def test_one_step_lowers_the_loss(task: Task, batch: tuple[Tensor, Tensor], name: str, kind: Kind) -> None:
    """At the best of several learning rates. Spikes of an SNN are discontinuous, and in MobileNet, which is deep and
    has no shortcuts, batch norm makes gradients of the first layers a thousand times larger than those of the last."""
    x, y = batch
    model = build_backbone(replace(task, feature_dim=256), client(name, kind, 0.25, T=4))
    loss = cross_entropy(model(x).logits, y)
    loss.backward()
    gains = []
    with torch.no_grad():
        for rate in (1e-4, 0.02) if kind == "ann" else (0.1, 0.3, 1.0):
            after = copy.deepcopy(model)
            for p, q in zip(after.parameters(), model.parameters(), strict=True):
                p.sub_(rate * q.grad)
            gains.append((loss - cross_entropy(after(x).logits, y)).item())
    assert max(gains) > 0.005, gains


@pytest.mark.parametrize(
    ("name", "T", "steps", "share"), [("vgg9", 2, 20, 0.9), ("vgg11", 2, 20, 0.9), ("mobilenet", 4, 36, 0.5)]
)
def test_an_snn_without_shortcuts_learns(
    task: Task, batch: tuple[Tensor, Tensor], name: str, T: int, steps: int, share: float
) -> None:
    """A spiking MobileNet makes no progress in the first twenty steps."""
    x, y = batch
    model = build_backbone(replace(task, feature_dim=256), client(name, width=0.25, T=T))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    losses = []
    for _ in range(steps):
        loss = cross_entropy(model(x).logits, y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < share * losses[0]


@pytest.mark.parametrize("name", NAMES)
def test_ann_and_snn_have_the_same_tensors(task: Task, images: Images, name: str) -> None:
    """Names, shapes and initial values. A state of one loads into the other."""
    ann, snn = (build_backbone(task, client(name, kind)) for kind in KINDS)
    assert list(ann.state_dict()) == list(snn.state_dict())
    for key, tensor in ann.state_dict().items():
        assert torch.equal(tensor, snn.state_dict()[key]), key
    other = build_backbone(replace(task, seed=1), client(name))
    assert not torch.equal(other.stem.weight, ann.stem.weight)
    other.load_state_dict(ann.state_dict(), strict=True)
    assert torch.equal(other(images()).logits_TBC, snn(images()).logits_TBC)
    ann.load_state_dict(other.state_dict(), strict=True)


@pytest.mark.parametrize("kind", KINDS)
def test_variants_of_resnet18_exchange_their_state(task: Task, images: Images, kind: Kind) -> None:
    """With the same state they compute three different functions."""
    models = [build_backbone(task, client(name, kind, 0.25)) for name in RESNETS]
    first = models[0].state_dict()
    for model in models:
        model.load_state_dict(first, strict=True)
    logits = [model(images(8, size=16)).logits_TBC for model in models]
    assert len(logits) == 3
    assert not any(torch.allclose(a, b) for a, b in ((logits[0], logits[1]), (logits[1], logits[2])))
    assert not torch.allclose(logits[0], logits[2])


@pytest.mark.parametrize("name", NAMES)
def test_width_scales_every_layer(name: str, cifar100: Task) -> None:
    """All channel counts except those of the image, the feature and the classes."""
    full, half = (outline_backbone(cifar100, client(name, width=width)) for width in (1.0, 0.5))
    fixed = {1, 3, cifar100.classes, cifar100.feature_dim}  # of depthwise kernels; of kernels and images
    for (key, one), two in zip(full.named_parameters(), half.parameters(), strict=True):
        for place, (wide, narrow) in enumerate(zip(one.shape, two.shape, strict=True)):
            kept = wide in fixed and (key.startswith(("projector", "classifier")) or wide <= 3)
            kept = kept and not (key == "projector.weight" and place == 1)
            assert narrow == (wide if kept else wide // 2), key
    assert full.stem.weight.shape[0] == 2 * half.stem.weight.shape[0]
    assert full.pooled == 2 * half.pooled


# Blocks against their formulas in plain operations


def spikes(x: Tensor, steps: int, task: Task) -> Tensor:
    return lif_reference(x.unflatten(0, (steps, -1)), task.neuron).flatten(0, 1)


def plain_block(name: str, block: nn.Module, x: Tensor, act: Callable[[Tensor], Tensor]) -> Tensor:
    def straight(x: Tensor) -> Tensor:
        return block.norm2(block.conv2(act(block.norm1(block.conv1(x)))))

    if name == "resnet18":
        return act(straight(x) + block.shortcut(x))
    if name == "resnet18-sew":
        return act(straight(x)) + (act(block.shortcut(x)) if len(block.shortcut) else x)
    return straight(act(x)) + block.shortcut(x)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", RESNETS)
def test_blocks_match_their_formulas(task: Task, images: Images, name: str, kind: Kind) -> None:
    model = build_backbone(task, client(name, kind, 0.25, T=3)).double()
    other = copy.deepcopy(model)
    steps = model.act.steps
    act: Callable[[Tensor], Tensor] = (lambda x: spikes(x, steps, task)) if kind == "snn" else torch.relu
    x = images(4, size=16).double()
    h = torch.cat([other.norm(other.stem(x))] * steps)
    h = h if name == "resnet18-ms" else act(h)
    for stage in other.stages:
        for block in list(stage)[:2]:
            h = plain_block(name, block, h, act)
    h = act(h) if name == "resnet18-ms" else h
    feature = act(other.projector(h.mean((2, 3))))
    torch.testing.assert_close(model(x).feature_TBD, feature.unflatten(0, (steps, -1)))
    assert feature.max() > 0


@pytest.mark.parametrize("size", [(1, 1), (2, 2), (1, 4), (2, 5), (3, 3), (4, 4)])
@pytest.mark.parametrize("stride", [1, 2])
def test_depthwise_convolution_of_a_small_map(size: tuple[int, int], stride: int) -> None:
    """Padding before the convolution gives the same values and gradients."""
    layer = Depthwise(6, stride)
    x = torch.randn(3, 6, *size, generator=torch.Generator().manual_seed(0)).requires_grad_()
    plain = F.conv2d(x, layer.weight, stride=stride, padding=1, groups=6)
    out = layer(x)
    torch.testing.assert_close(out, plain)
    up = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    grads = [torch.autograd.grad(y, (x, layer.weight), up) for y in (out, plain)]
    for ours, right in zip(*grads, strict=True):
        torch.testing.assert_close(ours, right)


# Paths


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the kernels called. Checks that inputs of sparse convolutions are binary."""
    seen: list[str] = []

    def watch(module: object, name: str, place: int | None) -> None:
        original = getattr(module, name)

        def counted(*args: object) -> object:
            seen.append(name)
            if place is not None:
                x = args[place]
                assert isinstance(x, Tensor)
                assert ((x == 0) | (x == 1)).all()
            return original(*args)

        monkeypatch.setattr(module, name, counted)

    watch(sparse_conv, "convolve", 1)
    watch(sparse_conv, "fork", 2)
    watch(norm_lif, "norm_lif", None)
    watch(norm_lif, "lif", None)
    return seen


# calls of the sparse 3x3 convolution, of fused norm + LIF, of LIF alone
KERNELS = {
    "mobilenet": (0, 14, 1),  # the stem and thirteen blocks
    "resnet18": (16, 17, 1),
    "resnet18-ms": (16, 8, 10),  # neurons before each first convolution and before the pooling
    "resnet18-sew": (8, 17, 4),  # torch convolves sums of spikes; three shortcuts
    "vgg11": (7, 8, 1),
    "vgg9": (6, 7, 1),
}


@pytest.mark.parametrize("name", NAMES)
def test_numba_matches_torch(
    task: Task, images: Images, name: str, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uses the first seed for which both paths produce the same spikes: one membrane within rounding of its threshold
    would change everything after it."""
    y = torch.tensor([0, 3])
    for seed in range(10):
        results = []
        for path in ("numba", "torch"):
            monkeypatch.setenv(VARIABLE, path)
            calls.clear()
            model = build_backbone(replace(task, seed=seed), client(name, width=0.5))
            seen: list[Tensor] = []
            for stage in model.stages:
                stage.register_forward_hook(lambda *args, seen=seen: seen.append(args[2]))
            out = model(images(2, size=16, seed=seed))
            cross_entropy(out.logits, y).backward()
            results.append((model, [*seen, out.feature_TBD], out.logits, list(calls)))
        (fast, spikes_fast, logits_fast, used), (plain, spikes_plain, logits_plain, unused) = results
        if all(torch.allclose(a, b, atol=1e-4) for a, b in zip(spikes_fast, spikes_plain, strict=True)):
            break
    else:
        raise AssertionError("the spikes differ for every seed")
    assert (used.count("convolve") + used.count("fork"), used.count("norm_lif"), used.count("lif")) == KERNELS[name]
    assert unused == []
    if BETWEEN[name] == "binary":
        assert all(torch.equal(a, b) for a, b in zip(spikes_fast, spikes_plain, strict=True))
    torch.testing.assert_close(logits_fast, logits_plain, rtol=1e-4, atol=1e-5)
    largest = max(q.grad.norm() for q in plain.parameters())  # the gradient of a bias before a norm is rounding noise
    for (key, p), q in zip(fast.named_parameters(), plain.parameters(), strict=True):
        assert q.grad.abs().max() > 0, key
        assert (p.grad - q.grad).norm() < 1e-3 * q.grad.norm() + 1e-4 * largest, key
    for (key, b), c in zip(fast.named_buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(b, c, rtol=1e-4, atol=1e-5, msg=key)


# Rejected settings


@pytest.mark.parametrize("name", NAMES)
def test_identity_projector(task: Task, name: str) -> None:
    channels = outline_backbone(task, client(name, width=0.5)).pooled
    task = replace(task, projector="identity", feature_dim=channels)
    check_backbone(task, client(name, "ann", 0.5))
    if name != "resnet18-sew":
        check_backbone(task, client(name, width=0.5))
        return
    with pytest.raises(BadInput, match=r"resnet18-sew pools sums of spikes.*projector=linear") as error:
        check_backbone(task, client(name, width=0.5))
    assert "\n" not in str(error.value)
