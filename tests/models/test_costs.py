"""The paper's model sizes and operation counts, recomputed from the layers of built models."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from asfedbridge.analysis.operations import count_layers
from asfedbridge.core.task import ClientInfo, Kind, Task
from asfedbridge.models.registry import MODELS
from asfedbridge.models.zoo import build_backbone, build_bridge, outline_backbone

Infos = Callable[..., ClientInfo]


def mflops(model: nn.Module, channels: int = 3, size: int = 32) -> dict[str, float]:
    """MFLOPs of each convolution and linear layer for one image, two per multiply-add."""
    count: dict[str, float] = {}

    def watch(name: str) -> Callable[..., None]:
        def hook(layer: nn.Module, inputs: object, output: torch.Tensor) -> None:
            if isinstance(layer, nn.Conv2d):
                height, width = layer.kernel_size
                each = layer.in_channels // layer.groups * height * width
            else:
                assert isinstance(layer, nn.Linear)
                each = layer.in_features
            count[name] = 2e-6 * output.numel() * each

        return hook

    for name, layer in model.named_modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.register_forward_hook(watch(name))
    with torch.no_grad():
        model.eval()(torch.zeros(1, channels, size, size))
    return count


@pytest.mark.parametrize("kind", ["ann", "snn"])
@pytest.mark.parametrize(
    ("width", "scalars", "megabytes"), [(1.0, 11_325_860, 43.205), (0.5, 2_886_532, 11.011), (0.25, 758_900, 2.895)]
)
def test_size_of_resnet18(cifar100: Task, info: Infos, kind: str, width: float, scalars: int, megabytes: float) -> None:
    model = build_backbone(cifar100, info(kind, width=width))
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == scalars
    assert 4 * scalars / 2**20 == pytest.approx(megabytes, abs=5e-4)


@pytest.mark.parametrize(("width", "total"), [(1.0, 1111.149), (0.5, 278.78), (0.25, 70.21)])
def test_operations_of_resnet18(cifar100: Task, info: Infos, width: float, total: float) -> None:
    count = mflops(build_backbone(cifar100, info(width=width)))
    assert sum(count.values()) == pytest.approx(total, abs=0.005 if width < 1 else 0.0005)


def test_operations_that_stay_dense(cifar100: Task, info: Infos) -> None:
    """Stem, projection and classifier: the 3.85 MFLOPs in the paper's row of the binary network."""
    count = mflops(build_backbone(cifar100, info(width=1.0)))
    assert count["stem"] == pytest.approx(3.539, abs=5e-4)
    assert count["stem"] + count["projector"] + count["classifier"] == pytest.approx(3.852, abs=5e-4)


