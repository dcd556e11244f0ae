from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from asfedbridge.core.errors import BadInput
from asfedbridge.core.losses import cross_entropy
from asfedbridge.core.task import ClientInfo, Kind, Task
from asfedbridge.models.zoo import build_backbone, check_backbone, outline_backbone

Infos = Callable[..., ClientInfo]
Images = Callable[..., Tensor]
KINDS: list[Kind] = ["ann", "snn"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [8, 16, 28, 32, 64])
@pytest.mark.parametrize("channels", [1, 2, 3, 5])
def test_small_images_of_any_size(
    task: Task, info: Infos, images: Images, kind: Kind, size: int, channels: int
) -> None:
    model = build_backbone(replace(task, channels=channels, image_size=size), info(kind, T=2))
    with torch.no_grad():
        out = model(images(2, channels, size))
    steps = 2 if kind == "snn" else 1
    assert out.logits_TBC.shape == (steps, 2, 4)
    assert out.feature_TBD.shape == (steps, 2, 16)
    assert torch.isfinite(out.logits_TBC).all()


@pytest.mark.parametrize("projector", ["linear", "identity"])
def test_ann_and_snn_have_the_same_tensors(task: Task, info: Infos, projector: str) -> None:
    """Names, shapes and initial values: activations have no parameters and draw no random numbers."""
    task = replace(task, projector=projector, feature_dim=32)
    ann, snn = (build_backbone(task, info(kind)) for kind in KINDS)
    parameters = [{name: p.shape for name, p in model.named_parameters()} for model in (ann, snn)]
    assert parameters[0] == parameters[1]
    assert list(ann.state_dict()) == list(snn.state_dict())
    for name, tensor in ann.state_dict().items():
        assert torch.equal(tensor, snn.state_dict()[name]), name


def test_ann_and_snn_exchange_their_state(task: Task, info: Infos, images: Images) -> None:
    ann = build_backbone(task, info("ann"))
    other = build_backbone(replace(task, seed=1), info("snn"))
    assert not torch.equal(ann.stem.weight, other.stem.weight)  # the run's seed matters
    other.load_state_dict(ann.state_dict())
    twin = build_backbone(task, info("snn"))
    assert torch.equal(other(images()).logits_TBC, twin(images()).logits_TBC)


def test_building_does_not_use_the_global_generator(task: Task, info: Infos) -> None:
    before = torch.get_rng_state()
    models = [build_backbone(task, info("snn")) for _ in range(2)]
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(models[0].stem.weight, models[1].stem.weight)


def test_outline_has_no_memory(task: Task, info: Infos) -> None:
    outline, built = outline_backbone(task, info("snn")), build_backbone(task, info("snn"))
    assert all(p.is_meta for p in outline.parameters())
    assert {n: p.shape for n, p in outline.named_parameters()} == {n: p.shape for n, p in built.named_parameters()}


@pytest.mark.parametrize("T", [1, 4])
def test_feature_of_an_snn_is_binary(task: Task, info: Infos, images: Images, T: int) -> None:
    model = build_backbone(task, info("snn", T=T))
    out = model(images(16))
    assert set(out.feature_TBD.unique().tolist()) == {0.0, 1.0}
    torch.testing.assert_close(
        out.logits_TBC, model.classifier(out.feature_TBD)
    )  # real numbers, no neuron after the classifier


def test_block_outputs_of_an_snn_are_binary(task: Task, info: Infos, images: Images) -> None:
    """Neurons spike after the residual addition."""
    model = build_backbone(task, info("snn"))
    seen: list[Tensor] = []
    for stage in model.stages:
        for block in stage:
            block.register_forward_hook(lambda *args: seen.append(args[2]))
    model(images(4))
    assert len(seen) == 8
    assert all(set(x.unique().tolist()) <= {0.0, 1.0} for x in seen)
    assert [x.shape[2] for x in seen] == [8, 8, 4, 4, 2, 2, 1, 1]


def test_new_snn_spikes(task: Task, info: Infos, images: Images) -> None:
    """A projector that does not spike at first gets no gradient and would stay at chance."""
    model = build_backbone(replace(task, feature_dim=256), info("snn", width=0.25, T=4))
    out = model(images(8, size=16))
    assert 0.001 < out.feature.mean().item() < 0.5
    cross_entropy(out.logits, torch.arange(8) % 4).backward()
    assert all(p.grad.abs().max() > 0 for p in model.parameters())


