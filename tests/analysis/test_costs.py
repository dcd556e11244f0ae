"""The paper's cost tables from the command's JSON; declared passes compared with real rounds."""

import contextlib
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import asfedbridge.methods  # noqa: F401  registers every method
from asfedbridge import cli
from asfedbridge.analysis import operations
from asfedbridge.analysis.firing import count_synops
from asfedbridge.analysis.operations import make_counter
from asfedbridge.analysis.round_costs import find_network, outline_client
from asfedbridge.core.client import Client
from asfedbridge.core.errors import BadInput
from asfedbridge.core.method import METHODS, Method
from asfedbridge.core.task import Round, Task
from asfedbridge.kernels.dispatch import use_path
from asfedbridge.methods.sfedhifi import orthogonality
from asfedbridge.models.composed import ComposedResNet18
from asfedbridge.runs.cost_record import MEASURED_COSTS, parse_costs, parse_run_costs, read_costs
from asfedbridge.runs.costs import run_costs

Make = Callable[..., Client]
Json = dict[str, Any]


def ask(capsys: pytest.CaptureFixture[str], *words: str | Path) -> Json:
    assert cli.main(["costs", "--json", *map(str, words)]) == 0
    return dict(json.loads(capsys.readouterr().out))


@pytest.fixture(scope="module")
def paper() -> Json:
    """`asfedbridge costs --json`, once."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert cli.main(["costs", "--json", "--energy"]) == 0
    return dict(json.loads(out.getvalue()))


def model(table: Json, **wanted: Any) -> Json:
    (found,) = [m for m in table["models"] if all(m[key] == value for key, value in wanted.items())]
    return dict(found)


def test_default_setting_is_the_papers(paper: Json) -> None:
    assert paper["setting"] == {
        "fleet": "5*resnet18:ann,5*resnet18:snn",
        "T": 4,
        "method": "as-fedbridge",
        "classes": 100,
        "channels": 3,
        "image_size": 32,
        "feature_dim": 256,
        "epochs": 5,
        "batch_size": 256,
    }


def test_record_has_all_entries(paper: Json) -> None:
    found = parse_costs(paper)
    assert found.setting.fleet == paper["setting"]["fleet"]
    assert found.bridge.parameters == paper["bridge"]["parameters"]
    assert [m.operations["mflops"] for m in found.models] == [m["mflops"] for m in paper["models"]]
    assert found.configurations["ann+snn:T=4"].bridge
    assert found.methods["fedavg"].training == paper["methods"]["fedavg"]["training"]
    assert found.to_json() == paper


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"setting": 5}, "setting=5 (must be an object)"),
        ({"models": [{}]}, "models[0].model is missing (must be text)"),
        ({"configurations": {"ann": {"bridge": 1}}}, "configurations.ann.bridge=1 (must be true or false)"),
        ({"configurations": {"ann": {"bridge": True, "mflops": "x"}}}, 'configurations.ann.mflops="x"'),
        ({"methods": {"fedavg": {}}}, "methods.fedavg.training is missing"),
        ({"methods": {"fedavg": {"training": {"ann": {"gflops": []}}, "up_mb": None}}}, "methods.fedavg.up_mb=null"),
        ({"format": 2}, "format=2 is not supported"),
    ],
)
def test_invalid_entry_is_named(paper: Json, changes: Json, named: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_costs(paper | changes, Path("somewhere/costs.json"))
    message = str(caught.value)
    assert message.startswith("somewhere/costs.json: ")
    assert named in message
    assert len(message.splitlines()) == 1


def test_damaged_measured_costs_are_refused() -> None:
    with pytest.raises(BadInput, match=r"measured-costs\.json: is not a table of .*: forward is missing"):
        parse_run_costs({"format": 1})


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ({"kind": "ann"}, "mflops", 1111.15),
        ({"kind": "bnn"}, "mflops", 3.85),
        ({"kind": "bnn"}, "low_bit_mmacs", 553.65),
        ({"kind": "bnn"}, "mbitops", 553.65),
        ({"kind": "qnn", "bits": 2}, "mbitops", 2214.60),
        ({"kind": "qnn", "bits": 4}, "mbitops", 8858.40),
        ({"kind": "qnn", "bits": 8}, "mbitops", 35433.60),
        ({"kind": "qnn", "bits": 8}, "low_bit_mmacs", 553.65),
        ({"kind": "snn", "T": 4}, "mflops", 0.0),
    ],
)
def test_models(paper: Json, kind: Json, key: str, value: float) -> None:
    # the paper's 3.85 is 3.852 before rounding
    assert model(paper, **kind)[key] == pytest.approx(value, rel=2e-4 if value != 3.85 else 6e-4, abs=0)


def test_full_precision_layers_of_a_binary_network_round_to_the_papers_value(paper: Json) -> None:
    assert f"{model(paper, kind='bnn')['mflops']:.2f}" == "3.85"


def test_dense_layers_of_an_snn_are_counted_separately(paper: Json) -> None:
    """The stem once and the projection at each of four steps; all other layers have spike inputs."""
    snn = model(paper, kind="snn", T=4)
    assert snn["dense_mflops"] == pytest.approx(3.538944 + 4 * 0.262144)
    assert snn["spiking_mmacs"] == pytest.approx(4 * (1111.148544 - 3.538944 - 0.262144) / 2)
    assert snn["msops"] is None
    assert snn["parameters"] == 11_325_860


@pytest.mark.parametrize(
    ("name", "mflops", "mbitops"),
    [
        ("ann", 1111.15, 0),
        ("bnn", 3.8523, 553.65),
        ("qnn:b=2", 3.8523, 2214.60),
        ("qnn:b=4", 3.8523, 8858.40),
        ("qnn:b=8", 3.8523, 35433.60),
        ("snn:T=4", 0, 0),
        ("ann+bnn", 655.59, 276.82),
        ("ann+qnn:b=2", 655.59, 1107.30),
        ("ann+qnn:b=4", 655.59, 4429.20),
        ("ann+qnn:b=8", 655.59, 17716.80),
        ("ann+snn:T=2", 653.67, 0),
        ("ann+snn:T=4", 653.67, 0),
        ("ann+snn:T=8", 653.67, 0),
        ("ann+ann", 1209.24, 0),
        ("fleet", 653.67, 0),
    ],
)
def test_configurations(paper: Json, name: str, mflops: float, mbitops: float) -> None:
    """The Bridge may differ by 1 % of its 98.09, the rest by 0.02 %."""
    found = paper["configurations"][name]
    assert found["bridge"] == (name == "fleet" or "+" in name)
    bridge = 98.09 if found["bridge"] else 0.0
    ours = found["mflops"] - (paper["bridge"]["mflops"] if bridge else 0.0)
    assert ours == pytest.approx(mflops - bridge, rel=2e-4)
    assert found["mflops"] == pytest.approx(mflops, abs=2e-4 * mflops + 0.01 * bridge)
    assert found["mbitops"] == pytest.approx(mbitops, rel=2e-4)


def test_the_bridge(paper: Json) -> None:
    assert paper["bridge"]["mflops"] == pytest.approx(98.09, rel=0.01)


@pytest.mark.parametrize(
    ("method", "megabytes"),
    [
        ("fedavg", "43.20"),
        ("fedprox", "43.20"),
        ("fedfree", "18.00"),
        ("fedproto", "0.10"),
        ("fedtgp", "0.60"),
        ("fml", "3.93"),
        ("mh-pflid", "3.93"),
        ("as-fedbridge", "3.93"),
    ],
)
def test_payloads(paper: Json, method: str, megabytes: str) -> None:
    found = paper["methods"][method]
    assert f"{found['table_mb']:.2f}" == megabytes
    assert f"{found['up_mb']:.2f}" == ("0.10" if method == "fedtgp" else megabytes)
    assert found["down_mb"] == pytest.approx(found["up_mb"] if method != "fedfree" else 9.0)
    assert found["server_mb"] == pytest.approx(10 * (found["up_mb"] + found["down_mb"]))


@pytest.mark.parametrize(
    ("method", "ann", "beside"),
    [
        ("fedavg", "16.67", "0.00"),
        ("fedprox", "16.67", "0.00"),
        ("fedfree", "16.67", "0.00"),
        ("fedproto", "17.78", "0.00"),
        ("fedtgp", "17.78", "0.00"),
        ("fml", "18.14", "1.47"),
        ("mh-pflid", "18.57", "0.79"),
        ("as-fedbridge", "18.57", "0.79"),
    ],
)
def test_training(paper: Json, method: str, ann: str, beside: str) -> None:
    """To every digit of the paper's table."""
    found = paper["methods"][method]["training"]
    assert f"{found['ann']['gflops']:.2f}" == ann
    assert f"{found['snn']['gflops']:.2f}" == beside
    assert found["snn"]["gsops"] is None
    assert found["ann"].keys() == {"gflops"}


