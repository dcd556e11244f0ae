"""A federation small enough to play many times, and an engine that keeps nothing between two messages but bytes."""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from asfedbridge.core.client import Shard
from asfedbridge.core.method import Method
from asfedbridge.core.payload import Payload
from asfedbridge.core.task import ClientInfo, Neuron, Optimiser, Round, Task, Upload
from asfedbridge.engines.files import read_tensors
from asfedbridge.engines.host import owner
from asfedbridge.engines.local import LocalEngine
from asfedbridge.engines.loop import count_at_work, draw, federate, play_round
from asfedbridge.engines.pool import PoolEngine
from asfedbridge.engines.turn import build_client, take_turn
from asfedbridge.runs.recipes import quickstart
from asfedbridge.runs.setting import Setting, prepare
from asfedbridge.runs.spec import apply_overrides

SMALL = {
    "fleet": "1*resnet18@0.125:ann,2*resnet18@0.125:snn",
    "T": 2,
    "train_per_class": 3,
    "test_per_class": 2,
    "batch_size": 16,
    "feature_dim": 16,
    "partition": "iid",
    "rounds": 2,
}
Bits = dict[str, tuple[torch.dtype, tuple[int, ...], bytes]]
Metrics = dict[tuple[int, int], dict[str, float]]  # by round and client


def bits(tensors: Mapping[str, Tensor]) -> Bits:
    """Every bit of a payload, in a form that compares NaN with NaN and -0.0 with 0.0 as they are stored."""
    plain = {name: t.detach().contiguous() for name, t in tensors.items()}
    return {name: (t.dtype, tuple(t.shape), t.numpy().tobytes()) for name, t in plain.items()}


def to_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    return safetensors.torch.save(dict(tensors))


def from_bytes(content: bytes) -> Payload:
    return dict(safetensors.torch.load(content))


def rebuilt_method(method: Method) -> Method:
    """The same method from its fields as text: whatever else an instance remembers is lost."""
    fields = json.loads(json.dumps({f.name: getattr(method, f.name) for f in dataclasses.fields(method)}))
    return type(method)(**{k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()})


def rebuilt_task(task: Task) -> Task:
    fields = json.loads(json.dumps(dataclasses.asdict(task)))
    return Task(**fields | {"neuron": Neuron(**fields["neuron"]), "optimiser": Optimiser(**fields["optimiser"])})


def rebuilt_info(info: ClientInfo) -> ClientInfo:
    return ClientInfo(**json.loads(json.dumps(dataclasses.asdict(info))))


class BytesEngine:
    """Every message finds a client that was never there before; its state comes from bytes and goes back to bytes."""

    def __init__(
        self, method: Method, task: Task, infos: Sequence[ClientInfo], shards: Sequence[Shard], backwards: bool = False
    ) -> None:
        self.method, self.task, self.backwards = method, task, backwards
        self.infos = {info.id: info for info in infos}
        self.shards = dict(zip(self.infos, shards, strict=True))
        self.states = {i: to_bytes(self._build(i).state_dict()) for i in self.infos}

    def _build(self, client: int) -> Any:
        method, task, info = rebuilt_method(self.method), rebuilt_task(self.task), rebuilt_info(self.infos[client])
        return build_client(method, task, info, self.shards[client])

    def clients(self) -> Sequence[ClientInfo]:
        found = [rebuilt_info(info) for info in self.infos.values()]
        return found[::-1] if self.backwards else found

    def train(self, rnd: Round, downs: Mapping[int, Payload]) -> dict[int, Upload]:
        replies = {}
        for i in sorted(downs, reverse=self.backwards):
            client = self._build(i)
            client.load_state_dict(from_bytes(self.states[i]))
            down = from_bytes(to_bytes(downs[i]))
            up = take_turn(rebuilt_method(self.method), client, down, Round(rnd.index, rnd.total))
            self.states[i] = to_bytes(client.state_dict())
            replies[i] = Upload(from_bytes(to_bytes(up.payload)), json.loads(json.dumps(up.metrics)))
        return replies

    def client_state(self, client: int) -> Payload:
        return from_bytes(self.states[client])


class BackwardsEngine(LocalEngine):
    """Clients take their turns, and reply, in the opposite order."""

    def clients(self) -> Sequence[ClientInfo]:
        return list(super().clients())[::-1]

    def train(self, rnd: Round, downs: Mapping[int, Payload]) -> dict[int, Upload]:
        return super().train(rnd, {i: downs[i] for i in reversed(list(downs))})


class PoolOfTwo(PoolEngine):
    """Two workers; a client's state is read from the file its worker wrote."""

    def __init__(self, *args: Any, folder: Path, **options: Any) -> None:
        more: dict[str, Any] = {"folder": folder, "workers": 2, "threads": 1} | options
        super().__init__(*args, **more)
        self.folder = folder

    def client_state(self, client: int) -> Payload:
        found = {owner(name): read_tensors(self.folder / name, sha256) for name, sha256 in self.save().items()}
        return found.get(client, {})


@dataclass
class Played:
    server: Bits
    trained: dict[int, Bits]  # every client that took part, after the last round
    clients: dict[int, Bits]  # every client, after the closing visit, where an engine shows it
    metrics: Metrics

    def differences(self, other: "Played") -> list[str]:
        """Names of everything that is not equal to the last bit."""
        pairs: list[tuple[str, Mapping[str, object], Mapping[str, object]]] = [("server", self.server, other.server)]
        pairs += [(f"trained {i}", self.trained[i], other.trained[i]) for i in self.trained]
        pairs += [(f"client {i}", self.clients[i], other.clients[i]) for i in self.clients if other.clients]
        pairs += [(f"metrics {i}", self.metrics.get(i, {}), other.metrics.get(i, {})) for i in self.metrics]
        both = ((self.metrics, other.metrics), (self.trained, other.trained))
        found = [f"keys: {set(a) ^ set(b)}" for a, b in both if set(a) != set(b)]
        for name, ours, theirs in pairs:
            keys = sorted(set(ours) | set(theirs))
            found += [f"{name}: {key}" for key in keys if not _equal(ours.get(key), theirs.get(key))]
        return found


