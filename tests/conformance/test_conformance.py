"""The same bits in process, over bytes, in workers, in any order and after a resume: every method, every switch."""

import dataclasses
import inspect
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

import asfedbridge.methods  # noqa: F401  registers every method
from asfedbridge.core.client import Client
from asfedbridge.core.errors import BadInput
from asfedbridge.core.method import METHODS, Method
from asfedbridge.core.task import Round
from asfedbridge.engines import checkpoint
from asfedbridge.engines.local import LocalEngine
from asfedbridge.engines.loop import play_round
from asfedbridge.methods.bridge_sharing import BridgeSharing

SIZES = {"bridge_width": 0.34}  # hyper-parameters that only make a model smaller
LONG = pytest.mark.long
REPEATED = pytest.mark.exhaustive  # the same path with another method or switch; see the test's docstring
IDENTITY = {"specification": "a", "data": "b", "partition": "c"}


def make(name: str, **changes: Any) -> Method:
    fields = {f.name for f in dataclasses.fields(METHODS[name])}
    return METHODS[name](**{k: v for k, v in SIZES.items() if k in fields} | changes)


def switches(name: str) -> list[dict[str, Any]]:
    """Every choice and truth value of a method's own fields that is not the default, one at a time."""
    found = []
    own = inspect.get_annotations(METHODS[name])  # an inherited switch is tried with the class it comes from
    if issubclass(METHODS[name], BridgeSharing):  # which is no method itself
        own |= inspect.get_annotations(BridgeSharing)
    for field in (f for f in dataclasses.fields(METHODS[name]) if f.name in own):
        hint = get_type_hints(METHODS[name])[field.name]
        choices = (True, False) if hint is bool else get_args(hint) if get_origin(hint) is Literal else ()
        found += [{field.name: choice} for choice in choices if choice != field.default]
    return found


def label(value: Any) -> str:
    return ",".join(f"{k}={v}" for k, v in value.items()) or "default" if isinstance(value, dict) else str(value)


SWITCHED = [(name, change) for name in sorted(METHODS) for change in switches(name)]


def test_the_ablations_are_among_the_switches() -> None:
    changed = {key for name, change in SWITCHED if name == "as-fedbridge" for key in change}
    assert {"direction", "pseudo_spike", "personal_head", "pspr", "quantise", "rate_loss", "bn_buffers"} <= changed


@pytest.mark.parametrize("participation", [pytest.param(1.0, marks=LONG), 0.5])
@pytest.mark.parametrize("name", sorted(METHODS))
def test_over_bytes_is_the_same_to_the_bit(federation: Any, name: str, participation: float) -> None:
    method = make(name)
    over_bytes = federation.play_over_bytes(method, participation)
    assert federation.plain(method, participation).differences(over_bytes) == []


# Methods that do not ask what a client's tensors are.
ANY = [("as-fedbridge", {}), ("fedproto", {}), ("fml", {}), ("standalone", {}), ("fedfree", {"mismatch": "prefix"})]


@pytest.mark.parametrize(("name", "change"), ANY, ids=label)
def test_other_models_are_the_same_over_bytes(mixed: Any, name: str, change: Any) -> None:
    method = make(name, **change)
    method.check(mixed.task, mixed.infos)
    assert mixed.plain(method).differences(mixed.play_over_bytes(method, backwards=True)) == []


def test_other_models_are_the_same_in_workers(mixed: Any, tmp_path: Path) -> None:
    method = make("as-fedbridge")
    assert mixed.plain(method).differences(mixed.play_in_pool(method, tmp_path)) == []


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "fedfree", "isolated-fedavg", "isolated-fedprox", "sfedhifi"])
def test_what_needs_equal_tensors_refuses_other_models(mixed: Any, name: str) -> None:
    with pytest.raises(BadInput, match=f"method={name}") as error:
        make(name).check(mixed.task, mixed.infos)
    assert "\n" not in str(error.value)
    assert "client" in str(error.value)


@LONG
@pytest.mark.parametrize(("name", "change"), SWITCHED, ids=label)
def test_every_switch_is_the_same_over_bytes(federation: Any, name: str, change: Any) -> None:
    """With some clients away and the others in the opposite order."""
    method = make(name, **change)
    over_bytes = federation.play_over_bytes(method, participation=0.5, backwards=True)
    assert federation.plain(method, 0.5).differences(over_bytes) == []


@pytest.mark.parametrize("participation", [pytest.param(1.0, marks=REPEATED), 0.5])
@pytest.mark.parametrize("name", sorted(METHODS))
def test_in_workers_is_the_same_to_the_bit(federation: Any, tmp_path: Path, name: str, participation: float) -> None:
    """With all clients in every round, the path is that of ``test_the_number_of_workers_changes_nothing``."""
    method = make(name)
    in_pool = federation.play_in_pool(method, tmp_path, participation)
    assert federation.plain(method, participation).differences(in_pool) == []


