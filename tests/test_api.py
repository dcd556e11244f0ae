"""The public API: what `import asfedbridge` gives, and that a script gets the same as the command line."""

import subprocess
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import asfedbridge as afb
from asfedbridge.cli import main, name_options, resolve
from asfedbridge.core.method import METHODS
from asfedbridge.core.task import ClientInfo, Output, Task
from asfedbridge.methods.fedavg import FedAvg
from asfedbridge.models.adapter import Adapter, ModuleMaker, adapt
from asfedbridge.models.registry import MODELS
from asfedbridge.runs.record_files import read_diagnostics

TINY: dict[str, Any] = {"fleet": "vgg9@0.125:ann,vgg9@0.125:snn", "train_per_class": 5, "test_per_class": 2}
TASK = Task(classes=3, channels=1, image_size=8, feature_dim=16)
ANN, SNN = ClientInfo(0, "ann", "mine"), ClientInfo(0, "snn", "mine", T=3)


# Importing


def loaded(code: str) -> str:
    """Which of the heavy packages are imported after ``code``."""
    told = "import sys; print([m for m in ('torch', 'numpy', 'asfedbridge.runs.run') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", f"{code}\n{told}"], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    "code",
    [
        "import asfedbridge; dir(asfedbridge); asfedbridge.__version__; asfedbridge.__all__",
        "import asfedbridge as afb; afb.BadInput; afb.load_plugin",
        "from asfedbridge.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass",
        "from asfedbridge.cli import main\ntry: main(['run', '--help'])\nexcept SystemExit: pass",
    ],
)
def test_importing_and_help_load_nothing_heavy(code: str) -> None:
    assert loaded(code) == "[]"


def test_every_name_is_there() -> None:
    assert set(afb.__all__) <= set(dir(afb))
    for name in afb.__all__:
        assert getattr(afb, name) is not None
        assert name == "__version__" or getattr(afb, name).__doc__ or name in ("Payload", "Shapes")
    with pytest.raises(AttributeError, match="nothing"):
        afb.nothing  # type: ignore[attr-defined]  # noqa: B018  # type: ignore[attr-defined]


# Specifications


def test_a_recipe_takes_the_keys_of_the_command_line() -> None:
    words = ["cpu", "method=fedprox", "method.mu=0.2", "rounds=3", "optimiser.lr_ann=0.1", "data=cifar100", "seed=7"]
    plain = {"method": "fedprox", "rounds": 3, "data": "cifar100", "seed": 7}
    assert afb.recipe("cpu", method__mu=0.2, optimiser__lr_ann=0.1, **plain) == resolve(words)
    assert afb.recipe("cpu", {"method.mu": 0.2, "optimiser.lr_ann": 0.1}, **plain) == resolve(words)
    assert afb.recipe() == resolve([])


def test_a_recipe_from_a_file(tmp_path: Path) -> None:
    from asfedbridge.runs.toml import write_toml

    file = tmp_path / "mine.toml"
    file.write_text(write_toml(afb.recipe("smoke", method="fml")))
    assert afb.recipe(file, seed=3) == afb.recipe("smoke", method="fml", seed=3)


def test_a_recipe_takes_an_instance_of_a_method() -> None:
    spec = afb.recipe("smoke", method=FedAvg(bn_buffers="averaged"), rounds=5)
    assert spec.method == FedAvg(bn_buffers="averaged")
    assert spec.rounds == 5