def _equal(a: object, b: object) -> bool:
    return repr(a) == repr(b) if isinstance(a, float) else a == b  # NaN equals NaN, and 0.0 is not -0.0


class Federation:
    """One setting, played in several ways."""

    def __init__(self, setting: Setting) -> None:
        self.task, self.infos, self.shards = setting.task, setting.clients, setting.shards
        self._plain: dict[tuple[Method, float], Played] = {}

    def plain(self, method: Method, participation: float = 1.0) -> Played:
        """What every other way is compared with; played once."""
        key = (method, participation)
        if key not in self._plain:
            self._plain[key] = self.play(method, self.engine(method), participation)
        return self._plain[key]

    def engine(self, method: Method, kind: Callable[..., Any] = LocalEngine, **options: Any) -> Any:
        return kind(method, self.task, self.infos, self.shards, **options)

    def play(
        self,
        method: Method,
        engine: Any,
        participation: float = 1.0,
        start: int = 0,
        state: Payload | None = None,
        after: Callable[[Round, Payload], None] | None = None,
    ) -> Played:
        metrics: Metrics = {}
        trained: dict[int, Bits] = {}

        def after_round(rnd: Round, clients: Any, sent: Any, ups: Mapping[int, Upload], state: Payload) -> None:
            _note(metrics, rnd, ups)
            if rnd.index == rnd.total - 1:
                trained.update(self.trained(engine, participation))
            if after:
                after(rnd, state)

        server = federate(method, self.task, engine, after_round, participation, start, state)
        return self.result(engine, server, trained, metrics)

    def play_over_bytes(self, method: Method, participation: float = 1.0, backwards: bool = False) -> Played:
        """The same loop with everything rebuilt: the method every time, the server's state after every round."""
        engine = self.engine(method, BytesEngine, backwards=backwards)
        clients = sorted(engine.clients(), key=lambda c: c.id)
        metrics: Metrics = {}
        trained: dict[int, Bits] = {}
        content = to_bytes(rebuilt_method(method).server_init(self.task, clients))
        for index in range(self.task.rounds + 1):
            rnd = Round(index, self.task.rounds)
            chosen = draw(clients, participation, self.task.seed, rnd)
            server, _, ups = play_round(
                rebuilt_method(method), rebuilt_task(self.task), engine, from_bytes(content), rnd, chosen
            )
            content = to_bytes(server)
            _note(metrics, rnd, ups)
            if index == self.task.rounds - 1:
                trained = self.trained(engine, participation)
        return self.result(engine, from_bytes(content), trained, metrics)

    def play_in_pool(self, method: Method, folder: Path, participation: float = 1.0, **options: Any) -> Played:
        at_work = count_at_work(len(self.infos), participation)
        with closing(self.engine(method, PoolOfTwo, folder=folder, at_work=at_work, **options)) as engine:
            return self.play(method, engine, participation)

    def trained(self, engine: Any, participation: float) -> dict[int, Bits]:
        rounds = [Round(i, self.task.rounds) for i in range(self.task.rounds)]
        chosen = {c.id for rnd in rounds for c in draw(self.infos, participation, self.task.seed, rnd)}
        return {i: bits(engine.client_state(i)) for i in sorted(chosen)}

    def result(self, engine: Any, server: Payload, trained: dict[int, Bits], metrics: Metrics) -> Played:
        shown = [] if isinstance(engine, PoolEngine) else self.infos
        return Played(bits(server), trained, {c.id: bits(engine.client_state(c.id)) for c in shown}, metrics)


def _note(metrics: Metrics, rnd: Round, ups: Mapping[int, Upload]) -> None:
    for i, up in ups.items():
        metrics[rnd.index, i] = {key: value for key, value in up.metrics.items() if key != "seconds"}


@pytest.fixture(scope="session")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    return prepare(apply_overrides(quickstart(), SMALL), Path(tmp_path_factory.mktemp("data")))


@pytest.fixture(scope="session")
def federation(setting: Setting) -> Federation:
    return Federation(setting)


@pytest.fixture(scope="session")
def federations(setting: Setting, federation: Federation) -> dict[str, Federation]:
    """By how payloads are compressed."""
    found = {"none": federation}
    for codec in ("fp16", "int8"):
        task = dataclasses.replace(setting.task, compress=codec)
        found[codec] = Federation(dataclasses.replace(setting, task=task))
    return found


@pytest.fixture(scope="session")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    """The other families, one client each."""
    fleet = "vgg9@0.125:ann,vgg11@0.125:snn,mobilenet@0.125:snn,resnet18-sew@0.125:ann,resnet18-ms@0.125:snn"
    small = SMALL | {"fleet": fleet, "train_per_class": 4, "rounds": 1}
    return Federation(prepare(apply_overrides(quickstart(), small), Path(tmp_path_factory.mktemp("data"))))


@pytest.fixture
def backwards_engine() -> type[LocalEngine]:
    return BackwardsEngine


@pytest.fixture
def pool_engine() -> type[PoolEngine]:
    return PoolOfTwo


@pytest.fixture
def to_bits() -> Callable[[Mapping[str, Tensor]], Bits]:
    return bits
