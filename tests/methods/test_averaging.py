"""All methods that average networks: robust rules, clipped updates, private means, and the defaults."""

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
    """The state before and after a round of ten clients whose update is 1 everywhere, and ``spread`` more for one."""
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
    assert all(torch.equal(state[k], kept[k]) for k in kept)  # the old state is not modified
    down = method.downloads(lab.task, clients[0])
    after = method.server_send(new, clients[0], FIRST)
    assert after.keys() == down.keys()
    return method.server_send(kept, clients[0], FIRST), after, clients


def moved(before: Payload, after: Payload) -> torch.Tensor:
    return torch.cat([(after[k] - before[k]).flatten() for k in sorted(before)]).double()


def test_all_averaging_methods_are_tested() -> None:
    assert NAMES == [
        "as-fedbridge", "fedavg", "fedprox", "fml", "isolated-fedavg", "isolated-fedprox", "mh-pflid",
    ]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_one_attacker_moves_only_the_mean(lab: Any, name: str) -> None:
    before, after, _ = played(lab, name, spread=1e6)
    assert moved(before, after).min() > 1e5
    for rule in ("median", "trimmed", "krum"):
        before, after, _ = played(lab, name, spread=1e6, aggregation=rule)
        assert moved(before, after).tolist() == pytest.approx([1.0] * len(moved(before, after)), abs=1e-5)
    before, after, _ = played(lab, name, spread=1e6, aggregation="geometric")
    assert (moved(before, after) - 1).norm() < 1e-3  # nine of ten are equal
    before, after, _ = played(lab, name, spread=1e6, clip_update=0.5)
    assert moved(before, after).norm() <= 0.5 * 1.001


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("source", ["system", "seed"])
def test_noise_of_a_private_mean(lab: Any, name: str, source: Any) -> None:
    """Noise of deviation noise * clip / clients around the clipped, unweighted mean."""
    noise, clip = 3.0, 20.0
    before, after, clients = played(lab, name, 1e6, clip_update=clip, noise=noise, noise_source=source)
    away = moved(before, after)
    mean = clip / len(away) ** 0.5  # all updates have maximum norm and the same direction
    deviation = noise * clip / len(clients)
    assert away.mean().item() == pytest.approx(mean, abs=6 * deviation / len(away) ** 0.5)
    assert away.std().item() == pytest.approx(deviation, rel=6 / (2 * len(away)) ** 0.5)
    again = moved(before, played(lab, name, 1e6, clip_update=clip, noise=noise, noise_source=source)[1])
    assert torch.equal(away, again) == (source == "seed")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("weights", "share"), [("uniform", 1 / 5), ("size", 1e8 / (1e8 + 4 * 200)), ("capped", 10 / 14)]
)
def test_weight_of_a_client_with_a_false_size(lab: Any, name: str, weights: Any, share: float) -> None:
    """Four clients of 200 examples send zero updates; one that claims 10^8 sends an update of 1."""
    method = lab.method(name, weights=weights)
    clients = [replace(lab.info("ann", id=i), train_size=10**8 if i == 2 else 200) for i in range(5)]
    state = method.server_init(lab.task, clients)
    sent = method.server_send(state, clients[0], FIRST)
    ups = {i: Upload({k: t + (i == 2) for k, t in sent.items()}) for i in range(5)}
    after = method.server_send(method.server_round(state, clients, ups, FIRST), clients[0], FIRST)
    assert moved(sent, after).tolist() == pytest.approx([share] * len(moved(sent, after)), abs=1e-5)
    assert lab.method(name).weights == "capped"


def test_cap_uses_the_median_of_all_clients_of_the_round(lab: Any) -> None:
    """One kind has an honest client and one with a false size: its cap depends on the other kind's clients too."""
    method = lab.method("isolated-fedavg", weight_cap=2.0)
    sizes = (10, 10**8, 10, 10, 10)
    clients = [replace(lab.info("ann" if i < 2 else "snn", id=i), train_size=size) for i, size in enumerate(sizes)]
    state = method.server_init(lab.task, clients)
    sent = method.server_send(state, clients[0], FIRST)
    ups = {i: Upload({k: t + (i == 1) for k, t in sent.items()}) for i in range(5)}
    after = method.server_send(method.server_round(state, clients, ups, FIRST), clients[0], FIRST)
    assert moved(sent, after).tolist() == pytest.approx([2 / 3] * len(moved(sent, after)), abs=1e-5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("weights", ["uniform", "size", "capped"])
def test_private_mean_is_unweighted(lab: Any, name: str, weights: Any) -> None:
    """Opposite updates cancel regardless of size, because one client changes the mean by at most clip_update / n."""
    method = lab.method(name, clip_update=1e6, noise=1e-12, weights=weights)
    clients = [replace(lab.info("ann", id=i), train_size=size) for i, size in enumerate((1, 101))]
    state = method.server_init(lab.task, clients)
    sent = method.server_send(state, clients[0], FIRST)
    ups = {i: Upload({k: t + step for k, t in sent.items()}) for i, step in enumerate((1.0, -1.0))}
    after = method.server_send(method.server_round(state, clients, ups, FIRST), clients[0], FIRST)
    assert moved(sent, after).abs().max() < 1e-4


def test_noise_differs_between_rounds_and_groups(lab: Any) -> None:
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
def test_inactive_settings_change_nothing(lab: Any, name: str) -> None:
    """Limits that no update reaches, and settings of rules that are not used."""
    plain = played(lab, name, spread=2.0)[1]
    unused = {"trim": 0.4}, {"noise_source": "seed"}, {"delta": 0.1}
    for changes in ({"clip_update": 1e9}, *unused):
        other = played(lab, name, spread=2.0, **changes)[1]
        assert all(torch.equal(plain[key], other[key]) for key in plain), changes


BAD = [
    ({"trim": 0.5}, r"^method\.trim=0\.5 is out of range; .*median$"),
    ({"weight_cap": 0.5}, r"^method\.weight_cap=0\.5 is out of range; use 1 or more$"),
    ({"noise": 1.0}, r"^method\.noise=1\.0 .*; set method\.clip_update above 0$"),
    ({"noise": 1.0, "clip_update": 1.0, "aggregation": "median"}, r"method\.aggregation=median; use mean$"),
    ({"noise": 1.0, "clip_update": 1.0, "delta": 0.0}, r"^method\.delta=0\.0 is out of range"),
    ({"noise": 1.0, "clip_update": 1.0, "bn_buffers": "averaged"}, r"variances negative; use local$"),
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("changes", "text"), BAD)
def test_invalid_settings_are_refused(lab: Any, name: str, changes: Any, text: str) -> None:
    with pytest.raises(BadInput, match=text) as error:
        lab.method(name, **changes).check(lab.task, [lab.info()])
    assert "\n" not in str(error.value)


def test_noise_with_qnn_clients_is_refused(lab: Any) -> None:
    low = ClientInfo(4, "qnn", "resnet18", 0.125, bits=4)
    with pytest.raises(BadInput, match=r"step sizes of client 4 \(resnet18@0\.125:qnn:b=4\)"):
        lab.method("fedavg", noise=1.0, clip_update=1.0).check(lab.task, [low])


def test_notes_of_private_means(lab: Any) -> None:
    assert lab.method("fml").notes(lab.task) == []
    system, seed = (
        lab.method("fml", noise=1.0, clip_update=1.0, noise_source=s).notes(lab.task) for s in ("system", "seed")
    )
    assert len(system) == 1
    assert "equal weight" in system[0]
    assert "no protection if the seed is known" in seed[1]
