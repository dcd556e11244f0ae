"""Worker processes: how they are shared out, what comes back from them, and that they end."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
import weakref
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from asfedbridge.core import payload
from asfedbridge.core.errors import BadInput, Diverged, WorkerLost
from asfedbridge.core.method import Method
from asfedbridge.core.payload import Payload
from asfedbridge.core.task import ClientInfo, Round
from asfedbridge.engines import host, pool
from asfedbridge.engines.local import LocalEngine
from asfedbridge.engines.loop import Downloads, federate
from asfedbridge.engines.pool import PoolEngine, allot, cost, pin
from asfedbridge.methods.as_fedbridge import ASFedBridge
from asfedbridge.methods.standalone import Standalone

# How many, and who where


@pytest.mark.parametrize(
    ("cores", "at_work", "asked", "expected"),
    [
        (4, 10, (0, 0), (4, 1)),
        (16, 10, (0, 0), (10, 1)),
        (4, 2, (0, 0), (2, 1)),
        (4, 10, (7, 0), (7, 1)),  # who asks for more than cores gets them
        (4, 10, (50, 0), (10, 1)),  # but no worker without a client
        (4, 3, (8, 0), (8, 1)),
        (4, 10, (0, 3), (4, 3)),
        (1, 10, (0, 0), (1, 1)),
    ],
)
def test_the_rule_for_small_models(
    pair: Any, monkeypatch: pytest.MonkeyPatch, cores: int, at_work: int, asked: Any, expected: Any
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    ten = [replace(pair.clients[0], id=i) for i in range(10)]
    assert allot(pair.task, ten, at_work, *asked) == expected


@pytest.mark.parametrize(
    ("cores", "workers", "expected"), [(8, 2, (2, 4)), (8, 3, (3, 2)), (8, 0, (8, 1)), (2, 5, (5, 1))]
)
def test_large_models_share_the_cores(
    pair: Any, monkeypatch: pytest.MonkeyPatch, cores: int, workers: int, expected: Any
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    ten = [replace(pair.clients[0], id=i) for i in range(9)] + [ClientInfo(9, "snn", "resnet18", 1.0, 4)]
    assert allot(pair.task, ten, 10, workers) == expected


def test_pinning_balances_the_cost_by_hand() -> None:
    sizes = [(0, 1, 70), (1, 1, 50), (2, 4, 10), (3, 2, 15), (4, 1, 20), (5, 1, 10)]  # id, T, images
    clients = [ClientInfo(i, "snn", "resnet18", 1.0, T, train_size=n) for i, T, n in sizes]
    # 70 | 50, then 40 to the second, 30 to the first, 20 to the second (90 < 100), 10 to the first
    assert [[c.id for c in part] for part in pin(clients, 2)] == [[0, 3, 5], [1, 2, 4]]
    assert [[c.id for c in part] for part in pin(clients[::-1], 2)] == [[0, 3, 5], [1, 2, 4]]
    assert sorted(c.id for part in pin(clients, 4) for c in part) == list(range(6))


def test_a_wider_model_and_more_steps_cost_more() -> None:
    plain = ClientInfo(0, "snn", "resnet18", 0.5, 2, train_size=10)
    assert cost(replace(plain, width=1.0)) == 4 * cost(plain)
    assert cost(replace(plain, T=4)) == 2 * cost(plain)
    assert cost(replace(plain, train_size=0)) > 0


# Real processes


ODD = """
import ctypes, os, signal, time
from dataclasses import dataclass
from asfedbridge.core.errors import BadInput, Diverged
from asfedbridge.methods.standalone import Standalone


@dataclass(frozen=True)
class Odd(Standalone):
    fault: str = "none"

    def client_round(self, client, rnd):
        if client.info.id == 1 and rnd.index == 1:
            getattr(self, "do_" + self.fault)()
        return super().client_round(client, rnd)

    def do_input(self): raise BadInput("alpha=7: too much")
    def do_diverge(self): raise Diverged("client 1, round 1: NaN")
    def do_disk(self): raise OSError(28, "No space left on device")
    def do_bug(self): return {}["no such key"]
    def do_killed(self): os.kill(os.getpid(), signal.SIGKILL)
    def do_exit(self): os._exit(3)
    def do_stuck(self): ctypes.PyDLL(None).sleep(600)  # keeps Python's lock: no thread of this process runs
"""


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Methods that misbehave, in a module that workers can import: they get this process's sys.path."""
    folder = tmp_path_factory.mktemp("modules")
    (folder / "odd_methods.py").write_text(ODD)
    sys.path.insert(0, str(folder))
    import odd_methods  # type: ignore[import-not-found]

    yield odd_methods.Odd
    sys.path.remove(str(folder))


def make_pool(pair: Any, method: Method, **options: Any) -> PoolEngine:
    return PoolEngine(method, pair.task, pair.clients, pair.shards, **{"workers": 2, "threads": 1} | options)


