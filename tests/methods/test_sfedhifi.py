from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asfedbridge.cli import main
from asfedbridge.core import payload
from asfedbridge.core.errors import BadInput
from asfedbridge.core.payload import Payload
from asfedbridge.core.task import ClientInfo, Kind, Round, Task, Upload
from asfedbridge.engines.turn import take_turn
from asfedbridge.methods.sfedhifi import SFedHIFI, choose_layer, measure_firing, orthogonality
from asfedbridge.models.composed import CONVOLUTIONS, ComposedConv

FIRST, LAST = Round(0, 100), Round(99, 100)
BIG = Task(100, 3, 32)
LAYER, OTHER, FINAL = CONVOLUTIONS[2], CONVOLUTIONS[5], CONVOLUTIONS[-1]
KINDS: list[Kind] = ["ann", "snn"]

Bytes = Callable[[nn.Module], dict[str, bytes]]


def lists(tensors: Payload) -> dict[str, Any]:
    return {name: t.tolist() for name, t in tensors.items()}


def fleet(lab: Any, *entries: tuple[Kind, float], sizes: tuple[int, ...] = ()) -> list[ClientInfo]:
    return [
        lab.info(kind, id=i, width=width, train_size=sizes[i] if sizes else 10)
        for i, (kind, width) in enumerate(entries)
    ]


def firing(layer: str, rate: float = 0.5) -> Tensor:
    """Rates and wins of a client whose busiest convolution is ``layer``."""
    told = torch.zeros(2, len(CONVOLUTIONS))
    told[:, CONVOLUTIONS.index(layer)] = torch.tensor([rate, 1.0])
    return told


def up(bank: float, own: float, **extra: Tensor) -> Upload:
    return Upload({"x.conv1.bank": torch.tensor([bank]), "stem.weight": torch.tensor([own]), **extra})


def play(
    method: SFedHIFI, infos: list[ClientInfo], *ups: Upload, rnd: Round = LAST, state: Payload | None = None
) -> Any:
    return method.server_round(state or {}, infos, {c.id: u for c, u in zip(infos, ups, strict=True)}, rnd)


# server: means


@pytest.mark.parametrize(
    ("weights", "ann", "snn"),
    [
        # banks: over all widths of a kind; the rest: within a width
        ("uniform", {"banks": 3.0, 0.25: 15.0, 0.5: 50.0}, {"banks": 100.0, 0.25: 200.0}),
        (
            "size",
            {"banks": (1 + 3 * 2 + 6 * 6) / 10, 0.25: (10 + 3 * 20) / 4, 0.5: 50.0},
            {"banks": 100.0, 0.25: 200.0},
        ),
        # the median size of 1, 7, 3 and 6 is 4.5, so 7 and 6 are capped at 4.5
        (
            "capped",
            {"banks": (1 + 3 * 2 + 4.5 * 6) / 8.5, 0.25: (10 + 3 * 20) / 4, 0.5: 50.0},
            {"banks": 100.0, 0.25: 200.0},
        ),
    ],
)
def test_banks_are_averaged_over_all_widths_and_the_rest_within_one(lab: Any, weights: str, ann: Any, snn: Any) -> None:
    infos = fleet(lab, ("ann", 0.25), ("snn", 0.25), ("ann", 0.25), ("ann", 0.5), sizes=(1, 7, 3, 6))
    method = SFedHIFI(weights=weights, fusion_share=0.0, weight_cap=1.0)
    new = play(method, infos, up(1.0, 10.0), up(100.0, 200.0), up(2.0, 20.0), up(6.0, 50.0))
    expected = {"ann": ann, "snn": snn}
    assert lists(new) == {
        f"{kind}/{place}/{'x.conv1.bank' if place == 'banks' else 'stem.weight'}": pytest.approx([value])
        for kind, values in expected.items()
        for place, value in values.items()
    }
    sent = {c.id: lists(method.server_send(new, c, LAST)) for c in infos}
    assert sent[0] == {"x.conv1.bank": pytest.approx([ann["banks"]]), "stem.weight": pytest.approx([ann[0.25]])}
    assert sent[3] == {"x.conv1.bank": pytest.approx([ann["banks"]]), "stem.weight": pytest.approx([50.0])}
    assert sent[1] == {"x.conv1.bank": [100.0], "stem.weight": [200.0]}


