"""Two of six clients send what no honest client would, in every method: the round goes on, and its state stays sane.

The honest clients train once for each method and round; their replies are played back beside those of the hostile.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("flwr")
from flwr.app import Message
from tests.deploy.grid import InProcessGrid, copied

from asfedbridge.core.method import METHODS, Method
from asfedbridge.core.norms import rms
from asfedbridge.core.payload import Payload
from asfedbridge.core.task import Round
from asfedbridge.deploy import node_registry, polling
from asfedbridge.deploy.codec import pack, unpack
from asfedbridge.deploy.engine import FlowerEngine
from asfedbridge.deploy.node import Site, make_client_app
from asfedbridge.deploy.node_registry import Roster
from asfedbridge.engines.failures import Event, Tolerance
from asfedbridge.engines.loop import play_round
from asfedbridge.models.layers import by_layer
from asfedbridge.runs.recipes import quickstart
from asfedbridge.runs.setting import Setting, prepare
from asfedbridge.runs.spec import apply_overrides

FLEET = {
    "fleet": "3*resnet18@0.125:ann,3*resnet18@0.125:snn",
    "T": 2,
    "train_per_class": 6,
    "test_per_class": 2,
    "batch_size": 16,
    "feature_dim": 16,
    "partition": "iid",
    "rounds": 3,
}
HOSTILE = {1, 4}  # an ANN and an SNN
FIELDS: dict[str, dict[str, Any]] = {  # small, and so that everything there is to attack is sent
    "as-fedbridge": {"bridge_width": 0.25},
    "fml": {"bridge_width": 0.25, "personal_head": False},
    "mh-pflid": {"bridge_width": 0.25, "bn_buffers": "averaged"},
    "fedavg": {"bn_buffers": "averaged"},
    "fedproto": {"proto_weight": "size"},
    "fedtgp": {"server_epochs": 5},
    "fedfree": {"server_steps": 2},
}
Change = Callable[[Method, Payload, dict[str, Any]], None]  # of an upload's payload and metrics, in place


def values(make: Callable[[Tensor], Tensor]) -> Change:
    def change(method: Method, up: Payload, metrics: dict[str, Any]) -> None:
        up.update({name: make(t) for name, t in up.items()})

    return change


def metric(name: str, value: float) -> Change:
    def change(method: Method, up: Payload, metrics: dict[str, Any]) -> None:
        metrics[name] = value

    return change


def only(choose: Callable[[list[str]], Iterable[str]]) -> Change:
    def change(method: Method, up: Payload, metrics: dict[str, Any]) -> None:
        kept = set(choose(list(up)))
        for name in [n for n in up if n not in kept]:
            del up[name]

    return change


def named(ending: str, value: float) -> Change:
    """All tensors with this in their name; the others stay."""

    def change(method: Method, up: Payload, metrics: dict[str, Any]) -> None:
        up.update({name: torch.full_like(t, value) for name, t in up.items() if ending in name})

    return change


def one_value(value: float) -> Change:
    def change(method: Method, up: Payload, metrics: dict[str, Any]) -> None:
        name = max(up, key=lambda n: up[n].numel())
        up[name].view(-1)[0] = value

    return change


def alternating(t: Tensor) -> Tensor:
    return torch.where(torch.arange(t.numel()).view(t.shape) % 2 == 0, 3e38, -3e38)


# Refused by name: wherever there is something to attack.
REFUSED: dict[str, Change] = {
    "nan": values(lambda t: torch.full_like(t, math.nan)),
    "inf": values(lambda t: torch.full_like(t, math.inf)),
    "one-nan": one_value(math.nan),
    "1e30": values(lambda t: torch.full_like(t, 1e30)),
    "3e38": values(lambda t: torch.full_like(t, 3e38)),
    "-3e38": values(lambda t: torch.full_like(t, -3e38)),
    "both-signs": values(alternating),
    "one-1e38": one_value(1e38),
    "scaled": values(lambda t: t * 1e6 + 1e5),
    "missing": only(lambda names: []),
    "metric-1e300": metric("local.ce", 1e300),
    "metric-nan": metric("local.ce", math.nan),
    "metric-beyond-float32": metric("local.ce", -3.5e38),
    "accuracy-1e38": metric("trained.accuracy", 1.7e38),
    "accuracy-negative": metric("received.accuracy", -5.0),
    "accuracy-101": metric("trained.bridge_accuracy", 101.0),
    "seconds-negative": metric("seconds", -1.0),
    "weight-2": metric("trained.fused_weight", 2.0),
}
# The same for what only some methods send.
SOME_REFUSED: dict[str, tuple[str, Change]] = {
    "count-0": ("count/", named("count/", 0.0)),
    "count-negative": ("count/", named("count/", -1.0)),
    "count-1e30": ("count/", named("count/", 1e30)),
    "count-half": ("count/", named("count/", 2.5)),
    "count-too-many": ("count/", named("count/", 1000.0)),
    "count-missing": ("count/", only(lambda names: [n for n in names if not n.startswith("count/")])),
    "class-missing": ("count/", only(lambda names: [n for n in names if n.startswith("count/") or n == "class/0"])),
    "negative-variance": ("running_var", named("running_var", -1.0)),
    "huge-port": ("log_scale", named("log_scale", 89.0)),
    "firing": ("firing", named("firing", 1e30)),
    "firing-negative": ("firing", named("firing", -1.0)),
}
# The methods that send tensors of these names.
SENDERS = {
    "count/": {"fedproto"},
    "running_var": {"fedavg", "mh-pflid"},
    "log_scale": {"as-fedbridge", "fml", "mh-pflid"},
    "firing": {"sfedhifi"},
}
SILENT = {"standalone"}  # sends no tensors
REPORTED = ("metric", "accuracy", "seconds", "weight")  # attacks on reported numbers
# Nothing that one upload shows to be wrong: it may count, but must not break anything.
HARMLESS: dict[str, Change] = {
    "zeros": values(torch.zeros_like),
    "constant": values(torch.ones_like),
    "sign-flip": values(lambda t: -t),
    "tiny": values(lambda t: torch.full_like(t, 1e-38)),
    "first-only": only(lambda names: names[:1]),
    "metrics-missing": lambda method, up, metrics: metrics.clear(),
}


class Playback(InProcessGrid):
    """Nodes train once for every round; what they replied then is their reply ever after."""

    def __init__(self, nodes: dict[int, Any]) -> None:
        super().__init__(nodes)
        self._kept: dict[tuple[int, int], Any] = {}

    def _answer(self, node: int, message: Message, number: str) -> Message | None:
        if message.metadata.message_type != "train":
            return super()._answer(node, message, number)
        place = (node, message.content["about"]["round"])
        if place not in self._kept:
            reply = super()._answer(node, message, number)
            assert reply is not None
            self._kept[place] = reply.content
        kind, ttl = message.metadata.message_type, message.metadata.ttl
        theirs = Message(copied(message.content), dst_node_id=node, message_type=kind, ttl=ttl)
        theirs.metadata.__dict__["_message_id"] = number
        return self.meddle(node, theirs, Message(copied(self._kept[place]), reply_to=theirs))


def give(site: Site, context: Any) -> Site:
    return site


class Stage:
    """A method, its six nodes, and the server's state before and after two honest rounds."""

    def __init__(self, name: str, setting: Setting, folder: Path) -> None:
        self.method, self.setting = METHODS[name](**FIELDS.get(name, {})), setting
        sites = [
            Site(self.method, setting.task, info, shard, folder / f"{name}-{info.id}", {})
            for info, shard in zip(setting.clients, setting.shards, strict=True)
        ]
        self.grid = Playback({10 + site.info.id: (make_client_app(partial(give, site)), {}) for site in sites})
        self.states = [self.method.server_init(setting.task, setting.clients)]
        for index in range(2):
            state, told, _ = self.play(index)
            assert told == []
            self.states.append(state)

    def play(self, index: int) -> tuple[Payload, list[Event], dict[int, Any]]:
        told: list[Event] = []
        tolerance = Tolerance(lambda _, event: told.append(event), pause=0.0)
        roster = Roster(self.grid, self.setting.clients, {})
        roster.gather(0.0, told.append)
        engine = FlowerEngine(self.grid, roster, self.method, self.setting.task, tolerance, "0123456789abcdef", 60.0)
        engine._since = dict.fromkeys(range(6), index)
        before = self.states[index]
        kept = {name: t.clone() for name, t in before.items()}
        clients = self.setting.clients
        state, _, ups = play_round(self.method, self.setting.task, engine, before, Round(index, 3), clients, tolerance)
        assert before.keys() == kept.keys()
        assert all(torch.equal(before[name], kept[name]) for name in kept), "server_round changed the state"
        return state, told, dict(ups)

    def declared(self, client: int) -> dict[str, tuple[int, ...]]:
        return self.method.uploads(self.setting.task, self.setting.clients[client])

    def attack(self, change: Change, hostile: set[int]) -> None:
        def meddle(node: int, message: Message, reply: Message) -> Message:
            client = node - 10
            if message.metadata.message_type != "train" or client not in hostile:
                return reply
            declared = self.declared(client)
            up, about, metrics = unpack(reply.content, declared, "none", "honest")
            up, metrics = {name: t.clone() for name, t in up.items()}, dict(metrics)
            change(self.method, up, metrics)
            return Message(pack(up, declared, about, metrics), reply_to=message)

        self.grid.meddle = meddle