def test_dense_operations_of_an_snns_training(paper: Json) -> None:
    """By hand: five epochs of stem, projection, norms and input gradients, at four steps after the stem."""
    stem, projection, driven = 3.538944, 4 * 0.262144, 4 * (1111.148544 - 3.538944 - 0.262144)
    norms = 2e-6 * (65536 + 4 * (614400 - 65536))  # values; the stem's norm runs once
    forward = stem + projection + norms
    backward = stem + 2 * projection + 2 * norms + driven
    training = paper["methods"]["fedavg"]["training"]["snn"]
    assert training["dense_gflops"] == pytest.approx(5 * (forward + backward) / 1e3)


def test_weight_gradients_need_one_accumulation_per_spike_and_output() -> None:
    """An event-driven backward pass by hand: as many additions as the forward pass has synaptic operations."""
    conv = nn.Conv2d(1, 2, 3, padding=1, bias=False)
    spikes = torch.zeros(1, 1, 4, 4)
    spikes[0, 0, 0, 0] = spikes[0, 0, 2, 1] = 1  # a corner reaches 4 pixels, an inner pixel 9
    gradient, additions = torch.zeros_like(conv.weight), 0
    out = conv(spikes)
    arriving = torch.randn(out.shape, generator=torch.Generator().manual_seed(0))
    for _, _, row, column in spikes.nonzero().tolist():
        for down in (-1, 0, 1):
            for right in (-1, 0, 1):
                if 0 <= row + down < 4 and 0 <= column + right < 4:
                    gradient[:, 0, 1 - down, 1 - right] += arriving[0, :, row + down, column + right]
                    additions += conv.out_channels
    out.backward(arriving)
    assert torch.allclose(conv.weight.grad, gradient)  # type: ignore[arg-type]
    assert additions == count_synops(conv, spikes) == 2 * (4 + 9)


