"""ANN, BNN, SNN and QNN clients of different bits in one federation."""

import copy
import dataclasses
from pathlib import Path
from typing import Any

import pytest

from asfedbridge.core.method import METHODS
from asfedbridge.runs.recipes import quickstart
from asfedbridge.runs.setting import prepare
from asfedbridge.runs.spec import apply_overrides

FLEET = ",".join(f"resnet18@0.0625:{kind}" for kind in ("ann", "bnn", "qnn:b=4", "qnn:b=2", "snn:T=1"))
SMALL = {
    "fleet": FLEET, "train_per_class": 3, "test_per_class": 2, "batch_size": 16, "feature_dim": 16,
    "partition": "iid", "rounds": 2,
}  # fmt: skip
CASES = [
    ("as-fedbridge", {"bridge_width": 0.34}),
    ("fml", {"bridge_width": 0.34}),
    ("fedproto", {}),
    ("standalone", {}),
    ("fedavg", {}),
    ("isolated-fedavg", {}),
]


@pytest.fixture(scope="module")
def mixed(federation: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return type(federation)(prepare(apply_overrides(quickstart(), SMALL), Path(tmp_path_factory.mktemp("data"))))


@pytest.mark.parametrize(("name", "sizes"), CASES)
def test_all_kinds_in_one_federation_are_the_same_over_bytes(mixed: Any, name: str, sizes: dict[str, Any]) -> None:
    """With some clients away, so that a QNN that never trained meets step sizes that others measured."""
    method = METHODS[name](**sizes)
    method.check(mixed.task, mixed.infos)
    assert mixed.plain(method, 0.6).differences(mixed.play_over_bytes(method, 0.6, backwards=True)) == []


def test_the_other_quantiser_is_the_same_over_bytes(mixed: Any) -> None:
    other = copy.copy(mixed)
    other.__dict__ |= {"task": dataclasses.replace(mixed.task, quantiser="dorefa"), "_plain": {}}
    method = METHODS["isolated-fedavg"]()
    played = other.plain(method, 0.6)
    assert played.differences(other.play_over_bytes(method, 0.6)) == []
    assert played.differences(mixed.plain(method, 0.6))