@pytest.fixture(scope="session")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    return prepare(apply_overrides(quickstart(), FLEET), Path(tmp_path_factory.mktemp("data")))


def methods(names: Iterable[str] = METHODS) -> list[Any]:
    """One of each way to aggregate at once, the others in the long tests. Centralized is not federated."""
    first = ("as-fedbridge", "fedavg", "fedfree", "fedproto", "standalone")
    return [
        pytest.param(name, marks=() if name in first else pytest.mark.long)
        for name in sorted(set(names) - {"centralized"})
    ]


def pairs(senders: Mapping[str, Iterable[str]]) -> list[Any]:
    """A method and an attack, from the methods that each attack applies to. Pairs of one method are neighbours, so that
    its stage is built once."""
    found = [
        pytest.param(*param.values, attack, marks=param.marks)
        for attack, names in senders.items()
        for param in methods(names)
    ]
    return sorted(found, key=lambda pair: str(pair.values[0]))


@pytest.fixture(scope="session")
def stage_of(setting: Setting, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Stage]:
    """The stage of a method, built once in each process, in whatever order it gets its cases."""
    stages: dict[str, Stage] = {}

    def get(name: str) -> Stage:
        if name not in stages:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(polling, "POLL", 0.0)
                patch.setattr(node_registry, "GRACE", 0.2)
                stages[name] = Stage(name, setting, tmp_path_factory.mktemp("nodes"))
        return stages[name]

    return get


