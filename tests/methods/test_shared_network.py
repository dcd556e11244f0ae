"""Tests for FML and MH-pFLID: the shared Bridge-like network and its exchange."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import asfedbridge.methods  # noqa: F401  registers every method
from asfedbridge.core import payload
from asfedbridge.core.errors import BadInput
from asfedbridge.core.method import METHODS
from asfedbridge.core.task import Kind, Round, Task, Upload
from asfedbridge.models.zoo import bridge_of

FIRST = Round(0, 2)
SHARED = {"fml": "meme", "mh-pflid": "messenger"}  # by method: the module that is shared
KINDS: list[Kind] = ["ann", "snn"]

Bytes = Callable[[nn.Module], dict[str, bytes]]

pytestmark = pytest.mark.parametrize("name", sorted(SHARED))


def fleet(lab: Any) -> list[Any]:
    return [lab.info(KINDS[i % 2], id=i, train_size=n) for i, n in enumerate((1, 2, 3, 2))]


def uploads() -> dict[int, Upload]:
    return {i: Upload({"w": torch.tensor([v, 1.0])}) for i, v in enumerate((8.0, 16.0, 0.0, -4.0))}


# sizes


@pytest.mark.parametrize(("personal", "megabytes"), [(True, 3.93), (False, 4.02)])
def test_payload_size(lab: Any, name: str, personal: bool, megabytes: float) -> None:
    """The paper's 3.93 MB is the body; a head for 100 classes adds 0.10."""
    method, task, client = METHODS[name](personal_head=personal), Task(100, 3, 32), lab.info()  # type: ignore[call-arg]
    down = method.server_send(method.server_init(task, [client]), client, FIRST)
    assert round(payload.size_in_bytes(down) / payload.MB, 2) == megabytes
    for declared in (method.downloads(task, client), method.uploads(task, client)):
        assert declared == {key: tuple(t.shape) for key, t in down.items()}
        assert any("head" in key for key in declared) != personal


def test_initial_network_equals_the_bridge(lab: Any, to_bytes: Bytes, name: str) -> None:
    """Same architecture, size and values, on server and clients."""
    bridge = to_bytes(bridge_of(lab.client(lab.method("as-fedbridge"))))
    for personal in (True, False):
        method = lab.method(name, personal_head=personal)
        for kind in KINDS:
            assert to_bytes(bridge_of(lab.client(method, kind, id=3), SHARED[name])) == bridge
        start = {key: t.numpy().tobytes() for key, t in method.server_init(lab.task, []).items()}
        prefix = "body." if personal else ""
        assert start.items() <= {key.removeprefix(prefix): content for key, content in bridge.items()}.items()


def test_width_and_norm_follow_the_fields(lab: Any, name: str) -> None:
    method = lab.method(name, bridge_width=0.25, bridge_norm="group", bn_buffers="averaged")
    client = lab.client(method)
    body = bridge_of(client, SHARED[name]).body
    assert body.stem.out_channels == 6  # a quarter of 24
    assert isinstance(body.norm, nn.GroupNorm)
    up = lab.turn(method, client).payload
    assert up["stem.weight"].shape[0] == 6
    assert up.keys() == {key for key, _ in body.named_parameters()}  # GroupNorm has no statistics


# payloads


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("personal", [True, False])
def test_only_the_shared_part_is_uploaded(lab: Any, name: str, personal: bool, kind: Kind) -> None:
    method = lab.method(name, personal_head=personal)
    client = lab.client(method, kind)
    up = lab.turn(method, client).payload
    network = bridge_of(client, SHARED[name])
    shared = dict((network.body if personal else network).named_parameters())
    assert up.keys() == shared.keys()
    assert all(torch.equal(up[key], p) for key, p in shared.items())


@pytest.mark.parametrize("personal", [True, False])
def test_download_replaces_only_the_shared_part(lab: Any, to_bytes: Bytes, name: str, personal: bool) -> None:
    method = lab.method(name, personal_head=personal)
    client = lab.client(method)
    network = bridge_of(client, SHARED[name])
    before = {key: to_bytes(module) for key, module in client.modules.items() if key != SHARED[name]}
    head, statistics = to_bytes(network.head), network.body.norm.running_mean.clone()
    down = {key: torch.full(shape, 0.5) for key, shape in method.downloads(client.task, client.info).items()}
    method.client_receive(client, down, FIRST)
    assert all((p == 0.5).all() for p in network.body.parameters())
    assert {key: to_bytes(client.modules[key]) for key in before} == before
    assert (to_bytes(network.head) == head) == personal
    assert torch.equal(network.body.norm.running_mean, statistics)