def test_all_methods_are_listed(paper: Json) -> None:
    assert set(paper["methods"]) == set(METHODS)
    assert all("training" in entry for entry in paper["methods"].values())


def test_energy_by_its_constants(paper: Json) -> None:
    assert model(paper, kind="ann")["energy_uj"] == pytest.approx(1111.148544 / 2 * 4.6)
    assert model(paper, kind="qnn", bits=8)["energy_uj"] == pytest.approx(3.852288 / 2 * 4.6 + 553.648128 * 0.23)
    assert model(paper, kind="bnn")["energy_uj"] is None  # no constant for one bit
    assert model(paper, kind="snn", T=4)["energy_uj"] is None  # no spikes measured


ROUND = Task(classes=4, channels=3, image_size=16, rounds=2, epochs=2, batch_size=8, feature_dim=16)
TOLERANCE = {"mh-pflid": 1e-3}  # injection uses the messenger's frozen head


def methods() -> list[Any]:
    changes: list[tuple[str, dict[str, Any]]]
    changes = [("as-fedbridge", {"direction": "ann-to-snn"}), ("as-fedbridge", {"direction": "snn-to-ann"})]
    receiver: dict[str, Any] = {"direction": "snn-to-ann"}  # the ANN client receives
    changes += [("as-fedbridge", receiver | change) for change in ({"receivers": "frozen"}, {"personal_head": False})]
    changes += [("as-fedbridge", {"injection_epochs": 2}), ("mh-pflid", {"distillation_epochs": 2})]
    return [
        pytest.param(METHODS[name](**more), id=f"{name} {more or ''}")
        for name, more in [*((n, {}) for n in METHODS), *changes]
    ]


@pytest.mark.parametrize("method", methods())
def test_declared_passes_are_what_a_real_round_executes(make_client: Make, method: Method) -> None:
    """torch's FLOP counter over one round of an ANN client; it does not count normalisation."""
    compare_with_a_round(make_client(method, ROUND), method)


@pytest.mark.parametrize(("kind", "bits"), [("bnn", 1), ("qnn", 4)])
def test_low_bit_clients_train_in_full_precision(make_client: Make, kind: str, bits: int) -> None:
    method = METHODS["as-fedbridge"]()
    compare_with_a_round(make_client(method, ROUND, kind, bits=bits), method)


def test_spike_driven_and_dense_operations_add_up_for_an_snn(make_client: Make) -> None:
    method = METHODS["fedproto"]()
    with use_path("torch"):  # the counter does not count event-driven convolutions
        compare_with_a_round(make_client(method, ROUND, "snn", T=2), method)


def compare_with_a_round(client: Client, method: Method) -> None:
    with make_counter() as counter:
        method.client_round(client, Round(0, 2))
    outline = outline_client(method, ROUND, client.info)
    steps = client.info.train_size / ROUND.batch_size
    expected = ROUND.epochs * steps * loss_products(client)
    for name, (forward, backward) in method.client_passes(ROUND, client.info).items():
        there, back = bare(find_network(outline, name))
        expected += steps * (forward * there + backward * back)
    assert counter.get_total_flops() == pytest.approx(expected, rel=TOLERANCE.get(method.name, 0), abs=0)


def loss_products(client: Client) -> int:
    """Matrix products in losses, which the paper leaves out: SFedHIFI's orthogonality loss."""
    with make_counter() as counter:
        if isinstance(client.backbone, ComposedResNet18):
            orthogonality(client.backbone.banks()).backward()
    return int(counter.get_total_flops())


