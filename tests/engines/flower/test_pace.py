"""What is changed in Flower is still there to be changed."""

import time

import pytest

pytest.importorskip("flwr")
from flwr.supercore.inflatable.inflatable_utils import ObjectUnavailableError, pull_objects
from flwr.supernode import start_client_internal

from asfedbridge.engines.flower.pace import BriskTime, quicken


def test_a_part_that_comes_a_little_later_is_not_waited_for_in_seconds() -> None:
    quicken()
    begin = time.monotonic()

    def pull(name: str) -> bytes:
        if time.monotonic() < begin + 0.1:
            raise ObjectUnavailableError(name)
        return b"part"

    assert pull_objects(["a", "b"], pull) == {"a": b"part", "b": b"part"}
    assert time.monotonic() - begin < 0.8


def test_a_supernode_sleeps_by_a_clock_that_can_be_replaced() -> None:
    assert start_client_internal.time is time
    begin = time.monotonic()
    BriskTime().sleep(3)
    assert time.monotonic() - begin < 2.5
    assert BriskTime().monotonic() >= begin