def test_averaged_statistics_are_exchanged_in_both_directions(lab: Any, name: str) -> None:
    method = lab.method(name, bn_buffers="averaged")
    client = lab.client(method)
    body = bridge_of(client, SHARED[name]).body
    up = lab.turn(method, client).payload
    statistics = {key: b for key, b in body.named_buffers() if key.endswith(("mean", "var"))}
    assert statistics
    assert all(torch.equal(up[key], b) for key, b in statistics.items())
    method.client_receive(client, {key: torch.full_like(t, 0.5) for key, t in up.items()}, FIRST)
    assert all((b == 0.5).all() for b in statistics.values())


def test_port_scales_keep_their_initial_values(lab: Any, name: str) -> None:
    """They are not used: no gradient, no momentum, no decay."""
    method = lab.method(name, bridge_weight_decay=1.0)
    clients = {i: lab.client(method, kind, id=i) for i, kind in enumerate(KINDS)}
    infos = [c.info for c in clients.values()]
    state = method.server_init(lab.task, infos)
    scales = {key for key in state if key.endswith("log_scale")}
    assert len(scales) == 5
    for index in range(2):
        ups = {i: lab.turn(method, c, Round(index, 2)) for i, c in clients.items()}
        state = method.server_round(state, infos, ups, Round(index, 2))
        assert all(key in ups[i].payload for i in ups for key in scales)
    assert not any(state[key].any() for key in scales)
    for client in clients.values():
        trained = {key for key, _ in bridge_of(client, SHARED[name]).named_parameters() if "log_scale" not in key}
        assert client.momentum[SHARED[name]].keys() == trained


@pytest.mark.parametrize("momentum", ["keep", "reset"])
def test_momentum_after_a_download(lab: Any, name: str, momentum: str) -> None:
    """Private modules keep their momentum in both cases."""
    method = lab.method(name, bridge_momentum=momentum)
    client = lab.client(method, "snn")
    up = lab.turn(method, client)
    before = {module: payload.clone(buffers) for module, buffers in client.momentum.items()}
    assert before.keys() == client.modules.keys()
    method.client_receive(client, up.payload, Round(1, 2))
    assert client.momentum.keys() == before.keys() - ({SHARED[name]} if momentum == "reset" else set())
    for module, buffers in client.momentum.items():
        assert all(torch.equal(t, before[module][key]) for key, t in buffers.items())


# the server


@pytest.mark.parametrize(
    ("weights", "expected"),
    [("size", (1 * 8 + 2 * 16 + 3 * 0 + 2 * -4) / (1 + 2 + 3 + 2)), ("uniform", (8 + 16 + 0 - 4) / 4)],
)
def test_uploads_are_averaged(lab: Any, name: str, weights: str, expected: float) -> None:
    method, state, ups = lab.method(name, weights=weights), {"w": torch.tensor([99.0, 99.0])}, uploads()
    assert method.server_round(state, fleet(lab), ups, FIRST)["w"].tolist() == [expected, 1.0]
    assert state["w"].tolist() == [99.0, 99.0]
    assert all(torch.equal(up.payload["w"], uploads()[i].payload["w"]) for i, up in ups.items())


@pytest.mark.parametrize(("weights", "expected"), [("size", (2 * 16 + 3 * 0) / (2 + 3)), ("uniform", (16 + 0) / 2)])
def test_absent_clients_have_no_weight(lab: Any, name: str, weights: str, expected: float) -> None:
    method, present = lab.method(name, weights=weights), fleet(lab)[1:3]
    ups = {c.id: uploads()[c.id] for c in present}
    assert method.server_round({}, present, ups, FIRST)["w"].tolist() == pytest.approx([expected, 1.0])


# settings


@pytest.mark.parametrize(
    ("field", "value", "fix"),
    [("temperature", 0.0, "must be above 0"), ("bridge_width", 9.0, "use 0.05 to 4")],
)
def test_bad_values_are_refused_in_one_line(lab: Any, name: str, field: str, value: float, fix: str) -> None:
    lab.method(name).check(lab.task, fleet(lab))
    with pytest.raises(BadInput, match=rf"^method\.{field}={value:.1f} .*{fix}$") as error:
        lab.method(name, **{field: value}).check(lab.task, fleet(lab))
    assert "\n" not in str(error.value)


def test_fleets_of_different_widths_are_accepted(lab: Any, name: str) -> None:
    """Backbone widths may differ: the averaged network has one shape."""
    method = lab.method(name)
    mixed = [lab.info("ann", id=0, width=0.125), lab.info("snn", id=1, width=0.25)]
    method.check(lab.task, mixed)
    assert method.uploads(lab.task, mixed[0]) == method.uploads(lab.task, mixed[1])


def test_settings_of_the_bridge(name: str) -> None:
    method: Any = METHODS[name]()
    assert (method.bridge_lr, method.bridge_weight_decay, method.bridge_width) == (0.004, 1e-4, 1.0)
    assert (method.bridge_norm, method.bridge_momentum, method.bn_buffers) == ("batch", "keep", "local")
    assert (method.weights, method.personal_head, method.temperature) == ("capped", True, 1.0)