def pids(engine: PoolEngine) -> list[int]:
    return [w.process.pid or 0 for w in engine._workers]


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z"


def assert_gone(numbers: list[int], seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while left := [pid for pid in numbers if not gone(pid)]:
        assert time.monotonic() < end, left
        time.sleep(0.02)


def test_workers_end_when_they_are_let_go(pair: Any) -> None:
    engine = make_pool(pair, Standalone())
    numbers = pids(engine)
    assert len(set(numbers) | {os.getpid()}) == 3
    assert not any(map(gone, numbers))
    assert engine.describe() == {"engine": "pool", "workers": 2, "threads": 1}
    engine.close()
    assert_gone(numbers, seconds=0)
    engine.close()  # twice does no harm


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        ("input", BadInput, r"^alpha=7: too much$"),
        ("diverge", Diverged, r"^client 1, round 1: NaN$"),
        ("disk", OSError, r"^\[Errno 28\] No space left on device$"),
        (
            "bug",
            RuntimeError,
            r"^worker \d failed while client 1 \(resnet18@0.125:snn\) was in round 1: KeyError: 'no su",
        ),
        (
            "killed",
            WorkerLost,
            r"^worker \d died \(signal 9\) while client 1 \(resnet18@0.125:snn\) was in round 1; .*resume=True$",
        ),
        ("exit", WorkerLost, r"^worker \d died \(exit code 3\) while client 1 \(resnet18@0.125:snn\) was in round 1; "),
    ],
)
def test_what_happens_to_a_worker_is_told(
    pair: Any, odd: Any, tmp_path: Path, fault: str, error: type[Exception], message: str
) -> None:
    with closing(make_pool(pair, odd(fault), folder=tmp_path)) as engine:
        numbers = pids(engine)
        with pytest.raises(error, match=message) as caught:
            federate(odd(fault), pair.task, engine, lambda *_: None)
    assert_gone(numbers, seconds=0)
    if fault == "bug":
        assert "odd_methods.py" in "".join(caught.value.__notes__)


def test_an_idle_worker_that_died_is_noticed(pair: Any) -> None:
    with closing(make_pool(pair, Standalone())) as engine:
        os.kill(pids(engine)[1], signal.SIGKILL)
        assert_gone(pids(engine)[1:])
        with pytest.raises(WorkerLost, match=r"worker 1 died \(signal 9\)"):
            engine.train(Round(0, 2), {0: {}, 1: {}})


def test_a_worker_that_hangs_does_not_hold_up_ctrl_c(pair: Any, odd: Any, monkeypatch: Any) -> None:
    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pool, "PATIENCE", 3600.0)  # a worker that is not killed at once would outlast this test
    before = signal.signal(signal.SIGALRM, interrupt)
    engine = make_pool(pair, odd("stuck"))
    numbers = pids(engine)
    try:
        engine.train(Round(0, 2), {0: {}, 1: {}})
        signal.setitimer(signal.ITIMER_REAL, 1.0)
        with pytest.raises(KeyboardInterrupt):
            engine.train(Round(1, 2), {0: {}, 1: {}})
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        engine.close()
    assert_gone(numbers, seconds=0)


