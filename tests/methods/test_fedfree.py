import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from asfedbridge.core import payload, seeds
from asfedbridge.core.errors import BadInput, GuardError
from asfedbridge.core.payload import Payload
from asfedbridge.core.task import ClientInfo, Kind, Round, Task, Upload
from asfedbridge.engines.turn import take_turn
from asfedbridge.methods import fedfree
from asfedbridge.methods.fedfree import FedFree, read, write
from asfedbridge.models.layers import by_layer

FIRST, SECOND = Round(0, 2), Round(1, 2)
BIG = Task(100, 3, 32)
FLAT, STEEP = [0.0, 2.0, 4.0, 4.0], [0.0, 0.0, 0.0, 4.0]  # in four bins: (1, 0, 1, 2) and (3, 0, 0, 1)
H_FLAT, H_STEEP = 1.5 * math.log(2), -0.75 * math.log(0.75) - 0.25 * math.log(0.25)

Bytes = Callable[[nn.Module], dict[str, bytes]]


def matrix(*values: float) -> Tensor:
    return torch.tensor([values])


def state_of(taught: bool = False, **layers: Tensor) -> Payload:
    """A server state of layers with one weight tensor each; client layers map to those of the same name."""
    state = {"seed": torch.tensor(7)}
    for name, weight in layers.items():
        state |= {f"global/{name}.weight": weight, f"taught/{name}": torch.tensor(taught)}
        state[f"map/resnet18/{name}"] = write(name)
    return state


def up(**layers: Tensor) -> Upload:
    return Upload({f"{name}.weight": weight for name, weight in layers.items()})


def play(method: FedFree, state: Payload, infos: list[ClientInfo], *ups: Upload, rnd: Round = FIRST) -> Payload:
    return method.server_round(state, infos, {c.id: u for c, u in zip(infos, ups, strict=True)}, rnd)


def lists(tensors: Payload) -> dict[str, Any]:
    return {name: t.tolist() for name, t in tensors.items()}


def pair(lab: Any) -> list[ClientInfo]:
    return [lab.info("ann", id=0, train_size=1), lab.info("snn", id=1, train_size=9)]


# client: uploads


def shift(monkeypatch: pytest.MonkeyPatch, moves: dict[str, float], rest: float = 0.0) -> None:
    """Replace training: add a constant to every entry of a tensor."""

    def fit(client: Any, *args: Any) -> dict[str, float]:
        with torch.no_grad():
            for name, p in client.backbone.named_parameters():
                p.add_(moves.get(name, rest))
        return {}

    monkeypatch.setattr(fedfree, "fit_backbone", fit)


