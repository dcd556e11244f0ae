"""Gradients compared with autograd on one flat parameter vector and one batch of the whole probe set."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asfedbridge.analysis.gradients import comparable, cosines, probe_gradient
from asfedbridge.core.client import Client
from asfedbridge.runs.setting import Setting


def flat_gradient(client: Client, setting: Setting) -> Tensor:
    """The gradient of one vector of which all comparable parameters are views, in one batch."""
    backbone = client.backbone.eval()
    chosen = [n for n, _ in backbone.named_parameters() if "conv" in n or "shortcut.0" in n or "stem" in n]
    chosen += ["classifier.weight", "classifier.bias"]
    tensors = dict(backbone.named_parameters())
    flat = torch.cat([tensors[n].detach().flatten() for n in chosen]).requires_grad_()
    parts, start = {}, 0
    for n in chosen:
        parts[n] = flat[start : start + tensors[n].numel()].view(tensors[n].shape)
        start += tensors[n].numel()
    ((x, y),) = setting.probe.test_batches(10**6)
    logits_TBC = torch.func.functional_call(backbone, parts, (client.place(x),)).logits_TBC
    loss = -F.log_softmax(logits_TBC.mean(dim=0), dim=1)[torch.arange(len(y)), y].mean()
    loss.backward()
    assert flat.grad is not None
    return flat.grad


def flattened(gradient: dict[str, Tensor]) -> Tensor:
    classifier = {n: t for n, t in gradient.items() if n.startswith("classifier")}
    return torch.cat(
        [t.flatten() for t in [*(gradient[n] for n in gradient if n not in classifier), *classifier.values()]]
    )


def learned(client: Client) -> Client:
    """Set running statistics to nontrivial values with no dead channel."""
    client.backbone.train()
    with torch.no_grad():
        for x, _ in client.shard.train_batches_plain(64):
            client.backbone(client.place(x))
    return client


@pytest.mark.parametrize("who", [0, 1], ids=["ann", "snn"])
def test_gradient_is_over_the_whole_probe_set(who: int, clients: list[Client], setting: Setting) -> None:
    """More images than a batch; the last batch is short."""
    assert setting.probe.test_size == 90
    client = learned(clients[who])
    before = client.state_dict()
    gradient = probe_gradient(client, setting.probe)
    assert all(torch.equal(t, before[n]) for n, t in client.state_dict().items())  # including statistics
    expected = flat_gradient(client, setting)
    found = flattened(gradient)
    assert all(float(t.norm()) > 1e-4 for t in gradient.values())  # a silent network would make the test trivial
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-6 * float(expected.norm()) + 1e-7)


def test_comparable_parameters(clients: list[Client]) -> None:
    names = set(comparable(clients[0].backbone))
    assert {"stem.weight", "stages.0.0.conv1.weight", "stages.3.0.shortcut.0.weight"} < names
    assert {"classifier.weight", "classifier.bias"} < names
    assert not any("norm" in n or "projector" in n or "shortcut.1" in n for n in names)
    assert len(names) == 1 + 16 + 3 + 2
    assert names == set(comparable(clients[1].backbone))


def test_cosine_is_that_of_flat_vectors(clients: list[Client], setting: Setting) -> None:
    found = [probe_gradient(learned(c), setting.probe) for c in (clients[0], clients[1])]
    table = cosines([*found, found[1]])
    ann, snn = (flattened(g).double() for g in found)
    expected = float((ann @ snn) / (ann.norm() * snn.norm()))
    assert float(table.cosine_NN[0, 1]) == pytest.approx(expected, rel=1e-9)
    assert float(table.cosine_NN[1, 2]) == pytest.approx(1.0, abs=1e-9)
    assert torch.equal(table.cosine_NN, table.cosine_NN.T)
    assert table.scalars_NN.unique().tolist() == [len(ann)]
    assert table.partial == []


def test_only_tensors_of_equal_shape_are_compared(clients: list[Client], setting: Setting) -> None:
    """Widths 0.125 and 0.25 share only the classifier."""
    found = [probe_gradient(learned(c), setting.probe) for c in clients]
    table = cosines(found)
    assert table.shared == ["classifier.bias", "classifier.weight"]
    assert len(table.partial) == 20
    few, all_ = 10 * 16 + 10, sum(t.numel() for t in found[0].values())
    assert table.scalars_NN.tolist()[0] == [all_, all_, few]
    a, b = (torch.cat([g["classifier.weight"].flatten(), g["classifier.bias"]]).double() for g in found[1:])
    assert float(table.cosine_NN[1, 2]) == pytest.approx(float(F.cosine_similarity(a, b, dim=0)), rel=1e-9)


def test_cosines_by_hand() -> None:
    g = {"a": torch.tensor([[3.0, 0.0]]), "b": torch.tensor([4.0])}
    opposite = {n: -2 * t for n, t in g.items()}
    across = {"a": torch.tensor([[0.0, 7.0]]), "b": torch.tensor([0.0])}
    zero = {n: torch.zeros_like(t) for n, t in g.items()}
    stranger = {"c": torch.ones(3), "a": torch.ones(2, 1)}
    row = cosines([g, g, opposite, across, zero, stranger]).cosine_NN[0]
    assert row[:5].tolist() == pytest.approx([1, 1, -1, 0, 0], abs=1e-12)
    assert row[5].isnan()


def test_model_without_a_classifier_is_compared_on_its_convolutions() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 2))
    assert set(comparable(model)) == {"0.weight", "0.bias"}


def test_order_of_tensors_does_not_matter() -> None:
    """Files return tensors in any order."""
    generator = torch.Generator().manual_seed(0)
    g, h = ({f"t{i}": torch.randn(50, generator=generator) * 10**i for i in range(8)} for _ in range(2))
    for place in range(8):
        order = [f"t{(i * 3 + place) % 8}" for i in range(8)]
        assert torch.equal(cosines([g, {n: h[n] for n in order}]).cosine_NN, cosines([g, h]).cosine_NN)