PROFILES: dict[str, tuple[int, int]] = {}


def bare(network: nn.Module) -> tuple[int, int]:
    """A profile without our additions to torch's count."""
    name = repr(network)
    if name not in PROFILES:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(operations, "NORM_FLOPS", 0)
            found = operations.profile(network, ROUND, ROUND.batch_size)
            PROFILES[name] = found.forward, found.backward
    return PROFILES[name]


def test_any_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["fleet=resnet18@0.25:ann,3*resnet18@0.25:snn:T=2", "image_size=16", "classes=7", "channels=1", "epochs=2"]
    table = ask(capsys, *words, "method=fedproto", "batch_size=8")
    assert table["setting"] | {"classes": 7, "channels": 1, "image_size": 16, "epochs": 2} == table["setting"]
    assert model(table, kind="snn", T=2)["width"] == 0.25
    assert not table["configurations"]["fleet"]["bridge"]
    assert table["configurations"]["fleet"]["mflops"] == pytest.approx(model(table, kind="ann")["mflops"] / 4)
    assert "energy_uj" not in table["models"][0]


def test_refused_fleet_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["fleet=resnet18@0.125:ann,resnet18@0.25:snn", "image_size=8", "classes=3", "feature_dim=8"]
    assert "do not have the same shapes" in ask(capsys, *words)["methods"]["fedavg"]["refused"]
    assert cli.main(["costs", *words]) == 0
    out = capsys.readouterr().out
    assert "fedavg: method=fedavg averages tensor by tensor" in out
    assert "--run RUN_DIR" in out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["cpu", "classes=3"], "classes=3: the data determine it"),
        (["classes=none"], "classes=none must be a whole number"),
        (["nonsense"], "'nonsense' is neither a recipe"),
        (["T=0"], "T=0 is out of range"),
        (["--run", "nowhere"], "nowhere: is not a run folder"),
        (["--run", "nowhere", "T=2"], "--run nowhere: the run has its own settings; leave out T=2"),
    ],
)
def test_invalid_input_is_refused(capsys: pytest.CaptureFixture[str], words: list[str], expected: str) -> None:
    assert cli.main(["costs", *words]) == 2
    err = capsys.readouterr().err
    assert expected in err
    assert len(err.splitlines()) == 1


SMALL = [
    "fleet=1*resnet18@0.125:ann,2*resnet18@0.125:snn",
    "T=2",
    "train_per_class=4",
    "test_per_class=2",
    "batch_size=16",
    "feature_dim=16",
    "partition=iid",
    "rounds=2",
]


@pytest.mark.parametrize("method", ["fedavg", "fedproto"])
def test_costs_of_a_finished_run(tmp_path: Path, capsys: pytest.CaptureFixture[str], method: str) -> None:
    """SOPs are measured on its own clients, and known only for its own method."""
    assert cli.main(["run", *SMALL, f"method={method}", "--out", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    table = ask(capsys, "--run", tmp_path / "run")
    snn = model(table, kind="snn", T=2)
    assert 0 < snn["msops"] <= snn["msops_by_rate"] < snn["spiking_mmacs"]
    assert len(snn["rates"]["stages.2.0.conv1"]) == 2
    assert table["configurations"]["fleet"]["msops"] == pytest.approx(2 / 3 * snn["msops"])
    forward, backward = (2, 1) if method == "fedproto" else (1, 1)
    training = table["methods"][method]["training"]["snn"]
    assert training["gsops"] == pytest.approx((forward + backward) * snn["msops"] / 1e3)
    assert training["gsops_by_rate"] == pytest.approx((forward + backward) * snn["msops_by_rate"] / 1e3)
    assert table["methods"]["standalone"]["training"]["snn"]["gsops"] is None
    found = run_costs(tmp_path / "run", tmp_path)
    assert found["forward"].items() <= table["configurations"]["fleet"].items()
    assert found["training"] == table["methods"][method]["training"]
    content = (tmp_path / "run" / MEASURED_COSTS).read_text()
    (tmp_path / "run" / MEASURED_COSTS).write_text(content.replace('"up_mb"', '"mb_up"'))
    assert read_costs(tmp_path / "run") is None
    assert run_costs(tmp_path / "run", tmp_path) == found  # counted again
    assert (tmp_path / "run" / MEASURED_COSTS).read_text() == content
    shutil.rmtree(tmp_path / "run" / "checkpoint")
    assert run_costs(tmp_path / "run", tmp_path) == found  # counted once
    (tmp_path / "run" / MEASURED_COSTS).unlink()
    with pytest.raises(BadInput, match="the checkpoint after the last round is missing"):
        run_costs(tmp_path / "run", tmp_path)
