"""On event data too a method gives the same bits in process, over bytes and in a pool of workers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asfedbridge.runs.recipes import make_method, quickstart
from asfedbridge.runs.setting import prepare
from asfedbridge.runs.spec import apply_overrides


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from tests.conformance.conftest import SMALL, Federation

    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("events") / "events.npz"
    count, each = 40, 60
    np.savez(
        path,
        x=rng.integers(0, 8, count * each),
        y=rng.integers(0, 8, count * each),
        p=rng.integers(0, 2, count * each),
        t=np.tile(np.arange(each), count),
        offsets=np.arange(count + 1) * each,
        labels=np.arange(count) % 4,
        split=np.array(["train"] * 24 + ["test"] * 16),
    )
    changes = SMALL | {"data": f"npz:{path}", "train_per_class": 0, "test_per_class": 0}
    return Federation(prepare(apply_overrides(quickstart(), changes), path.parent))


def test_the_same_bits_over_bytes_and_in_a_pool(federation: Any, tmp_path: Path) -> None:
    method = quickstart().method
    plain = federation.plain(method)
    assert federation.play_over_bytes(method, backwards=True).differences(plain) == []
    assert federation.play_in_pool(method, tmp_path).differences(plain) == []


def test_stems_that_stay_are_part_of_a_clients_state(federation: Any) -> None:
    assert federation.task.stems_differ
    method = make_method("fedavg")
    assert federation.play_over_bytes(method).differences(federation.plain(method)) == []