def workers_and_switches() -> list[Any]:
    """A worker does not look at a method's switches, so the first of each method is enough; all of AS-FedBridge."""
    seen: set[str] = set()
    found = []
    for name, change in SWITCHED:
        again = name in seen and name != "as-fedbridge"
        found.append(pytest.param(name, change, marks=REPEATED if again else LONG, id=f"{name}-{label(change)}"))
        seen.add(name)
    return found


@pytest.mark.parametrize(("name", "change"), workers_and_switches())
def test_every_switch_is_the_same_in_workers(federation: Any, tmp_path: Path, name: str, change: Any) -> None:
    """Every switch is played over bytes above, where methods and messages are rebuilt, as they are in workers."""
    method = make(name, **change)
    in_pool = federation.play_in_pool(method, tmp_path, participation=0.5)
    assert federation.plain(method, 0.5).differences(in_pool) == []


@pytest.mark.parametrize("workers", [pytest.param(1, marks=LONG), 3])
def test_the_number_of_workers_changes_nothing(federation: Any, tmp_path: Path, workers: int) -> None:
    method = make("as-fedbridge")
    in_pool = federation.play_in_pool(method, tmp_path, workers=workers)
    assert federation.plain(method).differences(in_pool) == []


@LONG
def test_every_switch_of_as_fedbridge_does_something(federation: Any) -> None:
    """Otherwise the comparison above would compare a configuration with itself."""
    plain = federation.plain(make("as-fedbridge"), 0.5)
    # Where both directions are open, nobody only receives; these shards are of equal size.
    without_effect = {"receivers", "weights"}
    for change in (c for c in switches("as-fedbridge") if not c.keys() <= without_effect):
        assert plain.differences(federation.plain(make("as-fedbridge", **change), 0.5)), change


AVERAGED: list[tuple[str, dict[str, Any]]] = [  # switches that several methods inherit
    ("isolated-fedavg", {"aggregation": "median", "clip_update": 0.1}),
    ("as-fedbridge", {"aggregation": "trimmed"}),
    ("fedavg", {"aggregation": "geometric"}),
    ("fml", {"aggregation": "krum", "trim": 0.3}),
    ("fedproto", {"aggregation": "geometric"}),
    ("fedtgp", {"aggregation": "median"}),
    ("fedfree", {"aggregation": "geometric"}),
    ("sfedhifi", {"aggregation": "geometric"}),
    ("as-fedbridge", {"clip_update": 0.1, "noise": 0.1, "noise_source": "seed"}),
]


@pytest.mark.parametrize(("name", "change"), AVERAGED, ids=label)
def test_other_averages_are_the_same_over_bytes(federation: Any, name: str, change: Any) -> None:
    method = make(name, **change)
    plain = federation.play(method, federation.engine(method))
    assert plain.differences(federation.play_over_bytes(method, backwards=True)) == []
    assert plain.differences(federation.plain(make(name)))


COMPRESSED = [
    ("as-fedbridge", "int8"),
    ("fedproto", "int8"),
    ("as-fedbridge", "fp16"),
    ("fedavg", "int8"),
    ("sfedhifi", "fp16"),
]  # the first two always: with and without private state


@pytest.mark.parametrize(
    ("name", "codec"), [*COMPRESSED[:2], *(pytest.param(*values, marks=LONG) for values in COMPRESSED[2:])]
)
def test_compressed_is_the_same_everywhere(federations: Any, tmp_path: Path, name: str, codec: str) -> None:
    """With some clients away in some rounds: what they owe waits for them."""
    method, federation = make(name), federations[codec]
    plain = federation.plain(method, 0.5)
    assert plain.differences(federation.play_over_bytes(method, 0.5, backwards=True)) == []
    assert plain.differences(federation.play_in_pool(method, tmp_path, 0.5)) == []
    assert plain.differences(federations["none"].plain(method, 0.5))  # it does something
    owing = [i for i, state in plain.trained.items() if any(key.startswith("residual/") for key in state)]
    assert owing == (sorted(plain.trained) if method.continues else [])


@pytest.mark.parametrize("name", sorted(METHODS))
def test_order_of_execution_changes_nothing(federation: Any, backwards_engine: Any, name: str) -> None:
    method = make(name)
    backwards = federation.play(method, federation.engine(method, backwards_engine))
    assert federation.plain(method).differences(backwards) == []


