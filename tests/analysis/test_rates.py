"""Histograms of firing rates, by hand and by direct counting."""

import pytest
import torch

from asfedbridge.analysis.rates import Histogram, rate_histograms
from asfedbridge.core.client import Client
from asfedbridge.models.zoo import bridge_of

PLACES = ["stage 1", "stage 2", "stage 3", "stage 4", "output"]


def test_histogram_by_hand() -> None:
    histogram = Histogram(4)
    histogram.add(torch.tensor([[0.0, 0.25, 0.25], [1.0, 0.75, 0.7500001]]))
    histogram.add(torch.tensor([0.3, -0.25]))
    assert histogram.shares() == [1 / 8, 2 / 8, 0.0, 2 / 8, 1 / 8, 2 / 8]


def test_values_above_one_and_nan_count_as_other() -> None:
    histogram = Histogram(2)
    histogram.add(torch.tensor([2.0, 1.5, torch.nan, torch.inf, 0.5]))
    assert histogram.shares() == [0, 1 / 5, 0, 4 / 5]


@pytest.mark.parametrize("who", [1, 2], ids=["T=4", "T=2"])
def test_histograms_equal_direct_counting(who: int, clients: list[Client]) -> None:
    client = clients[who]
    steps = client.info.T
    bridge = bridge_of(client)
    with torch.no_grad():
        for port in bridge.body.ports:
            port.log_scale.fill_(0.5)
    found = rate_histograms(client, bridge)
    assert list(found["snn"]) == list(found["bridge"]) == PLACES

    ((x, _),) = client.shard.test_batches(10**6)
    x = client.place(x)
    backbone = client.backbone.eval()
    with torch.no_grad():
        spikes = backbone.act.read(backbone.stem, backbone.norm, x)
        rates = []
        for stage in backbone.stages:
            spikes = stage(spikes)
            rates.append(sum(spikes.chunk(steps)) / steps)
        rates.append(backbone(x).feature)
        ports = [(rate * steps).round() / steps for rate in bridge.eval().read(x).rates]
    for who_, values in (("snn", rates), ("bridge", ports)):
        for place, value in zip(PLACES, values, strict=True):
            shares = [float((value == k / steps).double().mean()) for k in range(steps + 1)]
            assert found[who_][place] == pytest.approx([*shares, 0.0], abs=1e-12), (who_, place)
    assert 0 < found["snn"]["stage 1"][0] < 1
    assert 0 < found["bridge"]["stage 1"][0] < 1
    assert not client.backbone.stages[0]._forward_hooks


def test_without_a_bridge_only_the_snn_is_measured(clients: list[Client]) -> None:
    found = rate_histograms(clients[1], None)
    assert list(found) == ["snn"]
    assert all(sum(shares) == pytest.approx(1) for shares in found["snn"].values())