@pytest.mark.parametrize(
    ("rule", "banks", "own"),  # of 1, 3 and 1e30; of -1e30, 10 and 20
    [("median", 3.0, 10.0), ("trimmed", 3.0, 10.0), ("krum", 2.0, 15.0), ("geometric", 3.0, 10.0)],
)
def test_one_byzantine_client_in_a_kind(lab: Any, rule: Any, banks: float, own: float) -> None:
    infos = fleet(lab, ("ann", 0.25), ("ann", 0.25), ("ann", 0.25))
    ups = up(1.0, 10.0), up(1e30, -1e30), up(3.0, 20.0)
    new = lists(play(SFedHIFI(aggregation=rule, fusion_share=0.0), infos, *ups))
    assert new["ann/banks/x.conv1.bank"] == pytest.approx([banks], abs=1e-4)
    assert new["ann/0.25/stem.weight"] == pytest.approx([own], abs=1e-4)
    assert lists(play(SFedHIFI(fusion_share=0.0), infos, *ups))["ann/banks/x.conv1.bank"][0] > 1e29


def test_absent_kinds_and_widths_keep_their_state(lab: Any) -> None:
    """An absent width gets new banks if its kind took part."""
    infos = fleet(lab, ("ann", 0.25), ("ann", 0.5), ("snn", 0.25))
    method = SFedHIFI(fusion_share=0.0)
    state = play(method, infos, up(1.0, 10.0), up(3.0, 20.0), up(5.0, 30.0))
    new = play(method, infos[1:2], up(8.0, 40.0), state=state)
    sent = [lists(method.server_send(new, c, LAST)) for c in infos]
    assert sent == [
        {"x.conv1.bank": [8.0], "stem.weight": [10.0]},
        {"x.conv1.bank": [8.0], "stem.weight": [40.0]},
        {"x.conv1.bank": [5.0], "stem.weight": [30.0]},
    ]
    assert lists(state)["ann/banks/x.conv1.bank"] == [2.0]


def test_initial_state_has_shared_banks(lab: Any) -> None:
    method = lab.method("sfedhifi")
    infos = fleet(lab, ("ann", 0.125), ("ann", 0.25), ("snn", 0.25))
    state = method.server_init(lab.task, infos)
    assert sum(name.startswith("ann/banks/") for name in state) == len(CONVOLUTIONS)
    for c in infos:
        down = method.server_send(state, c, FIRST)
        assert {name: tuple(t.shape) for name, t in down.items()} == method.downloads(lab.task, c)
        client = lab.client(method, c.kind, width=c.width)
        assert all(torch.equal(t, client.backbone.get_parameter(name)) for name, t in down.items())
    assert torch.equal(state[f"ann/banks/{FINAL}.bank"], state[f"snn/banks/{FINAL}.bank"])


# server: fusion


def told(name: str, matrix: Tensor, **extra: Tensor) -> Upload:
    return up(0.0, 0.0, **{f"{name}.coefficient": matrix}, **extra)


def diagonal(rows: int, columns: int, *values: float) -> Tensor:
    out = torch.zeros(rows, columns)
    out[range(len(values)), range(len(values))] = torch.tensor(values)
    return out


def test_fusion_by_hand(lab: Any) -> None:
    """The narrow width's mean is diag(5, 2, 1, 1): rank 0.5 * 4, singular values (5, 2) and (3, 1) become (4, 1.5)."""
    infos = fleet(lab, ("snn", 0.25), ("snn", 0.25), ("snn", 0.5))
    narrow = diagonal(4, 6, 4.0, 2.0, 1.0, 1.0), diagonal(4, 6, 6.0, 2.0, 1.0, 1.0)
    wide = diagonal(8, 12, 3.0, -1.0, 0.5)
    ups = [told(LAYER, m, firing=firing(LAYER)) for m in (*narrow, wide)]
    new = play(SFedHIFI(fusion_rank=0.5), infos, *ups, rnd=FIRST)
    torch.testing.assert_close(new[f"snn/0.25/{LAYER}.coefficient"], diagonal(4, 6, 4.0, 1.5))
    torch.testing.assert_close(new[f"snn/0.5/{LAYER}.coefficient"], diagonal(8, 12, 4.0, -1.5))
    assert not any("firing" in name for name in new)
    assert torch.equal(ups[0].payload[f"{LAYER}.coefficient"], narrow[0])