def test_layers_with_the_largest_change_are_uploaded(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the absolute L2 norm of the change: the stem has 72 entries, the classifier 32 weights and 4 biases."""
    method = lab.method("fedfree")
    client = lab.client(method)
    # sqrt(72) * 0.10 = 0.849; sqrt(32 * 0.1^2 + 4 * 0.4^2) = 0.980; projector: sqrt(512) * 0.03 = 0.679; norms: never
    moves = {"stem.weight": 0.10, "classifier.weight": 0.1, "classifier.bias": 0.4, "projector.weight": 0.03}
    shift(monkeypatch, moves | {"norm.weight": 9.0, "stages.3.1.norm2.bias": 9.0})
    sent = method.client_round(client, FIRST).payload
    assert list(sent) == ["classifier.weight", "classifier.bias", "stem.weight"]
    assert all(torch.equal(t, client.backbone.get_parameter(name)) for name, t in sent.items())  # no differences
    assert list(by_layer(lab.method("fedfree", k=1).client_round(client, FIRST).payload)) == ["classifier"]
    assert len(by_layer(lab.method("fedfree", k=3).client_round(client, FIRST).payload)) == 3


def test_equal_changes_select_large_kernels(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """This gives the paper's 18.00 MB: two of the three largest kernels, all in the last stage, are uploaded."""
    method = lab.method("fedfree")
    shift(monkeypatch, {}, rest=0.25)
    sent = method.client_round(lab.client(method, "snn"), FIRST).payload
    assert len(sent) == 2
    assert sent.keys() < {"stages.3.0.conv2.weight", "stages.3.1.conv1.weight", "stages.3.1.conv2.weight"}


def test_change_is_measured_over_local_training(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes by the download are not included."""
    method = lab.method("fedfree", k=1)
    client = lab.client(method)
    shift(monkeypatch, {"stem.weight": 0.1})
    method.client_receive(client, {"stages.3.1.conv1.weight": torch.full((64, 64, 3, 3), 5.0)}, FIRST)
    assert list(method.client_round(client, FIRST).payload) == ["stem.weight"]


@pytest.mark.parametrize("kind", ["ann", "snn"])
def test_whole_trained_layers_are_uploaded(lab: Any, kind: Kind) -> None:
    method = lab.method("fedfree")
    client = lab.client(method, kind)
    sent = lab.turn(method, client).payload
    assert len(by_layer(sent)) == 2
    assert all(torch.equal(t, client.backbone.get_parameter(name)) for name, t in sent.items())


def test_all_convolutions_and_matrices_are_declared(lab: Any) -> None:
    """Two of the three largest layers are the paper's 18.00 MB up; one is 9.00 MB down."""
    for kind in ("ann", "snn"):
        info = lab.info(kind, width=1.0)
        declared = FedFree().uploads(BIG, info)
        assert declared == FedFree().downloads(BIG, info)
        sizes = {
            layer: sum(torch.Size(shape).numel() for shape in parts.values())
            for layer, parts in by_layer(declared).items()
        }
        assert len(sizes) == 22
        assert not any("norm" in layer for layer in sizes)
        *_, third, second, first = sorted(sizes.values())
        assert first == second == third == 512 * 512 * 9
        assert 4 * (first + second) / payload.MB == 18.0
        assert 4 * first / payload.MB == 9.0


# client: downloads


def test_download_overwrites_only_one_layer(lab: Any, to_bytes: Bytes) -> None:
    method = lab.method("fedfree")
    client = lab.client(method, "snn")
    lab.turn(method, client)
    before, momentum = to_bytes(client.backbone), payload.clone(client.momentum["backbone"])
    down = {"classifier.weight": torch.full((4, 8), 0.5), "classifier.bias": torch.full((4,), 0.25)}
    method.client_receive(client, down, SECOND)
    after = to_bytes(client.backbone)
    assert {name for name in after if after[name] != before[name]} == set(down)
    assert client.backbone.classifier.bias.tolist() == [0.25] * 4
    assert client.momentum["backbone"].keys() == momentum.keys() - down.keys()  # the momentum of that layer is reset
    assert all(torch.equal(t, momentum[name]) for name, t in client.momentum["backbone"].items())
    method.client_round(client, SECOND)
    assert client.momentum["backbone"].keys() == momentum.keys()


def test_empty_download_is_standalone_training(lab: Any) -> None:
    """With an empty download, the client equals a standalone client."""
    alone, free = lab.method("standalone"), lab.method("fedfree")
    clients = [lab.client(alone, "snn"), lab.client(free, "snn")]
    for rnd in (FIRST, SECOND):
        for method, client in zip((alone, free), clients, strict=True):
            take_turn(method, client, {}, rnd)
    ours, theirs = (client.state_dict() for client in clients)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(t, theirs[name]) for name, t in ours.items())


# server: transfer


def test_global_layer_starts_as_the_mean_of_its_first_uploads(lab: Any) -> None:
    state = state_of(a=matrix(100.0, 100.0), b=matrix(7.0))
    new = play(FedFree(), state, pair(lab), up(a=matrix(2.0, 4.0)), up(a=matrix(4.0, 0.0)))
    assert lists(new)["global/a.weight"] == [[3.0, 2.0]]
    assert bool(new["taught/a"])
    assert lists(new)["global/b.weight"] == [[7.0]]  # no uploads: unchanged
    assert not bool(new["taught/b"])
    assert lists(state)["global/a.weight"] == [[100.0, 100.0]]


def noise(rnd: int, name: str, batch: int, *shape: int) -> Tensor:
    return torch.randn(batch, *shape, generator=seeds.generator(7, "server", "round", rnd, name))


@pytest.mark.parametrize("reduction", ["channels", "mean"])
def test_one_step_of_transfer_by_hand(lab: Any, reduction: str) -> None:
    """g - lr * 2 (g - mean) x'x / batch; over two outputs, the mean is half of that."""
    method = FedFree(server_steps=1, pseudo_batch=3, server_lr=0.1, reduction=reduction)
    g, first, second = (
        torch.tensor([[1.0, 2.0], [0.0, 1.0]]),
        torch.full((2, 2), 6.0),
        torch.tensor([[0.0, 2.0], [-6.0, 0.0]]),
    )
    new = play(method, state_of(True, a=g), pair(lab), up(a=first), up(a=second), rnd=SECOND)
    x = noise(1, "a", 3, 2)
    difference = torch.tensor([[1.0 - 3.0, 2.0 - 4.0], [0.0 - 0.0, 1.0 - 3.0]])
    expected = g - 0.1 * (2.0 if reduction == "channels" else 1.0) * difference @ x.T @ x / 3
    torch.testing.assert_close(new["global/a.weight"], expected)


def test_fifty_steps_approach_the_mean(lab: Any) -> None:
    """On average 0.98^50 = 0.364 of the distance remains, up to the noise of 64 inputs."""
    draws = torch.Generator().manual_seed(0)
    g, *uploads = (torch.randn(32, 8, 3, 3, generator=draws) for _ in range(3))
    new = play(FedFree(), state_of(True, a=g), pair(lab), *(up(a=t) for t in uploads))["global/a.weight"]
    before, after = g - sum(uploads) / 2, new - sum(uploads) / 2
    assert ((after * before).sum() / before.square().sum()).item() == pytest.approx(0.364, abs=0.03)
    assert after.norm() < 0.5 * before.norm()


CHANGES: list[dict[str, Any]] = [
    {"server_steps": 49},
    {"server_lr": 0.011},
    {"pseudo_batch": 65},
    {"pseudo_positions": 2},
    {"reduction": "mean"},
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_every_transfer_setting_has_an_effect(lab: Any, change: dict[str, Any]) -> None:
    draws = torch.Generator().manual_seed(0)
    g, *uploads = (torch.randn(4, 2, 3, 3, generator=draws) for _ in range(3))

    def transferred(**changes: Any) -> Tensor:
        return play(FedFree(**changes), state_of(True, a=g), pair(lab), *(up(a=t) for t in uploads))["global/a.weight"]

    assert torch.equal(transferred(), transferred())
    assert not torch.equal(transferred(), transferred(**change))
    assert not torch.equal(transferred(), g)


def test_without_first_upload_layers_start_from_the_seed(lab: Any) -> None:
    g, uploads = torch.full((4, 2), 9.0), [torch.zeros(4, 2), torch.ones(4, 2)]
    off = play(FedFree(first_upload=False), state_of(a=g), pair(lab), *(up(a=t) for t in uploads))
    seen = play(FedFree(), state_of(True, a=g), pair(lab), *(up(a=t) for t in uploads))
    assert torch.equal(off["global/a.weight"], seen["global/a.weight"])
    assert not torch.equal(off["global/a.weight"], torch.full((4, 2), 0.5))


def test_noise_depends_on_seed_round_and_layer(lab: Any) -> None:
    g, u = torch.zeros(3, 4), torch.ones(3, 4)
    infos = pair(lab)[:1]
    method = FedFree()
    both = play(method, state_of(True, a=g, b=g), infos, up(a=u, b=u))
    alone = play(method, state_of(True, a=g, b=g), infos, up(b=u))
    later = play(method, state_of(True, a=g, b=g), infos, up(b=u), rnd=SECOND)
    seeded = play(method, state_of(True, a=g, b=g) | {"seed": torch.tensor(8)}, infos, up(b=u))
    assert torch.equal(both["global/b.weight"], alone["global/b.weight"])
    others = (both["global/a.weight"], later["global/b.weight"], seeded["global/b.weight"])
    assert not any(torch.equal(alone["global/b.weight"], t) for t in others)


def test_initial_state_is_the_widest_model(lab: Any) -> None:
    method = FedFree(mismatch="prefix")
    clients = [lab.info("ann", id=0), lab.info("snn", id=1, width=0.25)]
    state = method.server_init(lab.task, clients)
    shapes = {name.removeprefix("global/"): tuple(t.shape) for name, t in state.items() if name.startswith("global/")}
    assert shapes == method.uploads(lab.task, clients[1])
    assert state["seed"].item() == lab.task.seed
    assert read(state["map/resnet18/stages.1.0.conv2"]) == "stages.1.0.conv2"
    assert not any(bool(t) for name, t in state.items() if name.startswith("taught/"))
    assert all(method.server_send(state, c, FIRST) == {} for c in clients)  # no pending downloads
    wider = FedFree(mismatch="prefix", global_width=0.5).server_init(lab.task, clients)
    assert wider["global/stem.weight"].shape == (32, 1, 3, 3)


# server: entropy and downloads


def test_layer_with_larger_entropy_is_sent_back(lab: Any) -> None:
    """Mean of STEEP and (0, 4, 8, 4) is FLAT, which is more even than STEEP, and less than (0, 3, 7, 8)'s four bins."""
    assert H_FLAT > H_STEEP
    infos = [*pair(lab), lab.info("ann", id=2)]
    method = FedFree(bins=4)
    ups = [up(a=matrix(*STEEP)), up(a=matrix(0.0, 3.0, 5.0, 7.0)), up(a=matrix(0.0, 3.0, 7.0, 1.0))]
    new = play(method, state_of(a=matrix(0, 0, 0, 0)), infos, *ups)
    assert lists(new)["global/a.weight"] == [[0.0, 2.0, 4.0, 4.0]]
    down = {c.id: lists(method.server_send(new, c, SECOND)) for c in infos}
    assert down == {0: {"a.weight": [FLAT]}, 1: {}, 2: {}}
    assert read(new["owed/0"]) == "a"


def test_only_the_layer_with_the_largest_gain_is_sent_back(lab: Any) -> None:
    """Both gain against FLAT: one value in four bins gains 1.04, STEEP gains 0.48. Biases do not count, but travel."""
    info = [lab.info()]
    method = FedFree(bins=4, server_steps=0)
    state = state_of(True, a=matrix(*FLAT), b=matrix(*FLAT)) | {"global/b.bias": torch.tensor([3.0])}
    sent = up(a=matrix(*STEEP), b=matrix(5.0, 5.0, 5.0, 5.0))
    sent.payload["b.bias"] = torch.tensor([1.0])
    new = play(method, state, info, sent)
    assert lists(method.server_send(new, info[0], SECOND)) == {"b.weight": [FLAT], "b.bias": [3.0]}
    for b in (matrix(0.0, 1.0, 2.0, 3.0), matrix(*STEEP)):  # loses entropy; gains less
        sent = up(a=matrix(5.0, 5.0, 5.0, 5.0), b=b)
        assert lists(method.server_send(play(method, state, info, sent), info[0], SECOND)) == {"a.weight": [FLAT]}


def test_entropy_is_compared_after_transfer(lab: Any) -> None:
    """Before transfer the global layer is constant and has no entropy, so nothing would be sent."""
    info = pair(lab)
    method = FedFree(bins=4)
    new = play(method, state_of(a=matrix(1, 1, 1, 1)), info, up(a=matrix(*STEEP)), up(a=matrix(0.0, 4.0, 8.0, 4.0)))
    assert read(new["owed/0"]) == "a"


def test_without_a_gain_nothing_is_sent(lab: Any) -> None:
    """With one client the upload is the global layer: the gain is 0, not positive."""
    info = [lab.info()]
    method = FedFree(bins=4)
    new = play(method, state_of(a=matrix(0, 0, 0, 0)), info, up(a=matrix(*STEEP)))
    assert "owed/0" not in new
    assert method.server_send(new, info[0], SECOND) == {}


def test_histogram_settings_have_an_effect(lab: Any) -> None:
    """Over a common range a narrow layer falls into one bin; with one bin entropy is 0."""
    info = [lab.info()]
    state = state_of(True, a=matrix(0.0, 0.1, 0.2, 0.3))

    def owes(**changes: Any) -> bool:
        method = FedFree(**{"server_steps": 0, "bins": 4} | changes)
        return "owed/0" in play(method, state, info, up(a=matrix(0.0, 0.0, 3.0, 3.0)))

    assert owes()
    assert not owes(histogram="common")
    assert owes(histogram="common", bins=256)
    assert not owes(bins=1)


def test_absent_client_gets_the_current_version_of_its_layer(lab: Any) -> None:
    infos, method = pair(lab), FedFree(bins=4, server_steps=0)
    state = state_of(True, a=matrix(*FLAT), b=matrix(*FLAT))
    state = play(method, state, infos, up(a=matrix(*STEEP)), up(b=matrix(*STEEP)))
    assert [read(state[f"owed/{i}"]) for i in (0, 1)] == ["a", "b"]
    state = state | {"global/b.weight": matrix(1.0, 2.0, 3.0, 4.0)}  # with the later uploads of others
    later = play(method, state, infos[:1], up(a=matrix(0.0, 1.0, 2.0, 3.0)), rnd=SECOND)
    assert "owed/0" not in later  # took part, and nothing gained
    assert lists(method.server_send(later, infos[1], Round(2, 2))) == {"b.weight": [[1.0, 2.0, 3.0, 4.0]]}
    back = play(method, later, infos[1:], up(b=matrix(0.0, 1.0, 2.0, 3.0)), rnd=SECOND)
    assert "owed/1" not in back


def test_round_without_clients_changes_nothing(lab: Any) -> None:
    state = state_of(a=matrix(1.0))
    new = FedFree().server_round(state, [], {}, FIRST)
    assert lists(new) == lists(state)


def test_uploads_other_than_k_complete_layers_are_refused(lab: Any) -> None:
    method, info = FedFree(), lab.info()
    zeros = {name: torch.zeros(shape) for name, shape in method.uploads(lab.task, info).items()}
    layers = by_layer(zeros)
    biased = next(name for name, parts in layers.items() if "bias" in parts)
    plain = [name for name, parts in layers.items() if "bias" not in parts][:2]

    def check(method: FedFree, *names: str) -> None:
        method.check_upload(lab.task, info, {name: zeros[name] for name in names}, FIRST)

    whole = [f"{biased}.weight", f"{biased}.bias", f"{plain[0]}.weight"]
    check(method, *whole)
    check(FedFree(k=3), *whole, f"{plain[1]}.weight")
    with pytest.raises(GuardError, match="3 layers; expected 1 to 2"):
        check(method, *whole, f"{plain[1]}.weight")
    with pytest.raises(GuardError, match="0 layers"):
        check(method)
    for part in ("weight", "bias"):
        with pytest.raises(GuardError, match=f"layer '{biased}' is incomplete: has only {part}"):
            check(method, f"{biased}.{part}")


# fleets with layers of different shapes


def test_the_prefix_rule_by_hand(lab: Any) -> None:
    """A smaller layer changes the first entries and is overwritten completely; a larger one keeps its last entries."""
    infos, method = pair(lab), FedFree(mismatch="prefix", bins=4)
    g = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    small, large = torch.tensor([[10.0, 10.0], [10.0, 12.0]]), torch.tensor([[0.0, 0, 0, 0], [0, 0, 0, 40.0]])
    new = play(method, state_of(a=g), infos, up(a=small), up(a=large))
    # small reads as (10, 10, 10, 12, 5, 6), large as (0, 0, 0, 0, 0, 0)
    assert lists(new)["global/a.weight"] == [[5.0, 5.0, 5.0], [6.0, 2.5, 3.0]]
    assert lists(method.server_send(new, infos[0], SECOND)) == {"a.weight": [[5.0, 5.0], [5.0, 6.0]]}
    assert lists(method.server_send(new, infos[1], SECOND)) == {"a.weight": [[5.0, 5, 5, 6], [2.5, 3, 0, 40.0]]}


def test_missing_bias_is_ignored(lab: Any) -> None:
    method = FedFree(mismatch="prefix", bins=4)
    state = state_of(a=matrix(*FLAT)) | {"global/a.bias": torch.tensor([3.0])}
    infos = pair(lab)
    new = play(method, state, infos, up(a=matrix(*STEEP)), up(a=matrix(0.0, 4.0, 8.0, 4.0)))
    assert lists(new)["global/a.bias"] == [3.0]
    assert lists(method.server_send(new, infos[0], SECOND)) == {"a.weight": [FLAT]}


def test_widths_exchange_layers_by_the_prefix_rule(lab: Any) -> None:
    """Complete rounds with two widths: downloads have the right shapes and are loaded."""
    method = lab.method("fedfree", mismatch="prefix", k=6)
    clients = [lab.client(method, "ann", id=0), lab.client(method, "snn", id=1, width=0.25)]
    infos = [c.info for c in clients]
    method.check(lab.task, infos)
    state = method.server_init(lab.task, infos)
    received = 0
    for rnd in (FIRST, SECOND, Round(2, 2)):
        downs = [method.server_send(state, c.info, rnd) for c in clients]
        received += sum(len(down) > 0 for down in downs)
        ups = {c.info.id: take_turn(method, c, down, rnd) for c, down in zip(clients, downs, strict=True)}
        if not rnd.closing:
            state = method.server_round(state, infos, ups, rnd)
    assert received > 0


def test_different_widths_are_refused_in_one_line(lab: Any) -> None:
    method = FedFree()
    method.check(lab.task, pair(lab))  # mixed kinds of one width are fine
    with pytest.raises(BadInput) as error:
        method.check(lab.task, [*pair(lab), lab.info(id=2, width=0.25)])
    message = str(error.value)
    assert "client 0 (resnet18@0.125:ann) has stem of shape (8, 1, 3, 3)" in message
    assert "(16, 1, 3, 3)" in message
    assert "method.mismatch=prefix" in message
    assert "\n" not in message
    FedFree(mismatch="prefix").check(lab.task, [*pair(lab), lab.info(id=2, width=0.25)])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": 0}, "method.k=0 must be at least 1"),
        ({"k": 23}, "method.k=23: client 0 .* has 22 layers; use 1 to 22"),
        ({"bins": 0}, "method.bins=0 must be at least 1"),
        ({"pseudo_batch": 0}, "method.pseudo_batch=0 must be at least 1"),
        ({"pseudo_positions": 0}, "method.pseudo_positions=0 must be at least 1"),
        ({"global_width": 9.0}, "method.global_width=9.0 is out of range; use 0.01 to 4, or 0"),
        ({"global_width": 0.25}, "client 0 .*method.mismatch=prefix"),
        ({"server_lr": 0.2}, r"method.server_lr=0.2 diverges on stages.\S+ of shape .*; use less than 0\.\d+, or"),
    ],
    ids=str,
)
def test_bad_values_are_refused_in_one_line(lab: Any, change: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message) as error:
        FedFree(**change).check(lab.task, pair(lab))
    assert "\n" not in str(error.value)