ONE: Any = afb.Participant("vgg9", (list(range(9)), [0]))  # not a list; its data are not shown


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: afb.recipe("cpuu"), "'cpuu' is neither a recipe nor a .toml file; did you mean 'cpu'"),
        (lambda: afb.recipe("cpu", method="fedprocks"), "method=fedprocks: unknown method"),
        (lambda: afb.recipe("cpu", method__nu=1), "unknown key 'method.nu'"),
        (lambda: afb.recipe("cpu", method_nu=1), "unknown key 'method_nu'; write method.nu, in Python method__nu"),
        (lambda: afb.Federation("fml", ONE), r"clients=Participant\(model='vgg9', kind='ann', T=4\) must be a list"),
        (lambda: afb.recipe("cpu", roundz=1), "unknown key 'roundz'; did you mean 'rounds'"),
        (lambda: afb.run("smoke", engine="cluster"), "engine=cluster: unknown engine"),
        (lambda: afb.run("smoke", workers=2), "workers=2: the local engine has no workers; use engine=pool"),
        (lambda: afb.run("smoke", resume=True), "resume=True needs out"),
        (lambda: afb.Federation("fedavg", []), "at least one Participant"),
        (lambda: afb.load("nowhere"), "nowhere: is not a run folder"),
    ],
)
def test_errors_speak_python(make: Any, message: str) -> None:
    with pytest.raises(afb.BadInput, match=message) as error:
        make()
    assert "--" not in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("python", "command_line"),
    [
        ("out=a/b: the folder contains another run; add resume=True to continue it, or give another out", None),
        ("workers=9: cannot start them all; take fewer", "--workers 9: cannot start them all; take fewer"),
        ("import x.py: there is no such Python file", "--import x.py: there is no such Python file"),
        ("use format=onnx or format=torch", "use --format onnx or --format torch"),
        ("free space or change data_root", "free space or change --data-root"),
        ("give data=SOURCE", "give --data SOURCE"),
        ("imported only with permission; use trust=True", "imported only with permission; use --trust"),
        ("the run imported x.py: load that file with load_plugin", "the run imported x.py: add --import FILE"),
        (
            "not known; pass models={'net': ...}, or load the file that registers it with load_plugin",
            "not known; add --import FILE, the file that registers it",
        ),
        ("callback=x: unknown callback 'x'", "--callback x: unknown callback 'x'"),
        ("holdout=0.2 and out are words", "holdout=0.2 and out are words"),
    ],
)
def test_the_command_line_names_options(python: str, command_line: str | None) -> None:
    told = (
        command_line or "--out a/b: the folder contains another run; add --resume to continue it, or give another --out"
    )
    assert name_options(afb.BadInput(python)) == told


# Running


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> afb.Result:
    spec = afb.recipe("smoke", method="fedproto", rounds=2, **TINY)
    return afb.run(spec, out=tmp_path_factory.mktemp("api") / "run")


def test_a_result_is_what_the_folder_holds(finished: afb.Result, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(finished.accuracy) == {"ann", "snn", "all"}
    assert [(c.id, c.kind, c.T) for c in finished.clients] == [(0, "ann", 1), (1, "snn", 2)]
    assert finished.clients[1].accuracy == finished.accuracy["snn"]
    assert len(finished.rounds) == 2 * 3  # clients, rounds and the closing visit
    assert finished.settings["method"]["name"] == finished.method == "fedproto"
    assert [number for number, _ in finished.curves()["snn"]] == [0, 1]
    assert finished.curves()["snn"][-1][1] == finished.accuracy["snn"]
    again = afb.load(str(finished.folder))
    assert (again.accuracy, again.clients, again.rounds) == (finished.accuracy, finished.clients, finished.rounds)
    assert "fedproto" in repr(finished)


def test_a_folder_without_rounds_is_named(finished: afb.Result, tmp_path: Path) -> None:
    for name in ("summary.json", "spec.toml"):
        (tmp_path / name).write_bytes((finished.folder / name).read_bytes())
    with pytest.raises(afb.BadInput, match=r"rounds\.jsonl is missing"):
        _ = afb.load(tmp_path).rounds


def test_a_result_is_drawn(finished: afb.Result, monkeypatch: pytest.MonkeyPatch) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    axes = finished.plot()
    assert {line.get_label() for line in axes.get_lines()} == {"ann", "snn", "all"}


def test_a_result_is_a_frame(finished: afb.Result) -> None:
    pytest.importorskip("pandas")
    frame = finished.to_frame()
    assert len(frame) == len(finished.rounds)
    assert frame["trained.accuracy"].dropna().iloc[-1] == finished.rounds[3]["trained.accuracy"]


@pytest.mark.parametrize(("package", "call"), [("pandas", "to_frame"), ("matplotlib", "plot")])
def test_what_is_not_installed_is_named(
    finished: afb.Result, package: str, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=f"Result.{call} needs {package}: pip install {package}"):
        getattr(finished, call)()


def test_a_folder_in_use_is_refused_by_its_argument(finished: afb.Result, capsys: Any) -> None:
    spec = afb.recipe("smoke", method="fedproto", rounds=2, **TINY)
    with pytest.raises(afb.BadInput, match=r"^out=.*: the folder contains another run; add resume=True to continue it"):
        afb.run(spec, out=finished.folder)
    assert afb.run(spec, out=finished.folder, resume=True).accuracy == finished.accuracy
    keys = [f"{key}={value}" for key, value in TINY.items()]
    assert main(["run", "smoke", "method=fedproto", "rounds=2", *keys, "--out", str(finished.folder)]) == 2
    assert f"--out {finished.folder}: the folder contains another run; add --resume" in capsys.readouterr().err


# Modules of the user's own


class Plain(nn.Module):
    def __init__(self, hidden: int = 16) -> None:
        super().__init__()
        self.body = nn.Linear(64, hidden)
        self.head = nn.Linear(hidden, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x.view(len(x), -1)).relu())


