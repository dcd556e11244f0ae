"""Kernels on several threads: every part runs exactly once, on torch's OpenMP threads or on a thread pool."""

import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from asfedbridge.kernels import openmp

Threads = Callable[[int], None]


@pytest.fixture(params=["openmp", "pool"])
def team(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Runs a test on torch's OpenMP threads and on the thread pool that replaces them where they are not accessible."""
    if request.param == "pool":
        monkeypatch.setattr(openmp, "_openmp", lambda: None)
    elif openmp._openmp() is None:
        pytest.skip("this torch does not ship GNU OpenMP")
    return str(request.param)


@pytest.mark.usefixtures("team")
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_each_part_runs_once(count: int) -> None:
    seen: list[int] = []
    for _ in range(20):
        openmp.parallel(count, seen.append)
    assert sorted(seen) == sorted(list(range(count)) * 20)


@pytest.mark.usefixtures("team")
def test_parts_run_at_the_same_time() -> None:
    """Each waits for the other at a barrier: run sequentially, the first would time out."""
    meeting = threading.Barrier(2, timeout=300)
    openmp.parallel(2, lambda k: meeting.wait() * 0)
    assert not meeting.broken


@pytest.mark.usefixtures("team")
@pytest.mark.parametrize("bad", [0, 1])
def test_exception_reaches_the_caller(bad: int) -> None:
    """ctypes prints exceptions of a callback and drops them; the result would be garbage."""

    def work(k: int) -> None:
        if k == bad:
            raise ValueError(f"part {k}")

    with pytest.raises(ValueError, match=f"part {bad}"):
        openmp.parallel(2, work)
    seen: list[int] = []
    openmp.parallel(2, seen.append)  # the threads still work
    assert sorted(seen) == [0, 1]


@pytest.mark.usefixtures("team")
def test_several_python_threads_may_call() -> None:
    seen: list[list[int]] = [[] for _ in range(4)]
    callers = [threading.Thread(target=openmp.parallel, args=(2, own.append)) for own in seen]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(20)
        assert not caller.is_alive()
    assert [sorted(own) for own in seen] == [[0, 1]] * 4


LIMITED = """
import torch
from asfedbridge.kernels import openmp
torch.set_num_threads(3)
seen = []
openmp.parallel(3, seen.append)
assert sorted(seen) == [0, 1, 2], seen
"""


@pytest.mark.parametrize("setting", [{"OMP_THREAD_LIMIT": "1"}, {"OMP_DYNAMIC": "true"}])
def test_every_part_runs_when_openmp_provides_fewer_threads(setting: dict[str, str]) -> None:
    """Cluster schedulers set these variables. A part that does not run would silently leave uninitialised memory."""
    done = subprocess.run(
        [sys.executable, "-c", LIMITED],
        env=os.environ | setting,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-500:]


def _in_child(pool: bool, answers: Any) -> None:
    if pool:
        openmp._openmp = lambda: None  # type: ignore[assignment]
    seen: list[int] = []
    openmp.parallel(2, seen.append)
    answers.put(sorted(seen))


@pytest.mark.parametrize(("method", "pool"), [("forkserver", False), ("fork", True)])
def test_child_processes_have_their_own_threads(
    method: str, pool: bool, monkeypatch: pytest.MonkeyPatch, threads: Threads
) -> None:
    """A forked process inherits the pool object but not its threads, and must not wait for them.

    GNU OpenMP does not survive a fork (nor does torch), so processes that compute are not forked.
    """
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"this platform has no {method}")
    threads(2)
    if pool:
        monkeypatch.setattr(openmp, "_openmp", lambda: None)
    meeting = threading.Barrier(2, timeout=300)
    openmp.parallel(2, lambda k: meeting.wait() * 0)  # both threads exist now
    context: Any = multiprocessing.get_context(method)
    answers = context.Queue()
    child = context.Process(target=_in_child, args=(pool, answers))
    child.start()
    try:
        assert answers.get(timeout=300) == [0, 1]
        child.join(300)
        assert child.exitcode == 0
    finally:
        child.kill()


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize(("length", "tile"), [(1, 4), (4, 4), (5, 4), (23, 4), (40, 4), (7, 1)])
def test_ranges_cover_a_row_once_and_start_at_tiles(count: int, length: int, tile: int, threads: Threads) -> None:
    threads(count)
    ranges: list[tuple[int, int, int]] = []
    openmp.spread(lambda k, low, high: ranges.append((k, low, high)), length, tile, 1, lambda k: (k,))
    ranges.sort()
    assert [k for k, _, _ in ranges] == list(range(min(count, -(-length // tile))))
    assert [i for _, low, high in ranges for i in range(low, high)] == list(range(length))
    assert all(low % tile == 0 and high > low for _, low, high in ranges)


def test_small_work_uses_one_thread(threads: Threads, monkeypatch: pytest.MonkeyPatch) -> None:
    threads(2)
    calls: list[tuple[int, int]] = []
    monkeypatch.setattr(openmp, "MIN_PARALLEL_SIZE", 100)
    openmp.spread(lambda low, high: calls.append((low, high)), 33, 1, 3, lambda k: ())
    assert calls == [(0, 33)]
    openmp.spread(lambda low, high: calls.append((low, high)), 50, 1, 2, lambda k: ())
    assert sorted(calls[1:]) == [(0, 25), (25, 50)]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_spread_uses_as_many_threads_as_torch(count: int, threads: Threads) -> None:
    """The specification's ``threads`` must limit these kernels too."""
    threads(count)
    seen: list[int] = []
    openmp.spread(lambda k, low, high: seen.append(k), 10, 1, 1, lambda k: (k,))
    assert sorted(seen) == list(range(torch.get_num_threads())) == list(range(count))