def test_the_defaults_do_not_diverge_at_full_width(lab: Any) -> None:
    FedFree().check(BIG, [lab.info(width=1.0)])
    FedFree(reduction="mean", server_lr=5.0).check(BIG, [lab.info(width=1.0)])
    with pytest.raises(BadInput, match=r"use less than 0\.0069, or more than method\.pseudo_batch=32"):
        FedFree(pseudo_batch=32).check(BIG, [lab.info(width=1.0)])


def test_the_defaults_are_the_documented_ones() -> None:
    method = FedFree()
    assert (method.k, method.server_lr, method.server_steps) == (2, 0.01, 50)
    assert (method.pseudo_batch, method.bins) == (64, 256)
    assert (method.reports, method.partial) == ("received", True)


# Byzantine clients


@pytest.mark.parametrize(("rule", "expected"), [("median", 2.0), ("trimmed", 2.0), ("krum", 1.5), ("geometric", 2.0)])
def test_one_byzantine_client_of_three(lab: Any, rule: Any, expected: float) -> None:
    """A new layer starts as the robust aggregate of its uploads; an existing one approaches it, not 1e30."""
    infos = [lab.info(id=i) for i in range(3)]
    ups = [up(a=matrix(1.0, 1.0)), up(a=matrix(1e30, 1e30)), up(a=matrix(2.0, 2.0))]
    method = FedFree(aggregation=rule)
    begun = play(method, state_of(a=matrix(9.0, 9.0)), infos, *ups)["global/a.weight"]
    assert begun.flatten().tolist() == pytest.approx([expected] * 2, abs=1e-4)
    gone_on = play(method, state_of(taught=True, a=matrix(9.0, 9.0)), infos, *ups)["global/a.weight"]
    assert ((gone_on - expected).abs() < 7).all()
    assert play(FedFree(), state_of(a=matrix(9.0, 9.0)), infos, *ups)["global/a.weight"].min() > 1e29


def test_invalid_trim_is_refused(lab: Any) -> None:
    with pytest.raises(BadInput, match=r"^method\.trim=0\.5 "):
        FedFree(trim=0.5).check(lab.task, pair(lab))