@pytest.fixture(scope="module", params=methods())
def stage(request: pytest.FixtureRequest, stage_of: Callable[[str], Stage]) -> Stage:
    return stage_of(request.param)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "POLL", 0.0)
    monkeypatch.setattr(node_registry, "GRACE", 0.2)


def check_round(stage: Stage, index: int, hostile: set[int], refused: bool | None) -> None:
    """``refused``: None if either is right."""
    state, told, ups = stage.play(index)
    named = {e.client for e in told if e.what == "refused"}
    assert named <= hostile, told
    if refused is not None:
        assert named == (hostile if refused else set()), told
    assert set(ups) == set(range(6)) - named
    assert all(f"client {e.client} " in e.reason for e in told if e.what == "refused")
    assert all(torch.isfinite(t).all() for t in state.values() if t.is_floating_point())
    assert rms(state) <= 4 * max(rms(stage.states[index + 1]), 1.0)
    for name, t in state.items():
        if name.endswith("running_var"):
            assert (t >= 0).all()


def test_the_methods_of_an_attack_are_all_that_send_such_tensors(stage: Stage) -> None:
    declared = [name for client in HOSTILE for name in stage.declared(client)]
    assert (not declared) == (stage.method.name in SILENT)
    sent = {ending for ending in SENDERS if any(ending in name for name in declared)}
    assert sent == {ending for ending, names in SENDERS.items() if stage.method.name in names}


@pytest.mark.parametrize(
    ("stage", "attack"),
    pairs({attack: set(METHODS) - (set() if attack.startswith(REPORTED) else SILENT) for attack in REFUSED}),
    indirect=["stage"],
)
def test_what_is_wrong_is_refused_by_name(stage: Stage, attack: str) -> None:
    stage.attack(REFUSED[attack], HOSTILE)
    for index in range(2):
        check_round(stage, index, HOSTILE, True)


@pytest.mark.parametrize(
    ("stage", "attack"),
    pairs({attack: SENDERS[ending] for attack, (ending, _) in SOME_REFUSED.items()}),
    indirect=["stage"],
)
def test_what_makes_no_sense_in_a_method_is_refused_by_name(stage: Stage, attack: str) -> None:
    ending, change = SOME_REFUSED[attack]
    hostile = {c for c in HOSTILE if any(ending in name for name in stage.declared(c))}
    stage.attack(change, hostile)
    for index in range(2):
        check_round(stage, index, hostile, True)


@pytest.mark.parametrize("attack", HARMLESS)
def test_what_could_be_honest_breaks_nothing(stage: Stage, attack: str) -> None:
    stage.attack(HARMLESS[attack], HOSTILE)
    for index in range(2):
        check_round(stage, index, HOSTILE, None)


@pytest.mark.parametrize("choice", ["all-layers", "biases-only", "weights-only"])
def test_layers_are_whole_and_no_more_than_agreed(stage_of: Callable[[str], Stage], choice: str) -> None:
    stage = stage_of("fedfree")
    declared = stage.declared(1)
    whole = by_layer(declared)
    biased = next(layer for layer, parts in whole.items() if "bias" in parts)
    names = {
        "all-layers": list(declared),
        "biases-only": [f"{biased}.bias"],
        "weights-only": [f"{biased}.weight"],
    }[choice]

    def change(method: Method, up: Payload, metrics: dict[str, Any]) -> None:
        up.clear()
        up.update({name: torch.zeros(declared[name]) for name in names})

    stage.attack(change, HOSTILE)
    for index in range(2):
        check_round(stage, index, HOSTILE, True)