def test_ann_clients_fuse_the_last_convolution(lab: Any) -> None:
    infos = fleet(lab, ("ann", 0.25), ("ann", 0.5))
    matrices = diagonal(4, 6, 4.0, 2.0), diagonal(8, 12, 2.0, 1.0)
    both = [{f"{name}.coefficient": m for name in (LAYER, FINAL)} for m in matrices]
    new = play(SFedHIFI(), infos, *(up(0.0, 0.0, **extra) for extra in both), rnd=FIRST)
    torch.testing.assert_close(new[f"ann/0.25/{FINAL}.coefficient"], diagonal(4, 6, 3.0))  # rank 0.25 * 4
    torch.testing.assert_close(new[f"ann/0.5/{FINAL}.coefficient"], diagonal(8, 12, 3.0))
    torch.testing.assert_close(new[f"ann/0.25/{LAYER}.coefficient"], matrices[0])


def test_kinds_are_fused_separately(lab: Any) -> None:
    """One width of each kind: nothing is fused or truncated."""
    infos = fleet(lab, ("ann", 0.25), ("snn", 0.5))
    matrices = diagonal(4, 6, 4.0, 2.0, 1.0), diagonal(8, 12, 2.0, 1.0)
    new = play(SFedHIFI(), infos, told(FINAL, matrices[0]), told(FINAL, matrices[1], firing=firing(FINAL)), rnd=FIRST)
    assert torch.equal(new[f"ann/0.25/{FINAL}.coefficient"], matrices[0])
    assert torch.equal(new[f"snn/0.5/{FINAL}.coefficient"], matrices[1])


def test_fusion_of_equal_singular_values_is_the_identity(lab: Any) -> None:
    """Up to the rank: values beyond it are dropped."""
    infos = fleet(lab, ("ann", 0.25), ("ann", 0.5), ("ann", 1.0))
    draws = torch.Generator().manual_seed(0)
    values = torch.tensor([5.0, 3.0, 2.0, 1.0])
    bases = [torch.linalg.svd(torch.randn(n, 2 * n, generator=draws), full_matrices=False) for n in (16, 32, 64)]
    for kept in (4, 3):
        rank = kept / 16
        ups = [told(FINAL, (u[:, :4] * values) @ v[:4]) for u, _, v in bases]
        new = play(SFedHIFI(fusion_rank=rank), infos, *ups, rnd=FIRST)
        for c, (u, _, v) in zip(infos, bases, strict=True):
            expected = (u[:, :kept] * values[:kept]) @ v[:kept]
            torch.testing.assert_close(new[f"ann/{c.width}/{FINAL}.coefficient"], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("index", "share", "fused"),
    [(0, 0.45, True), (44, 0.45, True), (45, 0.45, False), (0, 0.0, False), (99, 1.0, True)],
)
def test_fusion_happens_in_the_first_rounds(lab: Any, index: int, share: float, fused: bool) -> None:
    infos = fleet(lab, ("ann", 0.25), ("ann", 0.5))
    ups = [told(FINAL, m) for m in (diagonal(4, 6, 4.0, 2.0), diagonal(8, 12, 2.0, 1.0))]
    new = play(SFedHIFI(fusion_share=share), infos, *ups, rnd=Round(index, 100))
    assert new[f"ann/0.25/{FINAL}.coefficient"][0, 0].item() == pytest.approx(3.0 if fused else 4.0)


def test_layer_with_most_votes_is_fused() -> None:
    a, b, c = (CONVOLUTIONS.index(name) for name in (LAYER, OTHER, FINAL))
    assert choose_layer([firing(LAYER, 0.1), firing(OTHER, 0.9), firing(LAYER, 0.2)]) == a
    assert choose_layer([firing(LAYER, 0.1), firing(OTHER, 0.9), firing(FINAL, 0.2)]) == b  # tie: highest rate
    assert choose_layer([firing(LAYER, 0.1), firing(FINAL, 0.2)]) == c
    assert choose_layer([firing(OTHER, 0.1)]) == b