RESUMED = [(name, "local", "local", "none") for name in sorted(METHODS)]
# What passes from engine to engine are files, whatever the method.
RESUMED += [("as-fedbridge", "local", "pool", "none")]
AGAIN = [("as-fedbridge", "pool", "pool", "none"), ("as-fedbridge", "pool", "local", "none")]
# What rounding left over is private state like any other; prototypes have none.
RESUMED += [("as-fedbridge", "local", "local", "int8")]
AGAIN += [(name, "local", "local", codec) for name, codec in COMPRESSED[1:]]
AGAIN += [("fedavg", "local", "pool", "int8")]


@pytest.mark.parametrize(
    ("name", "first", "second", "codec"), [*RESUMED, *(pytest.param(*values, marks=LONG) for values in AGAIN)]
)
def test_resumed_is_uninterrupted(
    federations: Any, pool_engine: Any, tmp_path: Path, name: str, first: str, second: str, codec: str
) -> None:
    """At every boundary between rounds, with clients in the checkpoint that have and have not trained yet."""
    method, federation = make(name), federations[codec]
    kinds = {"local": LocalEngine, "pool": pool_engine}

    def start(kind: str, root: Path) -> Any:
        return closing(federation.engine(method, kinds[kind], folder=root / checkpoint.CLIENTS, at_work=2))

    def keep(rnd: Round, state: Any) -> None:
        if not rnd.closing:
            checkpoint.save(tmp_path / "last", rnd.index + 1, state, engine, IDENTITY)
            shutil.copytree(tmp_path / "last", tmp_path / f"after-{rnd.index}")

    with start(first, tmp_path / "last") as engine:
        played = federation.play(method, engine, 0.5, after=keep)
    plain = federation.plain(method, 0.5)
    played.clients = {}  # what the closing visit does to clients is not kept when only two have room
    assert plain.differences(played) == []  # looking changes nothing
    for index in range(federation.task.rounds):
        with start(second, tmp_path / f"after-{index}") as fresh:
            restored = checkpoint.load(tmp_path / f"after-{index}", fresh, IDENTITY)
            assert restored is not None
            assert restored.next_round == index + 1
            resumed = federation.play(method, fresh, 0.5, restored.next_round, restored.server)
        assert {i for i, _ in resumed.metrics} == set(range(index + 1, federation.task.rounds + 1))
        resumed.metrics = {key: plain.metrics[key] for key in plain.metrics if key[0] <= index} | resumed.metrics
        resumed.trained = resumed.trained or played.trained  # nothing but the closing visit was left
        resumed.clients = {}
        assert plain.differences(resumed) == []


@pytest.mark.parametrize("name", sorted(METHODS))
def test_memory_is_never_shared(federation: Any, name: str) -> None:
    """No tensor of the server, an upload or a client lies in memory that another of them uses."""
    method = make(name)
    engine = federation.engine(method)
    rnd = Round(0, federation.task.rounds)
    state = method.server_init(federation.task, federation.infos)
    server, _, ups = play_round(method, federation.task, engine, state, rnd, federation.infos)
    places = {"old server": state, "server": server}
    for info in federation.infos:
        client: Client = engine.host._clients[info.id]
        live = {f"{m}.{k}": t for m, module in client.modules.items() for k, t in module.state_dict().items()}
        live |= {f"{m}.{k}": t for m, buffers in client.momentum.items() for k, t in buffers.items()}
        places |= {f"client {info.id}": live, f"up {info.id}": ups[info.id].payload}
        places[f"state {info.id}"] = engine.client_state(info.id)
    seen: dict[int, str] = {}
    clashes = []
    for place, tensors in places.items():
        # A method without aggregation may hand its state on as it is; a copy is made when it is sent.
        if place == "server" and server is state:
            continue
        for key, tensor in tensors.items():
            owner = seen.setdefault(tensor.untyped_storage().data_ptr(), place)
            if owner != place:
                clashes.append(f"{place}: {key} lies in {owner}")
    assert clashes == []


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_client_that_spoils_its_download_spoils_nobody_else(
    federation: Any, to_bits: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    method = make(name)
    rnd = Round(0, federation.task.rounds)

    def play(spoil: bool) -> tuple[Any, Any, dict[int, Any]]:
        engine = federation.engine(method)
        original = METHODS[name].client_receive

        def receive(self: Method, client: Client, down: Any, where: Round) -> None:
            original(self, client, down, where)
            if spoil and client.info.id == 0:
                for tensor in down.values():
                    tensor.fill_(1e3)

        with monkeypatch.context() as patch:
            patch.setattr(METHODS[name], "client_receive", receive)
            state = method.server_init(federation.task, federation.infos)
            server, _, _ = play_round(method, federation.task, engine, state, rnd, federation.infos)
        return to_bits(server), to_bits(state), {c.id: to_bits(engine.client_state(c.id)) for c in federation.infos}

    assert play(spoil=True) == play(spoil=False)
