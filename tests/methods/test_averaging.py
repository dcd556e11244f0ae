"""Every method that averages networks: other rules, bounded updates, private means; off, nothing changes."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from asfedbridge.core.errors import BadInput
from asfedbridge.core.method import METHODS
from asfedbridge.core.payload import Payload, clone
from asfedbridge.core.task import ClientInfo, Round, Upload
from asfedbridge.methods.averaging import Averaging

FIRST = Round(0, 2)
NAMES = sorted(name for name, cls in METHODS.items() if issubclass(cls, Averaging))


def played(lab: Any, name: str, spread: float = 0.0, **changes: Any) -> tuple[Payload, Payload, list[ClientInfo]]:
    """Ten clients of one kind, all ones away from what was sent, one of them ``spread`` further; before and after."""
    method = lab.method(name, **changes)
    clients = [replace(lab.info("ann", id=i), train_size=1 + 100 * (i == 3)) for i in range(10)]
    state = method.server_init(lab.task, clients)
    method.check(lab.task, clients)
    ups = {}
    for c in clients:
        sent = method.server_send(state, c, FIRST)
        ups[c.id] = Upload({k: t + 1 + (spread if c.id == 3 else 0) for k, t in sent.items()})
    kept = clone(state)
    new = method.server_round(state, clients, ups, FIRST)
    assert all(torch.equal(state[k], kept[k]) for k in kept)  # the old state is left alone
    down = method.downloads(lab.task, clients[0])
    after = method.server_send(new, clients[0], FIRST)
    assert after.keys() == down.keys()
    return method.server_send(kept, clients[0], FIRST), after, clients


def moved(before: Payload, after: Payload) -> torch.Tensor:
    return torch.cat([(after[k] - before[k]).flatten() for k in sorted(before)]).double()


def test_all_that_average_networks_are_here() -> None:
    assert NAMES == [
        "as-fedbridge", "fedavg", "fedprox", "fml", "isolated-fedavg", "isolated-fedprox", "mh-pflid",
    ]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_an_attacker_moves_the_mean_only(lab: Any, name: str) -> None:
    before, after, _ = played(lab, name, spread=1e6)
    assert moved(before, after).min() > 1e5
    for rule in ("median", "trimmed"):
        before, after, _ = played(lab, name, spread=1e6, aggregation=rule)
        assert moved(before, after).tolist() == pytest.approx([1.0] * len(moved(before, after)), abs=1e-5)
    before, after, _ = played(lab, name, spread=1e6, clip_update=0.5)
    assert moved(before, after).norm() <= 0.5 * 1.001


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("source", ["system", "seed"])
def test_noise_on_a_private_mean(lab: Any, name: str, source: Any) -> None:
    """Deviation noise * clip / clients around the clipped mean, in which all count alike."""
    noise, clip = 3.0, 20.0
    before, after, clients = played(lab, name, 1e6, clip_update=clip, noise=noise, noise_source=source)
    away = moved(before, after)
    mean = clip / len(away) ** 0.5  # every update is as long as may be, and points the same way
    deviation = noise * clip / len(clients)
    assert away.mean().item() == pytest.approx(mean, abs=6 * deviation / len(away) ** 0.5)
    assert away.std().item() == pytest.approx(deviation, rel=6 / (2 * len(away)) ** 0.5)
    again = moved(before, played(lab, name, 1e6, clip_update=clip, noise=noise, noise_source=source)[1])
    assert torch.equal(away, again) == (source == "seed")


@pytest.mark.parametrize("name", NAMES)
def test_a_private_mean_counts_all_alike(lab: Any, name: str) -> None:
    """Two that pull in opposite directions cancel, whatever their sizes."""
    method = lab.method(name, clip_update=1e6, noise=1e-12)
    clients = [replace(lab.info("ann", id=i), train_size=size) for i, size in enumerate((1, 101))]
    state = method.server_init(lab.task, clients)
    sent = method.server_send(state, clients[0], FIRST)
    ups = {i: Upload({k: t + step for k, t in sent.items()}) for i, step in enumerate((1.0, -1.0))}
    after = method.server_send(method.server_round(state, clients, ups, FIRST), clients[0], FIRST)
    assert moved(sent, after).abs().max() < 1e-4


def test_noise_of_two_rounds_and_groups_differs(lab: Any) -> None:
    method = lab.method("isolated-fedavg", clip_update=1.0, noise=1.0, noise_source="seed")
    clients = [lab.info("ann", id=0), lab.info("snn", id=1)]
    state = method.server_init(lab.task, clients)
    ups = {c.id: Upload(method.server_send(state, c, FIRST)) for c in clients}
    first, second = (method.server_round(state, clients, ups, Round(i, 2)) for i in (0, 1))
    name = "classifier.weight"
    noise = [(new[f"{kind}/{name}"] - state[f"{kind}/{name}"]) for new in (first, second) for kind in ("ann", "snn")]
    assert all(not torch.allclose(a, b, atol=1e-3) for i, a in enumerate(noise) for b in noise[:i])
    assert all(noise_.std().item() == pytest.approx(1.0, rel=0.6) for noise_ in noise)


@pytest.mark.parametrize("name", NAMES)
def test_off_means_not_a_bit_changes(lab: Any, name: str) -> None:
    """Bounds that nobody reaches, and settings of rules that are not in use."""
    plain = played(lab, name, spread=2.0)[1]
    for changes in ({"clip_update": 1e9}, {"trim": 0.4}, {"noise_source": "seed"}, {"delta": 0.1}):
        other = played(lab, name, spread=2.0, **changes)[1]
        assert all(torch.equal(plain[key], other[key]) for key in plain), changes


BAD = [
    ({"trim": 0.5}, r"^method\.trim=0\.5 leaves nobody; .*median$"),
    ({"noise": 1.0}, r"^method\.noise=1\.0 .*; set method\.clip_update$"),
    ({"noise": 1.0, "clip_update": 1.0, "aggregation": "median"}, r"not method\.aggregation=median; set one back$"),
    ({"noise": 1.0, "clip_update": 1.0, "delta": 0.0}, r"^method\.delta=0\.0 is out of range"),
    ({"noise": 1.0, "clip_update": 1.0, "bn_buffers": "averaged"}, r"variance negative; use local$"),
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("changes", "text"), BAD)
def test_settings_that_cannot_be(lab: Any, name: str, changes: Any, text: str) -> None:
    with pytest.raises(BadInput, match=text) as error:
        lab.method(name, **changes).check(lab.task, [lab.info()])
    assert "\n" not in str(error.value)


def test_step_sizes_do_not_bear_noise(lab: Any) -> None:
    low = ClientInfo(4, "qnn", "resnet18", 0.125, bits=4)
    with pytest.raises(BadInput, match=r"step sizes of client 4 \(resnet18@0\.125:qnn:b=4\)"):
        lab.method("fedavg", noise=1.0, clip_update=1.0).check(lab.task, [low])


def test_what_a_reader_should_know(lab: Any) -> None:
    assert lab.method("fml").notes(lab.task) == []
    system, seed = (
        lab.method("fml", noise=1.0, clip_update=1.0, noise_source=s).notes(lab.task) for s in ("system", "seed")
    )
    assert len(system) == 1
    assert "count equally" in system[0]
    assert "protects from nobody who knows it" in seed[1]