def test_width_votes_for_the_layer_with_most_wins(lab: Any) -> None:
    """Not for the highest mean rate. Wins are averaged over the clients of a width."""
    often = torch.zeros(2, len(CONVOLUTIONS))
    often[0, 3], often[0, 7] = 0.2, 0.9
    often[1, 3], often[1, 7] = 0.6, 0.4
    assert choose_layer([often]) == 3
    infos = fleet(lab, ("snn", 0.25), ("snn", 0.25), ("snn", 0.25), ("snn", 0.5))
    matrices = [diagonal(4, 6, 4.0, 2.0)] * 3 + [diagonal(8, 12, 2.0, 1.0)]
    rates = [firing(LAYER), firing(OTHER), firing(LAYER), firing(LAYER)]
    ups = [
        up(0.0, 0.0, firing=r, **{f"{name}.coefficient": m for name in (LAYER, OTHER)})
        for m, r in zip(matrices, rates, strict=True)
    ]
    new = play(SFedHIFI(), infos, *ups, rnd=FIRST)
    assert new[f"snn/0.25/{LAYER}.coefficient"][0, 0].item() == pytest.approx(3.0)
    assert new[f"snn/0.25/{OTHER}.coefficient"][0, 0].item() == pytest.approx(4.0)


# client: loss