class Counter(nn.Module):
    """Its answer depends on how often it was called since it was reset."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 3)
        self.calls = 0

    def reset(self) -> None:
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.head(self.calls * x.flatten(1))


class Own(nn.Module):
    def forward(self, x: Tensor) -> Output:
        return Output(torch.zeros(1, len(x), 3), torch.zeros(1, len(x), 16))


def test_the_feature_is_the_input_of_the_last_linear_layer() -> None:
    module = Plain()
    wrapped = adapt(module, TASK, ANN)
    x = torch.rand(5, 1, 8, 8)
    out = wrapped(x)
    assert torch.equal(out.logits_TBC, module(x)[None])
    assert torch.equal(out.feature_TBD, module.body(x.flatten(1)).relu()[None])
    assert set(wrapped.state_dict()) == {f"module.{name}" for name in module.state_dict()}


def test_a_feature_of_another_size_is_projected() -> None:
    wrapped = adapt(Plain(hidden=7), TASK, ANN)
    out = wrapped(torch.rand(5, 1, 8, 8))
    assert out.feature_TBD.shape == (1, 5, 16)
    out.feature_TBD.sum().backward()
    assert isinstance(wrapped, Adapter)
    assert wrapped.projector is not None
    assert wrapped.projector.weight.grad is not None
    assert wrapped.module.body.weight.grad is not None  # the feature teaches the module, too


def test_a_spiking_module_is_reset_and_called_for_every_step() -> None:
    wrapped = adapt(Counter(), TASK, SNN)
    x = torch.rand(2, 1, 8, 8)
    first, again = wrapped(x), wrapped(x)
    assert first.logits_TBC.shape == (3, 2, 3)
    assert torch.equal(first.logits_TBC, again.logits_TBC)
    assert not torch.equal(first.logits_TBC[0], first.logits_TBC[1])
    assert isinstance(wrapped, Adapter)
    assert wrapped.projector is not None
    assert torch.allclose(first.feature_TBD[2], wrapped.projector(3 * x.flatten(1)), atol=1e-6)


@pytest.mark.parametrize("mode", ["s", "m"])
def test_spikingjelly_in_both_step_modes(mode: str) -> None:
    pytest.importorskip("spikingjelly")
    from spikingjelly.activation_based import functional, layer, neuron

    torch.manual_seed(0)
    net = nn.Sequential(layer.Flatten(), layer.Linear(64, 16), neuron.IFNode(), layer.Linear(16, 3))
    x = torch.rand(4, 1, 8, 8)
    functional.set_step_mode(net, "m")
    expected = net(x.repeat(3, 1, 1, 1, 1)).detach()
    functional.reset_net(net)
    functional.set_step_mode(net, mode)
    out = adapt(net, TASK, SNN)(x)
    assert torch.allclose(out.logits_TBC, expected)
    assert out.feature_TBD.shape == (3, 4, 16)
    assert set(out.feature_TBD.unique().tolist()) <= {0.0, 1.0}  # the spikes of the last neurons


def test_a_module_that_returns_an_output_is_left_alone() -> None:
    module = Own()
    assert adapt(module, TASK, ANN) is module


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(5, 3)), "model 'mine' cannot take images of 1x8x8: "),
        (nn.Flatten(), "no linear layer whose input could be its feature; return logits"),
    ],
)
def test_a_module_that_cannot_be_used(module: nn.Module, message: str) -> None:
    with pytest.raises(afb.BadInput, match=message) as error:
        adapt(module, TASK, ANN)
    assert "\n" not in str(error.value)


def test_a_module_crosses_with_its_values() -> None:
    from multiprocessing.reduction import ForkingPickler

    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    sent = ForkingPickler.dumps(ModuleMaker(module))
    copy = ForkingPickler.loads(sent).make_module()
    assert all(torch.equal(t, copy.state_dict()[name]) for name, t in module.state_dict().items())
    assert list(copy.state_dict()) == list(module.state_dict())
    assert module[1].weight.shape == (8, 64)  # sending it leaves the original as it was


# Federations


class Rows:
    """Rows as Hugging Face has them: not a torch Dataset, only a length and items."""

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"image": self.x[index], "label": int(self.y[index])}


def stripes(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = np.arange(count) % 3
    x = rng.integers(0, 60, (count, 8, 8)).astype(np.uint8)
    for image, label in zip(x, y, strict=True):
        image[:, label * 3] += 180
    return x, y


def make_federation(method: Any = "fedproto", **settings: Any) -> afb.Federation:
    torch.manual_seed(0)
    x, y = stripes(30, 0)
    clients = [
        afb.Participant(Plain, Rows(x, y), test=stripes(12, 9)),
        afb.Participant(partial(Plain, 8), stripes(30, 1)),
        afb.Participant(Plain(hidden=12), (x / 255, y)),
        afb.Participant(Counter, stripes(30, 2), kind="snn", T=2),
    ]
    return afb.Federation(method, clients, batch_size=8, seed=3, **settings)


def states(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted((folder / "checkpoint" / "clients").iterdir())}


def test_a_federation_is_the_same_on_local_and_pool_and_when_resumed(tmp_path: Path) -> None:
    local = afb.federate(make_federation(), rounds=2, out=tmp_path / "local")
    pooled = afb.federate(make_federation(), rounds=2, out=tmp_path / "pool", engine="pool", workers=2)
    assert pooled.accuracy == local.accuracy
    assert states(tmp_path / "pool") == states(tmp_path / "local")
    again = afb.federate(make_federation(), rounds=2, out=tmp_path / "local", resume=True)
    assert again.accuracy == local.accuracy
    assert [(c.model, c.kind, c.train, c.test) for c in local.clients] == [
        ("Plain", "ann", 30, 12),
        ("Plain-2", "ann", 24, 6),
        ("Plain-3", "ann", 24, 6),
        ("Counter", "snn", 24, 6),
    ]
    assert local.summary["partition"] == "python"
    with pytest.raises(afb.BadInput, match=r"contains another run \(it has epochs = 1; given: epochs = 2\)"):
        afb.federate(make_federation(epochs=2), rounds=2, out=tmp_path / "local", resume=True)


class Rigid(nn.Module):
    """Linear layers only: a frozen one, one that is not used, and the last."""

    def __init__(self, trains: bool = True) -> None:
        super().__init__()
        self.first, self.idle, self.last = nn.Linear(64, 8), nn.Linear(3, 3), nn.Linear(8, 2)
        self.first.requires_grad_(False)
        self.scale = nn.Parameter(torch.ones(2))
        self.idle.requires_grad_(trains)
        self.last.requires_grad_(trains)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(self.first(x.flatten(1)).relu())
        return logits * self.scale


@pytest.mark.parametrize("trains", [True, False])
def test_models_without_convolutions_are_diagnosed(tmp_path: Path, trains: bool) -> None:
    draw = np.random.default_rng(7)
    data = [(draw.integers(0, 255, (8, 1, 8, 8), dtype=np.uint8), np.arange(8) % 2) for _ in range(3)]
    clients = [afb.Participant(partial(Rigid, trains), one, test=one) for one in data]
    federation = afb.Federation("standalone", clients, diagnose_every=1)
    afb.federate(federation, rounds=2, out=tmp_path / "run")
    for line in read_diagnostics(tmp_path / "run"):
        block = line["gradients"]["blocks"]["ann"]
        assert (block["mean"] is not None, block["pairs"]) == ((True, 3) if trains else (False, 0))


def test_federations_follow_one_another() -> None:
    """A name of the first one means another model in the second."""
    data = stripes(30, 1)
    for hidden in (5, 6):
        client = afb.Participant(Plain(hidden), data)
        _, setting = afb.Federation("standalone", [client, afb.Participant("vgg9@0.125", data)]).prepare()
        assert f"features of size {hidden} are projected to 256" in setting.notes
        assert [c.model for c in setting.clients] == ["Plain", "vgg9"]
    _, setting = afb.Federation("standalone", [afb.Participant(Counter, data, kind="snn")]).prepare()
    assert setting.task.feature_dim == 64  # of all models
    assert not setting.notes
    assert "Plain" not in MODELS


def test_each_participant_is_normalised_by_its_own_training_images() -> None:
    x, y = stripes(30, 0)
    clients = [afb.Participant(Plain, (x, y)), afb.Participant(Plain, (x // 4, y))]
    _, setting = afb.Federation("standalone", clients).prepare()
    for shard in setting.shards:
        pixels = torch.cat([batch for batch, _ in shard.train_batches_plain(8)])
        assert abs(pixels.mean().item()) < 1e-3
        assert abs(pixels.std().item() - 1) < 1e-2


@dataclass(frozen=True)
class StepSize(FedAvg):
    size: float = 0.5

    def server_round(self, state: Any, clients: Any, ups: Any, rnd: Any) -> Any:
        mean = super().server_round(state, clients, ups, rnd)
        return {name: old + self.size * (mean[name] - old) for name, old in state.items()}


def test_a_method_need_not_be_registered(tmp_path: Path) -> None:
    clients = [afb.Participant(Plain, stripes(30, seed)) for seed in (0, 1)]
    try:
        results = [
            afb.federate(afb.Federation(StepSize(size=0.25), clients), rounds=1, out=tmp_path / engine, engine=engine)
            for engine in ("local", "pool")
        ]
    finally:
        METHODS.pop("step-size", None)
    assert [r.method for r in results] == ["step-size"] * 2
    assert results[0].settings["method"]["size"] == 0.25
    assert states(tmp_path / "local") == states(tmp_path / "pool")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fleet": "vgg9:ann"}, "fleet=vgg9:ann: the participants of the Federation determine it"),
        ({"classes": 2}, "classes=2: there is a label 2; give at least 3"),
        ({"method": "centralized"}, "method=centralized needs all data in one place"),
        ({"colour": 1}, "unknown key 'colour'"),
    ],
)
def test_a_federation_that_cannot_be(change: dict[str, Any], message: str) -> None:
    with pytest.raises(afb.BadInput, match=message):
        make_federation(**change).prepare()


def test_participants_that_cannot_be() -> None:
    x, y = stripes(30, 0)
    bad = {
        "clients\\[1\\].dataset: images are 1x16x16, the first ones 1x8x8": (np.repeat(np.repeat(x, 2, 1), 2, 2), y),
        "clients\\[1\\].dataset: x: pixels are float64 from -1 to": (x / 127.5 - 1, y),
    }
    for message, data in bad.items():
        with pytest.raises(afb.BadInput, match=message):
            afb.Federation("standalone", [afb.Participant(Plain, (x, y)), afb.Participant(Plain, data)]).prepare()
    with pytest.raises(afb.BadInput, match=r"^clients\[0\]=.* must be a Participant"):
        afb.Federation("standalone", [Plain])  # type: ignore[list-item]
    with pytest.raises(afb.BadInput, match=r"clients\[0\]: model=3 must be a torch.nn.Module"):
        afb.Federation("standalone", [afb.Participant(3, (x, y))]).prepare()  # type: ignore[arg-type]


class Paired(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return x, x


class Unfinished(Plain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise KeyError("stem")


class Frozen(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(False)


class Infinite(Plain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) / 0.0


def spiking_network() -> nn.Module:
    from spikingjelly.activation_based import neuron

    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), neuron.LIFNode(), nn.Linear(16, 3))


class Sized(Plain):
    def __init__(self, width: int) -> None:
        super().__init__()


def raise_on_purpose() -> nn.Module:
    raise OSError("no weights here")


@pytest.mark.parametrize(
    ("participant", "message"),
    [
        ({"model": Paired}, r"clients\[1\]\.model: model 'Paired' returns a tuple; return logits"),
        (
            {"model": Unfinished},
            r"clients\[1\]\.model: model 'Unfinished' cannot take images of 1x8x8: KeyError",
        ),
        ({"model": nn.Flatten()}, r"clients\[1\]\.model: model 'Flatten' has no linear layer"),
        ({"model": Sized}, r"clients\[1\]\.model: .*Sized.*, called without arguments: TypeError: .*'width'"),
        ({"model": raise_on_purpose}, r"clients\[1\]\.model: .*raise_on_purpose.*: OSError: no weights here"),
        ({"model": lambda: 3}, r"clients\[1\]\.model: .*lambda.* returns a int; return a torch.nn.Module"),
        ({"model": "resnet81"}, r"clients\[1\]: unknown model 'resnet81'; did you mean 'resnet18'"),
        ({"model": "2*resnet18"}, r"clients\[1\]\.model='2\*resnet18': give the name of one model"),
        ({"model": "resnet18:snn"}, r"clients\[1\]\.model='resnet18:snn': give the name of one model"),
        ({"model": Frozen}, r"clients\[1\]\.model: model 'Frozen' has no trainable parameter; set requires_grad"),
        ({"model": Infinite}, r"clients\[1\]\.model: model 'Infinite': logits_TBC of 2 images is not finite"),
        (
            {"model": spiking_network},
            r"clients\[1\]\.model: model 'spiking_network' has spiking layers \(LIFNode\), but kind=ann; use kind=snn",
        ),
        ({"kind": "snn", "T": 0}, r"clients\[1\]: T 0 is out of range"),
        ({"model": "resnet18", "kind": "cnn"}, r"clients\[1\]: unknown kind 'cnn'"),
    ],
)
def test_messages_about_a_model_name_its_participant(participant: dict[str, Any], message: str) -> None:
    data = stripes(30, 0)
    second = afb.Participant(**{"model": Plain, "dataset": data, **participant})
    with pytest.raises(afb.BadInput, match=f"^{message}") as caught:
        afb.Federation("standalone", [afb.Participant(Plain, data), second]).prepare()
    assert "\n" not in str(caught.value)
    assert "fleet" not in str(caught.value)


def test_the_cause_of_a_models_failure_is_chained() -> None:
    federation = afb.Federation("standalone", [afb.Participant(raise_on_purpose, stripes(30, 0))])
    with pytest.raises(afb.BadInput) as caught:
        federation.prepare()
    assert isinstance(caught.value.__cause__, OSError)


def test_what_workers_cannot_import_is_said_in_one_line(tmp_path: Path) -> None:
    federation = afb.Federation("standalone", [afb.Participant(lambda: Plain(), stripes(30, 0))])
    with pytest.raises(afb.BadInput, match=r"cannot be sent to worker processes .*lambda.*top level") as error:
        afb.federate(federation, rounds=1, out=tmp_path / "run", engine="pool")
    assert "\n" not in str(error.value)
    with pytest.raises(afb.BadInput, match="engine=flower: the participants are objects of this process"):
        afb.federate(federation, rounds=1, out=tmp_path / "run", engine="flower")


# What a first trial met


class Reads(FedAvg):
    """A method whose server needs a file that is not there."""

    name = "reads"

    def server_round(self, state: Any, clients: Any, ups: Any, rnd: Any) -> Any:
        Path("no-such-table.csv").read_text()


@pytest.mark.parametrize("engine", ["local", "pool"])
def test_a_missing_file_of_a_method_is_not_a_full_disk(engine: str, tmp_path: Path) -> None:
    spec = replace(afb.recipe("smoke", fleet="2*vgg9@0.0625:ann", rounds=1), method=Reads())
    with pytest.raises(FileNotFoundError, match=r"no-such-table\.csv"):
        afb.run(spec, out=tmp_path / "run", engine=engine)


def test_a_finished_federation_is_not_resumed_with_other_data(tmp_path: Path) -> None:
    x, y = stripes(30, 0)
    out = tmp_path / "run"

    def federate(images: Any) -> Any:
        client = afb.Participant(Plain, (images, y))
        return afb.federate(afb.Federation("standalone", [client]), rounds=1, out=out, resume=True)

    assert federate(x).accuracy == federate(x).accuracy
    with pytest.raises(afb.BadInput, match=f"^out={out}: the folder contains a finished run on other data"):
        federate(x[::-1].copy())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": -1, "engine": "pool"}, "^workers=-1 must be a number of processes"),
        ({"workers": "2", "engine": "pool"}, "^workers='2' must be"),
        ({"callbacks": afb.EarlyStopping()}, "^callbacks=.* must be a list of instances"),
        ({"callbacks": ["early-stopping"]}, "^callbacks=.* must be a list of instances"),
        ({"callbacks": None}, "^callbacks=None must be a list of instances"),
        ({"callbacks": [afb.EarlyStopping]}, "^callbacks=.* must be a list of instances"),
        ({"callbacks": [afb.EarlyStopping()], "engine": "flower"}, "^callbacks: objects cannot be sent"),
    ],
)
def test_arguments_of_run_that_cannot_be(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(afb.BadInput, match=message):
        afb.run("smoke", out=tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_an_out_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(afb.BadInput, match=r"is not a folder; give another out$"):
        afb.run(afb.recipe("smoke", rounds=1), out=tmp_path / "file")


def test_a_metric_that_no_round_has_ends_the_run(tmp_path: Path) -> None:
    spec = afb.recipe("smoke", fleet="1*vgg9@0.0625:ann", method="standalone", rounds=3)
    with pytest.raises(afb.CallbackFailed, match="metric=zzz is not in the records"):
        afb.run(spec, out=tmp_path / "run", callbacks=[afb.EarlyStopping("zzz")])


@pytest.mark.long
def test_a_script_without_a_guard_is_told(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import asfedbridge as afb\n"
        "spec = afb.recipe('smoke', rounds=1, fleet='1*vgg9@0.0625:ann', method='standalone')\n"
        "afb.run(spec, out='run', engine='pool', workers=1)"
    )
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert 'needs if __name__ == "__main__":' in done.stderr


def test_runs_without_out_get_folders_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda *_: "now")
    results = [afb.federate(make_federation("standalone"), rounds=1) for _ in range(2)]
    assert len({result.folder for result in results}) == 2


def test_the_threads_of_the_caller_are_restored(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        afb.federate(make_federation("standalone"), rounds=1, out=tmp_path / "run", threads=1)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_numbers_of_numpy_are_numbers() -> None:
    spec = afb.recipe("smoke", rounds=np.int64(3), alpha=np.float32(0.5), seed=np.arange(5)[2])
    assert (spec.rounds, spec.alpha, spec.seed) == (3, 0.5, 2)
    assert type(spec.rounds) is int


@pytest.mark.parametrize(
    ("labels", "class_"), [([1, 2, 3] * 10, 0), ([0, 1, 255] * 10, 2), ([0, 1, 2_000_000_000] * 10, 2)]
)
def test_labels_with_gaps_are_refused(labels: list[int], class_: int) -> None:
    images = np.zeros((30, 8, 8), dtype=np.uint8)
    federation = afb.Federation("standalone", [afb.Participant(Plain, (images, np.array(labels)))])
    with pytest.raises(afb.BadInput, match=f"no participant has an image of class {class_}, the largest label is"):
        federation.prepare()


def test_a_federation_and_its_clients_must_be_what_they_are_called() -> None:
    images = np.zeros((30, 8, 8), dtype=np.uint8), np.arange(30) % 3
    participant: Any = afb.Participant(Plain, images)
    with pytest.raises(afb.BadInput, match="must be a list of at least one Participant"):
        afb.Federation("standalone", participant)
    with pytest.raises(afb.BadInput, match="classes='5' must be the number of classes"):
        afb.Federation("standalone", [participant], classes="5")  # type: ignore[arg-type]
    with pytest.raises(afb.BadInput, match=r"must be a Federation\(method, clients\)"):
        afb.federate([participant])  # type: ignore[arg-type]
