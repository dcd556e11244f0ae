"""Fixtures: specifications of runs of a few seconds, and a callback that interrupts them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asfedbridge.core.task import Round
from asfedbridge.runs.callback import Callback, Run
from asfedbridge.runs.recipes import quickstart
from asfedbridge.runs.spec import Spec, apply_overrides

TINY = {
    "fleet": "2*resnet18@0.0625:ann",
    "train_per_class": 2,
    "test_per_class": 2,
    "batch_size": 8,
    "feature_dim": 16,
    "partition": "iid",
    "rounds": 4,
    "threads": 1,
}


class Leaves(Callback):
    """Interrupts the run after the round of this index, as Ctrl-C does."""

    def __init__(self, index: int) -> None:
        self.index = index

    def on_round_end(self, run: Run, rnd: Round, records: Any) -> None:
        if rnd.index == self.index:
            raise KeyboardInterrupt


@pytest.fixture
def leaves() -> type[Leaves]:
    return Leaves


@pytest.fixture
def make_spec() -> Callable[..., Spec]:
    return lambda method="fedavg", **changes: apply_overrides(quickstart(method), TINY | changes)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "run"
