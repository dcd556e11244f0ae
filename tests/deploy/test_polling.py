"""What is changed in Flower is still there to be changed."""

import threading
import time
from typing import Any

import pytest

pytest.importorskip("flwr")
from flwr.supercore.inflatable.inflatable_utils import ObjectUnavailableError, pull_objects
from flwr.supernode import start_client_internal

from asfedbridge.deploy.polling import FIRST_PAUSE, LONGEST_SLEEP, BriskTime, quicken


def test_a_part_that_comes_a_little_later_is_asked_for_soon(monkeypatch: Any) -> None:
    quicken()
    asked: list[str] = []
    pauses: list[float] = []
    wait = threading.Event.wait

    def noted(event: threading.Event, timeout: float | None = None) -> bool:
        """Notes how long flwr would pause between two questions, and does not pause."""
        if timeout is None:
            return wait(event)
        pauses.append(timeout)
        return False

    def pull(name: str) -> bytes:
        asked.append(name)
        if len(asked) <= 2:
            raise ObjectUnavailableError(name)
        return b"part"

    monkeypatch.setattr(threading.Event, "wait", noted)
    assert pull_objects(["a"], pull) == {"a": b"part"}
    assert pauses == [pytest.approx(pause, rel=0.21) for pause in (FIRST_PAUSE, 2 * FIRST_PAUSE)]  # jitter: 20 %


def test_a_supernode_sleeps_by_a_clock_that_can_be_replaced(monkeypatch: Any) -> None:
    assert start_client_internal.time is time
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    BriskTime().sleep(3)
    BriskTime().sleep(LONGEST_SLEEP / 2)
    assert slept == [LONGEST_SLEEP, LONGEST_SLEEP / 2]
    assert BriskTime().monotonic is time.monotonic