def test_orthogonality_by_hand() -> None:
    """Rows (1, 1) and (0, 2): B B' - I = ((1, 2), (2, 3)), mean square 18 / 4; the next bank is orthonormal."""
    crooked, straight = torch.tensor([[1.0, 1.0], [0.0, 2.0]]), torch.eye(3)[:2]
    assert orthogonality([crooked.view(2, 2, 1, 1), straight.view(2, 3, 1, 1)]).item() == pytest.approx(4.5)
    assert orthogonality([crooked, crooked]).item() == pytest.approx(9.0)  # a sum over banks
    bank = torch.randn(3, 2, 1, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    assert torch.autograd.gradcheck(lambda b: orthogonality([b]), [bank])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loss", ["task", "ce", "tet"])
def test_the_local_loss(lab: Any, kind: Kind, loss: str) -> None:
    """The authors' TET or plain supervision of an SNN, and ten times the banks' distance from orthogonality."""
    method = lab.method("sfedhifi", snn_loss=loss, lambda_tet=0.3, fusion_share=0.0)
    client = lab.client(method, kind, task=lab.one_batch())
    ((x, y),) = client.batches(client.generator(FIRST, "local"))
    with torch.no_grad():
        for bank in client.backbone.banks():
            bank.mul_(1.1)  # B B' = 1.21 I
        out = client.backbone.train()(x)
    metrics = method.client_round(client, FIRST).metrics
    if kind == "snn" and loss == "tet":
        steps = [F.cross_entropy(z, y).item() for z in out.logits_TBC]
        expected = 0.7 * sum(steps) / 2 + 0.3 * (out.logits_TBC - 1).square().mean().item()
    else:
        expected = F.cross_entropy(out.logits_TBC.mean(dim=0), y).item()
    kernels = [16] * 4 + [32] * 4 + [64] * 4 + [128] * 4
    crooked = 10 * sum(0.21**2 / n for n in kernels)  # n of n^2 entries differ by 0.21
    term = "local.tet" if kind == "snn" and loss == "tet" else "local.ce"
    assert metrics == pytest.approx({term: expected, "local.orthogonal": crooked}, rel=1e-3)


def test_snn_loss_task_follows_the_task(lab: Any) -> None:
    """The task's TET weight is 1e-4, as in all methods; the default of lambda_tet is the authors' 1e-3."""
    losses = {}
    for key, changes, task in (
        ("own", {}, {}),
        ("ce", {"snn_loss": "ce"}, {"snn_loss": "tet"}),
        ("task ce", {"snn_loss": "task"}, {}),
        ("task tet", {"snn_loss": "task"}, {"snn_loss": "tet"}),
        ("light", {"lambda_tet": 1e-4}, {}),
    ):
        method = lab.method("sfedhifi", **changes)
        client = lab.client(method, "snn", task=replace(lab.one_batch(), **task))
        metrics = method.client_round(client, FIRST).metrics
        losses[key] = sum(value for name, value in metrics.items() if name in ("local.ce", "local.tet"))
    assert losses["task tet"] == losses["light"]
    assert losses["task ce"] == losses["ce"]
    assert len(set(losses.values())) == 3


def test_regulariser_makes_banks_orthogonal(lab: Any) -> None:
    left = {}
    for weight in (0.0, 10.0):
        method = lab.method("sfedhifi", lambda_orthogonal=weight)
        client = lab.client(method, task=replace(lab.task, epochs=4))
        with torch.no_grad():
            for bank in client.backbone.banks():
                bank.mul_(1.2)
        method.client_round(client, FIRST)
        left[weight] = orthogonality(client.backbone.banks()).item()
    assert left[10.0] < 0.8 * left[0.0]


# client: rates


def test_rates_are_measured_on_training_images_in_eval_mode(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten images in batches of four: the short batch has less weight in the mean but counts as one win."""
    method = lab.method("sfedhifi")
    client = lab.client(method, "snn")
    lab.turn(method, client)
    batches = [client.place(x) for x, _ in client.shard.train_batches_plain(4)]
    assert [len(x) for x in batches] == [4, 4, 2]
    seen: dict[str, list[float]] = {name: [] for name in CONVOLUTIONS}
    monkeypatch.setenv("ASFEDBRIDGE_NEURON", "torch")  # the path on which hooks see all layers
    model = client.backbone.eval()
    for name, layer in model.named_modules():
        if isinstance(layer, ComposedConv):
            layer.register_forward_hook(lambda _, inputs, __, name=name: seen[name].append(inputs[0].mean().item()))
    with torch.no_grad():
        for x in batches:
            model(x)
    by_batch = torch.tensor(list(seen.values())).T
    before = payload.clone(model.state_dict())
    rates, wins = measure_firing(client, model.train())
    torch.testing.assert_close(rates, (4 * by_batch[0] + 4 * by_batch[1] + 2 * by_batch[2]) / 10, rtol=1e-4, atol=1e-6)
    expected = torch.zeros(len(CONVOLUTIONS))
    for batch in by_batch:
        expected[batch.argmax()] += 1 / 3
    torch.testing.assert_close(wins, expected)
    assert rates.max() > 0.05
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


@pytest.mark.parametrize("kind", KINDS)
def test_rates_are_uploaded_only_by_snn_clients_and_with_fusion(lab: Any, kind: Kind) -> None:
    method = lab.method("sfedhifi")
    client = lab.client(method, kind)
    early, late = (method.client_round(client, Round(i, 100)).payload for i in (44, 45))
    assert ("firing" in early) == ("firing" in late) == (kind == "snn")
    if kind == "snn":
        assert early["firing"].shape == (2, 16)
        assert early["firing"][1].sum().item() == pytest.approx(1.0)
        assert not late["firing"].any()
    assert "firing" not in method.downloads(client.task, client.info)
    assert "firing" not in lab.method("sfedhifi", fusion_share=0.0).uploads(client.task, client.info)


# payloads


@pytest.mark.parametrize(
    ("width", "scalars", "megabytes"), [(0.25, 588_292, 2.244), (0.5, 1_308_516, 4.992), (1.0, 4_108_708, 15.673)]
)
def test_payload_by_width(lab: Any, width: float, scalars: int, megabytes: float) -> None:
    """At 100 classes; the rates of an SNN add 32 numbers."""
    ann, snn = (SFedHIFI().uploads(BIG, lab.info(kind, width=width)) for kind in KINDS)
    assert sum(torch.Size(shape).numel() for shape in ann.values()) == scalars
    assert 4 * scalars / payload.MB == pytest.approx(megabytes, abs=5e-4)
    assert snn == ann | {"firing": (2, 16)}
    assert SFedHIFI().downloads(BIG, lab.info("snn", width=width)) == ann


@pytest.mark.parametrize("policy", ["local", "averaged"])
def test_download_replaces_the_backbone_and_averaged_statistics(lab: Any, policy: str) -> None:
    method = lab.method("sfedhifi", bn_buffers=policy)
    client = lab.client(method, "snn")
    sent = lab.turn(method, client).payload
    assert ("norm.running_mean" in sent) == (policy == "averaged")
    assert "backbone" in client.momentum
    client.backbone.norm.running_mean.fill_(3.0)
    down = {name: torch.full(shape, 0.5) for name, shape in method.downloads(client.task, client.info).items()}
    method.client_receive(client, down, FIRST)
    assert all((p == 0.5).all() for p in client.backbone.parameters())
    assert client.backbone.norm.running_mean.unique().tolist() == ([0.5] if policy == "averaged" else [3.0])
    assert "backbone" not in client.momentum


def test_rounds_with_several_widths(lab: Any) -> None:
    """Real rounds: one layer of every width gets common singular values, the others do not."""
    method = lab.method("sfedhifi", fusion_share=1.0)
    clients = [
        lab.client(method, kind, id=i, width=width)
        for i, (kind, width) in enumerate((("ann", 0.125), ("ann", 0.25), ("snn", 0.125), ("snn", 0.25)))
    ]
    infos = [c.info for c in clients]
    method.check(lab.task, infos)
    state = method.server_init(lab.task, infos)
    for index in range(2):
        rnd = Round(index, 2)
        ups = {c.info.id: take_turn(method, c, method.server_send(state, c.info, rnd), rnd) for c in clients}
        state = method.server_round(state, infos, ups, rnd)
    for kind in KINDS:
        fused = []
        for name in CONVOLUTIONS:
            narrow, wide = (torch.linalg.svdvals(state[f"{kind}/{w}/{name}.coefficient"]) for w in (0.125, 0.25))
            rank = max(1, round(len(narrow) / 4))
            if torch.allclose(narrow[:rank], wide[:rank], rtol=1e-3) and wide[rank:].max() < 1e-4:
                fused.append(name)
        assert len(fused) == 1
        assert kind == "snn" or fused == [FINAL]


# fleets


@pytest.mark.parametrize("width", [0.125, 0.25, 0.375, 0.5, 1.0, 2.0])
def test_multiples_of_an_eighth_are_accepted(lab: Any, width: float) -> None:
    method = SFedHIFI()
    method.check(lab.task, [lab.info("snn", width=width), lab.info("ann", id=1, width=0.125)])
    assert method.uploads(lab.task, lab.info("snn", width=width))


@pytest.mark.parametrize("width", [0.0625, 0.1, 0.3])
def test_widths_not_divisible_by_banks_are_refused_in_one_line(lab: Any, width: float) -> None:
    with pytest.raises(BadInput) as error:
        SFedHIFI().check(lab.task, [lab.info("ann", width=0.25), lab.info("snn", id=1, width=width)])
    message = str(error.value)
    assert f"client 1 (resnet18@{width:g}:snn)" in message
    assert message.startswith("method=sfedhifi: in fleet, ")
    assert "use widths that are multiples of 0.125, or a smaller method.bank_inputs=0.125" in message
    assert "\n" not in message


def test_the_command_refuses_such_a_width_before_training(tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "run"
    fleet = "fleet=1*resnet18@0.0625:ann,1*resnet18@0.0625:snn"
    assert main(["run", "method=sfedhifi", fleet, "--out", str(out)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "in fleet, client 0 (resnet18@0.0625:ann)" in line
    assert "use widths that are multiples of 0.125" in line
    assert not out.exists()


def test_other_architectures_are_refused_in_one_line(lab: Any) -> None:
    with pytest.raises(BadInput, match=r"sfedhifi needs resnet18 .* client 1 \(vgg11@0.25:snn\)") as error:
        SFedHIFI().check(lab.task, [lab.info(), replace(lab.info("snn", id=1, width=0.25), model="vgg11")])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fusion_rank": 0.0}, "method.fusion_rank=0.0 is out of range"),
        ({"fusion_rank": 1.5}, "method.fusion_rank=1.5 is out of range"),
        ({"bank_inputs": 0.0}, "method.bank_inputs=0.0 is out of range"),
        ({"bank_outputs": 2.0}, "method.bank_outputs=2.0 is out of range"),
        ({"fusion_share": 1.1}, "method.fusion_share=1.1 is out of range; use 0 to 1"),
        ({"bank_inputs": 0.25}, "use widths that are multiples of 0.25"),
    ],
    ids=str,
)
def test_bad_values_are_refused(lab: Any, change: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        SFedHIFI(**change).check(lab.task, [lab.info()])


def test_banks_of_other_sizes(lab: Any) -> None:
    method = lab.method("sfedhifi", bank_inputs=0.0625, bank_outputs=0.125)
    method.check(lab.task, [lab.info(width=0.0625)])
    client = lab.client(method, "snn")
    assert client.backbone.stages[3][1].conv2.bank.shape == (64, 32, 3, 3)
    assert lab.turn(method, client).payload[f"{FINAL}.coefficient"].shape == (64, 128)


def test_the_defaults_are_the_documented_ones() -> None:
    method = SFedHIFI()
    assert (method.bank_inputs, method.bank_outputs, method.lambda_orthogonal) == (0.125, 0.25, 10.0)
    assert (method.fusion_share, method.fusion_rank, method.lambda_tet) == (0.45, 0.25, 1e-3)
    assert method.reports == "received"
