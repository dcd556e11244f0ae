"""Two clients, ANN and SNN, on a handful of digits."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asfedbridge.core.method import Method
from asfedbridge.engines.local import LocalEngine
from asfedbridge.runs.recipes import quickstart
from asfedbridge.runs.setting import Setting, prepare
from asfedbridge.runs.spec import apply_overrides

PAIR = {
    "fleet": "1*resnet18@0.125:ann,1*resnet18@0.125:snn",
    "T": 2,
    "train_per_class": 1,
    "test_per_class": 1,
    "batch_size": 8,
    "feature_dim": 16,
    "partition": "iid",
    "rounds": 2,
}


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    return prepare(apply_overrides(quickstart(), PAIR), Path(tmp_path_factory.mktemp("data")))


@pytest.fixture
def make_engine(pair: Setting) -> Callable[..., LocalEngine]:
    def make(method: Method, **options: Any) -> LocalEngine:
        return LocalEngine(method, pair.task, pair.clients, pair.shards, **options)

    return make