def test_stem_of_an_snn_processes_each_image_once(task: Task, info: Infos, images: Images) -> None:
    model = build_backbone(task, info("snn", T=4))
    batches: dict[str, list[int]] = {"stem": [], "block": []}
    model.stem.register_forward_hook(lambda *args: batches["stem"].append(len(args[1][0])))
    model.stages[0][0].conv1.register_forward_hook(lambda *args: batches["block"].append(len(args[1][0])))
    model(images(3))
    assert batches == {"stem": [3], "block": [12]}


@pytest.mark.parametrize("kind", KINDS)
def test_no_state_between_calls(task: Task, info: Infos, images: Images, kind: Kind) -> None:
    model = build_backbone(task, info(kind)).eval()
    first = model(images(4))
    model(images(5, seed=1))
    again = model(images(4))
    assert torch.equal(first.logits_TBC, again.logits_TBC)
    assert torch.equal(first.feature_TBD, again.feature_TBD)


@pytest.mark.parametrize("kind", KINDS)
def test_examples_do_not_mix_in_evaluation(task: Task, info: Infos, images: Images, kind: Kind) -> None:
    """Folding time into the batch must not exchange examples."""
    model = build_backbone(task, info(kind, T=3)).eval()
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.running_var.fill_(0.25)  # makes neurons spike, and at different steps
        x = images(4)
        together, alone = model(x), [model(x[i : i + 1]) for i in range(4)]
    torch.testing.assert_close(
        together.logits_TBC, torch.cat([out.logits_TBC for out in alone], 1), rtol=1e-3, atol=1e-5
    )
    assert together.logits.std(dim=0).max() > 0


@pytest.mark.parametrize(("kind", "T"), [("ann", 1), ("snn", 1), ("snn", 2)])
def test_batch_of_one_trains(task: Task, info: Infos, images: Images, kind: Kind, T: int) -> None:
    """At 8x8 the last stage has one pixel, so one value per channel, and the variance is undefined."""
    model = build_backbone(task, info(kind, T=T)).train()
    out = model(images(1))
    cross_entropy(out.logits, torch.tensor([0])).backward()
    assert torch.isfinite(out.logits).all()
    assert model.classifier.bias.grad.abs().max() > 0
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
    assert all(torch.isfinite(b).all() for b in model.buffers())


def test_identity_projector_if_dimensions_agree(task: Task, info: Infos, images: Images) -> None:
    task = replace(task, projector="identity", feature_dim=256)
    half = info("snn", width=0.5)
    check_backbone(task, half)
    model = build_backbone(task, half)
    with torch.no_grad():
        out = model(images(1, size=16))
    assert model.projector is None
    assert out.feature_TBD.shape == (2, 1, 256)
    assert 0 <= out.feature.min() <= out.feature.max() <= 1


@pytest.mark.parametrize("width", [0.25, 1.0])
def test_identity_projector_is_rejected_otherwise(task: Task, info: Infos, width: float) -> None:
    task = replace(task, projector="identity", feature_dim=256)
    with pytest.raises(BadInput, match=f"{round(512 * width)} channels, but feature_dim is 256") as error:
        check_backbone(task, info("ann", width=width))
    assert "\n" not in str(error.value)
    check_backbone(replace(task, projector="linear"), info("ann", width=width))


def test_one_step_lowers_the_loss_of_an_ann(task: Task, info: Infos, images: Images) -> None:
    model = build_backbone(task, info("ann"))
    x, y = images(16), torch.arange(16) % 4
    loss = cross_entropy(model(x).logits, y)
    loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.05).step()
    assert cross_entropy(model(x).logits, y) < loss - 0.01


@pytest.mark.parametrize("kind", KINDS)
def test_learns_dark_and_bright_images(task: Task, info: Infos, images: Images, kind: Kind) -> None:
    """One step may raise the loss of an SNN, because spikes are discontinuous; forty steps must lower it."""
    model = build_backbone(replace(task, classes=2, feature_dim=64), info(kind, T=2))
    y = torch.arange(8) % 2
    x = 0.3 * images(8) + (2.0 * y - 1).view(8, 1, 1, 1)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(40):
        loss = cross_entropy(model(x).logits, y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert loss.item() < 0.1


def test_built_backbones_share_no_memory(task: Task, info: Infos) -> None:
    """Clients of one shape start equal, also after a previous one was modified."""
    first = build_backbone(task, info("snn"))
    with torch.no_grad():
        for tensor in first.parameters():
            tensor.add_(1)
    second, third = (build_backbone(task, replace(info("snn"), id=i, train_size=i)) for i in (3, 4))
    for (name, one), two, changed in zip(
        second.named_parameters(), third.parameters(), first.parameters(), strict=True
    ):
        assert torch.equal(one, two), name
        assert not torch.equal(one, changed), name
        assert one.data_ptr() != two.data_ptr()
        assert one.stride() == changed.stride()
