"""Clients that come and go: few in memory, the others as files, and nobody can tell from the bits."""

import gc
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from asfedbridge.core import payload
from asfedbridge.core.client import Answers, Client
from asfedbridge.core.errors import BadInput
from asfedbridge.core.method import Method
from asfedbridge.core.payload import Payload
from asfedbridge.core.task import ClientInfo, Round
from asfedbridge.engines import checkpoint, files, host, turn
from asfedbridge.engines.host import state_name
from asfedbridge.engines.local import LocalEngine
from asfedbridge.engines.loop import count_at_work, draw, federate
from asfedbridge.methods.as_fedbridge import ASFedBridge
from asfedbridge.methods.standalone import Standalone
from asfedbridge.runs.recipes import quickstart
from asfedbridge.runs.setting import Setting, prepare
from asfedbridge.runs.spec import apply_overrides

METHOD = ASFedBridge(bridge_width=0.34)
IDENTITY = {"specification": "s"}
SIX = {
    "fleet": "3*resnet18@0.0625:ann,3*resnet18@0.0625:snn",
    "T": 1,
    "train_per_class": 3,
    "test_per_class": 1,
    "batch_size": 8,
    "feature_dim": 8,
    "partition": "iid",
    "rounds": 4,
}


@pytest.fixture(scope="module")
def six(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    return prepare(apply_overrides(quickstart(), SIX), Path(tmp_path_factory.mktemp("data")))


def engine_of(setting: Setting, method: Method = METHOD, **options: Any) -> LocalEngine:
    return LocalEngine(method, setting.task, setting.clients, setting.shards, **options)


def drawn(setting: Setting, index: int) -> set[int]:
    rnd = Round(index, setting.task.rounds)
    return {c.id for c in draw(setting.clients, 0.34, setting.task.seed, rnd)}


def play(
    setting: Setting, engine: LocalEngine, root: Path | None = None, every: int = 1, stop: int = 99, start: Any = None
) -> tuple[Payload, dict[Any, Any], dict[int, Payload]]:
    """Server, metrics and states after the last training round; two of six clients a round."""
    metrics: dict[Any, Any] = {}
    states: dict[int, Payload] = {}

    class Stop(Exception): ...

    def after(rnd: Round, clients: Any, sent: Any, ups: Any, state: Payload) -> None:
        for i, up in ups.items():
            metrics[rnd.index, i] = {k: v for k, v in up.metrics.items() if k != "seconds"}
        if root and not rnd.closing and (rnd.index + 1) % every == 0:
            checkpoint.save(root, rnd.index + 1, state, engine, IDENTITY)
        if rnd.index == stop:
            raise Stop
        if rnd.index == rnd.total - 1:
            states.update({c.id: engine.client_state(c.id) for c in setting.clients})

    options = {"start": start.next_round, "state": start.server} if start else {}
    try:
        server = federate(METHOD, setting.task, engine, after, 0.34, **options)
    except Stop:
        server = {}
    return server, metrics, states


def same(one: Payload, other: Payload) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


@pytest.fixture(scope="module")
def plain(six: Setting) -> Any:
    """All six in memory from beginning to end."""
    return play(six, engine_of(six))


def assert_same(plain: Any, other: Any) -> None:
    assert same(plain[0], other[0])
    assert plain[1] == other[1]
    assert all(same(plain[2][i], other[2][i]) for i in plain[2])


def test_two_of_six_are_at_work_and_not_always_the_same(six: Setting) -> None:
    """Otherwise the tests below would show little."""
    rounds = [drawn(six, i) for i in range(4)]
    assert all(len(r) == count_at_work(6, 0.34) == 2 for r in rounds)
    assert len(set().union(*rounds)) > 3
    assert any(i in rounds[b] for a in range(4) for i in rounds[a] for b in range(a + 1, 4))  # somebody comes back


@pytest.mark.parametrize("capacity", [1, 2, 5])
def test_room_for_few_gives_the_same_bits(six: Setting, plain: Any, tmp_path: Path, capacity: int) -> None:
    assert_same(plain, play(six, engine_of(six, at_work=capacity, folder=tmp_path / "clients"), tmp_path))


@pytest.mark.parametrize("capacity", [1, 2])
def test_without_a_folder_a_temporary_one_is_used_and_removed(
    six: Setting, plain: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capacity: int
) -> None:
    monkeypatch.setattr(host.tempfile, "tempdir", str(tmp_path))
    engine = engine_of(six, at_work=capacity)
    assert list(tmp_path.iterdir()) == []  # not before it is needed
    assert_same(plain, play(six, engine))
    (folder,) = tmp_path.iterdir()
    names = [p.name for p in folder.iterdir()]
    assert len(names) == len({name[:11] for name in names})  # the newest of each client, no history
    del engine
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_memory_is_bounded_by_those_at_work(six: Setting, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also in the closing visit, in which all six are at work."""
    alive: weakref.WeakSet[Client] = weakref.WeakSet()
    most = built = 0
    original = host.build_client

    def counted(*args: Any) -> Client:
        nonlocal most, built
        found = original(*args)
        alive.add(found)
        most, built = max(most, len(alive)), built + 1
        return found

    monkeypatch.setattr(host, "build_client", counted)
    gc.collect()
    gc.disable()  # leaving memory is not to depend on it
    try:
        engine = engine_of(six, at_work=2, folder=tmp_path / "clients")
        assert built == 0
        play(six, engine, tmp_path)
    finally:
        gc.enable()
    assert built > 6
    assert most == 2


def test_the_closing_visit_holds_no_pile_of_downloads(six: Setting) -> None:
    alive: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()
    most = 0

    @dataclass(frozen=True)
    class Fresh(ASFedBridge):
        def server_send(self, state: Payload, client: ClientInfo, rnd: Round) -> Payload:
            nonlocal most
            most = max(most, len(alive))
            down = payload.clone(state)
            alive.update(down.values())
            return down

    method = Fresh(bridge_width=0.34)
    state = method.server_init(six.task, six.clients)
    federate(method, six.task, engine_of(six, method), lambda *_: None, start=4, state=state)
    assert most <= len(state)


def test_a_client_that_comes_back_is_not_evaluated_again(
    six: Setting, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls: list[int] = []
    original = turn.answer

    def counted(who: Client, *given: Any) -> Answers:
        calls.append(who.info.id)
        return original(who, *given)

    monkeypatch.setattr(turn, "answer", counted)
    engine = engine_of(six, Standalone(), at_work=1, folder=tmp_path)
    for index in range(2):
        for i in (0, 1):
            engine.train(Round(index, 4), {i: {}})
    assert calls == [0, 0, 1, 1, 0, 1]  # received and trained; then trained only


def test_a_checkpoint_writes_only_who_was_at_work(
    six: Setting, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    written: list[str] = []  # as it becomes lasting

    def note(name: str) -> None:
        original = getattr(files, name)

        def noted(path: Path, content: bytes = b"", flush: bool = True) -> None:
            if flush:
                written.append(path.name)
            original(path, *([content, flush] if content else []))

        monkeypatch.setattr(files, name, noted)

    note("write_through")
    note("flush_file")
    play(six, engine_of(six, at_work=2, folder=tmp_path / "clients"), tmp_path)
    expected = []
    for index in range(4):
        expected += [state_name(i, index + 1) for i in sorted(drawn(six, index))]
        expected += ["server.safetensors", "checkpoint.json"]
    assert sorted(written) == sorted(expected)
    newest = {i: index + 1 for index in range(4) for i in drawn(six, index)}
    assert {p.name for p in (tmp_path / "clients").iterdir()} == {state_name(i, r) for i, r in newest.items()}


@pytest.mark.parametrize("stop", [1, 2])
def test_files_written_between_checkpoints_do_no_harm(six: Setting, plain: Any, tmp_path: Path, stop: int) -> None:
    """Room for one: clients go to disk in the middle of rounds. The run ends without a word after round `stop`."""
    play(six, engine_of(six, at_work=1, folder=tmp_path / "clients"), tmp_path, every=2, stop=stop)
    if stop == 2:
        spilled = [p for p in (tmp_path / "clients").iterdir() if p.name.endswith("round-000003.safetensors")]
        assert spilled
        spilled[0].write_bytes(spilled[0].read_bytes()[:100])  # as a kill in the middle of the writing leaves it
    fresh = engine_of(six, at_work=1, folder=tmp_path / "clients")
    restored = checkpoint.load(tmp_path, fresh, IDENTITY)
    assert restored is not None
    assert restored.next_round == 2
    assert not list((tmp_path / "clients").glob("*round-000003*"))
    server, metrics, states = play(six, fresh, tmp_path, every=2, start=restored)
    early = {key: value for key, value in plain[1].items() if key[0] < 2}
    assert_same(plain, (server, early | metrics, states))


def test_what_the_last_checkpoint_names_outlives_every_spill(six: Setting, tmp_path: Path) -> None:
    engine = engine_of(six, Standalone(), at_work=1, folder=tmp_path)
    engine.train(Round(0, 9), {0: {}, 1: {}})
    named = engine.save()
    assert list(named) == [state_name(0, 1), state_name(1, 1)]
    for index in (1, 2, 3):
        engine.train(Round(index, 9), {0: {}, 1: {}})
    names = {p.name for p in tmp_path.iterdir()}
    assert set(named) <= names
    assert names - set(named) == {state_name(0, 4), state_name(1, 3)}  # and not one for every round
    fresh = engine_of(six, Standalone(), folder=tmp_path)
    fresh.restore(named)


def test_who_never_trained_has_no_file(six: Setting, tmp_path: Path) -> None:
    engine = engine_of(six, Standalone(), at_work=1, folder=tmp_path)
    before = engine.client_state(3)
    engine.train(Round(4, 4), {i: {} for i in range(6)})  # a closing visit
    assert engine.save() == {}
    assert list(tmp_path.iterdir()) == []
    assert same(engine.client_state(3), before)


@pytest.fixture
def saved(six: Setting, tmp_path: Path) -> tuple[Path, dict[str, str]]:
    engine = engine_of(six, Standalone(), folder=tmp_path)
    engine.train(Round(0, 4), {0: {}, 4: {}})
    return tmp_path, dict(engine.save())


def test_states_are_checked_at_once_and_read_later(six: Setting, saved: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, states = saved
    read: list[str] = []
    original = files.read_tensors

    def watched(path: Path, sha256: str) -> Any:
        read.append(path.name)
        return original(path, sha256)

    monkeypatch.setattr(files, "read_tensors", watched)
    engine = engine_of(six, Standalone(), folder=folder)
    engine.restore(states)
    assert read == []
    engine.train(Round(1, 4), {4: {}, 5: {}})
    assert read == [state_name(4, 1)]


@pytest.mark.parametrize("fault", ["flipped", "cut", "missing", "renamed", "two of one client"])
def test_a_damaged_state_is_found_when_the_run_goes_on(six: Setting, saved: Any, fault: str) -> None:
    folder, states = saved
    name = state_name(4, 1)
    path = folder / name
    content = bytearray(path.read_bytes())
    if fault == "flipped":
        content[-1] ^= 1
        path.write_bytes(content)
    elif fault == "cut":
        path.write_bytes(content[:-1])
    elif fault == "missing":
        path.unlink()
    elif fault == "renamed":
        name = state_name(44, 1)
        states[name] = states.pop(state_name(4, 1))
        path.rename(folder / name)
    else:
        name = state_name(4, 2)
        states[name] = states[state_name(4, 1)]
        (folder / name).write_bytes(content)
    with pytest.raises(BadInput) as caught:
        engine_of(six, Standalone(), folder=folder).restore(states)
    assert f"{folder / name}: this checkpoint is damaged" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_state_that_does_not_fit_is_damage(six: Setting, saved: Any) -> None:
    folder, states = saved
    engine = engine_of(six, METHOD, folder=folder)  # whose clients have a Bridge too
    engine.restore(states)
    with pytest.raises(BadInput, match=r"client-0004-round-000001\.safetensors: this checkpoint is damaged") as caught:
        engine.train(Round(1, 4), {4: METHOD.server_init(six.task, six.clients)})
    assert len(str(caught.value).splitlines()) == 1


def test_states_last_before_the_index_is_there(six: Setting, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every file and the folder that names it are flushed before the rename that makes them a checkpoint."""
    log: list[str] = []
    fsync, rename = files.os.fsync, files.os.rename

    def watched_fsync(handle: int) -> None:
        log.append(files.os.readlink(f"/proc/self/fd/{handle}"))
        fsync(handle)

    def watched_rename(path: Path, to: Path) -> None:
        log.append("rename")
        rename(path, to)

    monkeypatch.setattr(files.os, "fsync", watched_fsync)
    monkeypatch.setattr(files.os, "rename", watched_rename)
    engine = engine_of(six, Standalone(), folder=tmp_path / "clients")
    engine.train(Round(0, 4), {0: {}})
    checkpoint.save(tmp_path, 1, {}, engine, IDENTITY)
    names = [Path(entry).name for entry in log]
    cut = names.index("rename")
    assert {state_name(0, 1), "clients", "server.safetensors", "checkpoint.json"} <= set(names[:cut])