@pytest.mark.parametrize(("kind", "bits", "more"), [("bnn", 1, 0), ("qnn", 2, 38), ("qnn", 8, 38)])
def test_low_bit_shares_of_resnet18(cifar100: Task, kind: Kind, bits: int, more: int) -> None:
    """3.85 MFLOPs, 553.65 M low-bit multiply-accumulates, 43.20 MB. A QNN also has two step sizes per convolution."""
    model = build_backbone(cifar100, ClientInfo(0, kind, "resnet18", bits=bits))
    count = mflops(model)
    low_bit = {n for n, m in model.named_modules() if isinstance(m, nn.Conv2d) and type(m) is not nn.Conv2d}
    assert len(low_bit) == 19
    assert sum(count[name] for name in low_bit) / 2 == pytest.approx(553.648, abs=5e-4)
    assert sum(count[name] for name in count.keys() - low_bit) == pytest.approx(3.852, abs=5e-4)
    # Computed by hand: 3x3 convolutions of four stages and the 1x1 shortcuts, at sizes 32, 16, 8 and 4.
    macs = sum((9 * (c // 2 * c + 3 * c * c) + c // 2 * c) * s * s for c, s in ((128, 16), (256, 8), (512, 4)))
    assert sum(count[name] for name in low_bit) / 2 == pytest.approx((macs + 4 * 9 * 64 * 64 * 32 * 32) / 1e6)
    scalars = sum(p.numel() for p in model.parameters())
    assert scalars == 11_325_860 + more
    assert f"{4 * scalars / 2**20:.2f}" == "43.20" if kind == "bnn" else "43.21"


def test_bridge_matches_the_paper(cifar100: Task) -> None:
    bridge = build_bridge(cifar100, 1.0, "batch")
    assert round(4 * sum(p.numel() for p in bridge.body.parameters()) / 2**20, 2) == 3.93
    assert sum(mflops(bridge).values()) == pytest.approx(98.09, rel=0.01)


# At 224 pixels


def plain_sum(sizes: list[int], blocks: int, classes: int, feature_dim: int) -> tuple[int, int]:
    """Multiply-adds at 224x224 and trainable scalars, computed by hand: a 7x7 stem to 112 pixels, a pool to 56,
    stages at 56, 28, 14 and 7."""
    adds = 7 * 7 * 3 * sizes[0] * 112**2
    scalars = 7 * 7 * 3 * sizes[0] + 2 * sizes[0]
    inputs = sizes[0]
    for size, pixels in zip(sizes, (56, 28, 14, 7), strict=True):
        for _ in range(blocks):
            kernels = 9 * inputs * size + 9 * size * size
            norms = 4 * size
            if inputs != size:
                kernels += inputs * size
                norms += 2 * size
            adds += kernels * pixels**2
            scalars += kernels + norms
            inputs = size
    adds += inputs * feature_dim + feature_dim * classes
    return adds, scalars + inputs * feature_dim + feature_dim + feature_dim * classes + classes


@pytest.mark.parametrize("kind", ["ann", "snn"])
@pytest.mark.parametrize("width", [0.25, 1.0])
def test_resnet18_at_224(info: Infos, kind: str, width: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASFEDBRIDGE_NEURON", "torch")  # sparse convolutions do not call hooks
    task = Task(classes=200, channels=3, image_size=224)
    model = build_backbone(task, info(kind, width=width, T=1))
    adds, scalars = plain_sum([round(s * width) for s in (64, 128, 256, 512)], 2, 200, 256)
    assert sum(mflops(model, size=224).values()) == pytest.approx(2e-6 * adds, rel=1e-12)
    assert sum(p.numel() for p in model.parameters()) == scalars
    if width == 1.0:  # He et al. report 1.8 billion multiply-adds, with another classifier
        assert adds == pytest.approx(1.8e9, rel=0.02)


def test_bridge_at_224() -> None:
    bridge = build_bridge(Task(classes=200, channels=3, image_size=224), 1.0, "batch")
    adds, scalars = plain_sum([24, 64, 120, 220], 1, 200, 256)
    assert sum(mflops(bridge, size=224).values()) == pytest.approx(2e-6 * adds, rel=1e-12)
    assert sum(p.numel() for p in bridge.parameters()) == scalars + 24 + 64 + 120 + 220 + 256  # ports


# The layers of every family: kernel size, groups, inputs, outputs, and the size of the output for a 32x32 image.
Layer = tuple[int, int, int, int, int]


def resnet18() -> list[Layer]:
    layers, last = [(3, 1, 3, 64, 32)], 64
    for size, side in ((64, 32), (128, 16), (256, 8), (512, 4)):
        layers += [(3, 1, last, size, side), *[(3, 1, size, size, side)] * 3]
        if size != last:
            layers.append((1, 1, last, size, side))
        last = size
    return layers


def plain(*sizes: tuple[int, int]) -> list[Layer]:
    inputs = [3, *(size for size, _ in sizes)]
    return [(3, 1, i, size, side) for i, (size, side) in zip(inputs, sizes, strict=False)]


def mobilenet() -> list[Layer]:
    layers, last = [(3, 1, 3, 32, 32)], 32
    blocks = [(64, 32), (128, 16), (128, 16), (256, 8), (256, 8), *[(512, 4)] * 6, (1024, 2), (1024, 2)]
    for size, side in blocks:
        layers += [(3, last, last, last, side), (1, 1, last, size, side)]
        last = size
    return layers


LAYERS = {
    **dict.fromkeys(["resnet18", "resnet18-sew", "resnet18-ms"], resnet18()),
    "vgg9": plain((64, 32), (64, 32), (128, 16), (128, 16), (256, 8), (256, 8), (256, 8)),
    "vgg11": plain((64, 32), (128, 16), (256, 8), (256, 8), (512, 4), (512, 4), (512, 2), (512, 2)),
    "mobilenet": mobilenet(),
}


@pytest.mark.parametrize("kind", ["ann", "snn"])
@pytest.mark.parametrize("width", [1.0, 0.5, 0.25])
@pytest.mark.parametrize("name", sorted(LAYERS))
def test_every_family_matches_its_layer_table(cifar100: Task, name: str, width: float, kind: str) -> None:
    scalars, products, pooled = 0, 0, 0
    for kernel, groups, inputs, outputs, side in LAYERS[name]:
        ins, pooled = inputs if inputs == 3 else round(inputs * width), round(outputs * width)
        weights = kernel**2 * pooled if groups > 1 else kernel**2 * ins * pooled
        scalars += weights + 2 * pooled  # and a norm
        products += weights * side**2
    scalars += (pooled + 1) * 256 + (256 + 1) * 100
    products += pooled * 256 + 256 * 100
    model = outline_backbone(cifar100, ClientInfo(0, kind, name, width, 1 if kind == "ann" else 2))  # type: ignore[arg-type]
    assert sum(p.numel() for p in model.parameters()) == scalars
    assert sum(layer.macs for layer in count_layers(model, cifar100).values()) == products


@pytest.mark.parametrize("name", sorted(LAYERS))
def test_count_layers_matches_a_forward_pass(cifar100: Task, name: str) -> None:
    info = ClientInfo(0, "ann", name, 0.25)
    layers = count_layers(outline_backbone(cifar100, info), cifar100)
    counted = {name: 2e-6 * layer.macs for name, layer in layers.items()}
    assert counted == pytest.approx(mflops(build_backbone(cifar100, info)))


def test_layer_table_is_complete() -> None:
    assert set(LAYERS) == {name for name, model in MODELS.items() if model.family}
