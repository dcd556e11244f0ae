"""Clients as they are before round 0: an ANN and an SNN of one width, and a wider SNN."""

from pathlib import Path

import pytest

from asfedbridge.core.protocol import Client
from asfedbridge.engines.client import build_client
from asfedbridge.experiments.recipes import quickstart
from asfedbridge.experiments.run import Setting, prepare
from asfedbridge.experiments.spec import apply_overrides

THREE = {
    "fleet": "1*resnet18@0.125:ann,1*resnet18@0.125:snn,1*resnet18@0.25:snn:T=2",
    "T": 4,
    "train_per_class": 3,
    "test_per_class": 9,
    "feature_dim": 16,
    "partition": "iid",
    "method.bridge_width": 0.34,
}
SPEC = apply_overrides(quickstart(), THREE)


@pytest.fixture(scope="session")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    return prepare(SPEC, Path(tmp_path_factory.mktemp("data")))


@pytest.fixture
def clients(setting: Setting) -> list[Client]:
    pairs = zip(setting.clients, setting.shards, strict=True)
    return [build_client(SPEC.method, setting.task, info, shard) for info, shard in pairs]