@pytest.mark.skipif(sys.platform != "linux", reason="a process that holds Python's lock is ended by the Linux kernel")
def test_a_killed_parent_takes_even_a_hanging_worker_along(odd: Any) -> None:
    script = f"""
        import sys
        sys.path.insert(0, {str(Path(sys.modules[odd.__module__].__file__ or "").parent)!r})
        if __name__ == "__main__":
            from pathlib import Path
            from multiprocessing import forkserver, resource_tracker
            from odd_methods import Odd
            from asfedbridge.core.task import Round
            from asfedbridge.engines.pool import PoolEngine
            from asfedbridge.runs.recipes import quickstart
            from asfedbridge.runs.setting import prepare
            from asfedbridge.runs.spec import apply_overrides

            small = {{"fleet": "2*resnet18@0.0625:ann", "train_per_class": 1, "test_per_class": 1, "partition": "iid"}}
            pair = prepare(apply_overrides(quickstart(), small), Path("."))
            engine = PoolEngine(Odd("stuck"), pair.task, pair.clients, pair.shards, workers=2, threads=1)
            engine.train(Round(0, 2), {{0: {{}}, 1: {{}}}})
            around = [forkserver._forkserver._forkserver_pid, resource_tracker._resource_tracker._pid]
            print(*around, *(w.process.pid for w in engine._workers), flush=True)
            engine.train(Round(1, 2), {{0: {{}}, 1: {{}}}})
    """
    path = Path(sys.modules[odd.__module__].__file__ or "").parent / "parent.py"
    path.write_text(textwrap.dedent(script))
    with subprocess.Popen([sys.executable, str(path)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        numbers = [int(word) for word in parent.stdout.readline().split()]
        assert len(numbers) == 4
        time.sleep(0.5)  # until client 1 hangs
        assert not any(map(gone, numbers))
        parent.kill()
    assert_gone(numbers)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_stopped_worker_is_told_of_and_goes_on(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "LOOK", 0.05)
    told: list[str] = []

    def tell(line: str) -> None:
        told.append(line)
        os.kill(stopped, signal.SIGCONT)

    with closing(make_pool(pair, Standalone(), tell=tell)) as engine:
        stopped = engine._workers[0].process.pid
        assert stopped
        os.kill(stopped, signal.SIGSTOP)
        assert sorted(engine.train(Round(0, 2), {0: {}, 1: {}})) == [0, 1]
        client = next(iter(engine._workers[0].clients.values()))
        expected = (
            f"worker 0 (process {stopped}) was stopped by a signal while {client.label} was in round 0 "
            f"(continue it with kill -CONT {stopped}); waiting"
        )
        assert told == [expected]
        engine._workers[0].stopped = True  # as if it had answered before it was seen running
        os.kill(stopped, signal.SIGSTOP)
        engine.train(Round(1, 2), {0: {}, 1: {}})
        assert len(told) == 2
        os.kill(stopped, signal.SIGSTOP)
    assert_gone([stopped])


def test_progress_crosses_as_it_happens(pair: Any) -> None:
    told: list[Any] = []
    with closing(make_pool(pair, Standalone(), progress=lambda *what: told.append(what))) as engine:
        engine.train(Round(0, 2), {0: {}, 1: {}})
    local: list[Any] = []
    there = LocalEngine(Standalone(), pair.task, pair.clients, pair.shards, progress=lambda *what: local.append(what))
    there.train(Round(0, 2), {0: {}, 1: {}})
    assert [what[:4] for what in sorted(told, key=lambda what: what[0].id)] == [what[:4] for what in local]
    assert all(what[4].keys() == {"ce"} for what in told)


def test_no_pile_of_downloads_in_the_parent(pair: Any) -> None:
    alive: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()
    most = made = 0
    method = ASFedBridge(bridge_width=0.34)

    @dataclass(frozen=True)
    class Fresh(ASFedBridge):
        def server_send(self, state: Payload, client: ClientInfo, rnd: Round) -> Payload:
            nonlocal most, made
            most, made = max(most, len(alive)), made + 1
            down = payload.clone(state)
            alive.update(down.values())
            return down

    state = method.server_init(pair.task, pair.clients)
    closing_visit = Round(2, 2)
    with closing(make_pool(pair, method)) as engine:
        downs = Downloads(Fresh(bridge_width=0.34), state, closing_visit, pair.clients)
        assert sorted(engine.train(closing_visit, downs)) == [0, 1]
    assert (most, made) == (0, 2)
    assert downs.sizes == dict.fromkeys((0, 1), payload.size_in_bytes(state))


def test_a_damaged_state_is_found_by_its_worker(pair: Any, tmp_path: Path) -> None:
    with closing(make_pool(pair, Standalone(), folder=tmp_path)) as engine:
        engine.train(Round(0, 2), {0: {}, 1: {}})
        states = dict(engine.save())
        assert sorted(states) == [host.state_name(0, 1), host.state_name(1, 1)]
        engine.restore(states)
    for name in (*states, host.state_name(7, 1)):
        wrong = states | {name: "0" * 64}
        message = re.escape(str(tmp_path / name)) + ": this checkpoint is damaged"
        with closing(make_pool(pair, Standalone(), folder=tmp_path)) as engine, pytest.raises(BadInput, match=message):
            engine.restore(wrong)


def test_without_a_folder_nothing_is_left(pair: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(host.tempfile, "tempdir", str(tmp_path))
    engine = make_pool(pair, Standalone(), workers=1, at_work=1)
    for index in range(2):
        engine.train(Round(index, 2), {0: {}, 1: {}})
    assert len(list(tmp_path.glob("*/client-*"))) == 2  # one evicted in each round, the newer of the other
    engine.close()
    del engine
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        (KeyboardInterrupt(), KeyboardInterrupt, None),
        (
            OSError(11, "Resource temporarily unavailable"),
            BadInput,
            r"^workers=2: cannot start so many processes .*use fewer$",
        ),
    ],
)
def test_a_start_that_fails_leaves_nobody(
    pair: Any, monkeypatch: pytest.MonkeyPatch, fault: BaseException, error: type[BaseException], message: str | None
) -> None:
    started: list[int] = []
    original = pool.Worker

    def second_fails(number: int, *args: Any) -> Any:
        if number == 1:
            raise fault
        worker = original(number, *args)
        started.append(worker.process.pid or 0)
        return worker

    monkeypatch.setattr(pool, "Worker", second_fails)
    with pytest.raises(error, match=message):
        make_pool(pair, Standalone())
    assert len(started) == 1
    assert_gone(started, seconds=0)
