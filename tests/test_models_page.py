"""What docs/models.md promises, taken from its text: the table, the two wraps, and both ways to run them."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from asfedbridge import cli
from asfedbridge.core import plugins
from asfedbridge.core.errors import BadInput
from asfedbridge.core.method import METHODS
from asfedbridge.core.plugins import load_plugin
from asfedbridge.core.task import ClientInfo, Output, Task
from asfedbridge.models import registry, zoo
from asfedbridge.models.registry import MODELS, UNNAMED
from asfedbridge.report.listings import models_table
from asfedbridge.runs.fleet import parse_fleet

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
CODE = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
TASK = Task(classes=4, channels=3, image_size=8, feature_dim=16)
SMALL = ["rounds=1", "train_per_class=3", "test_per_class=2", "T=2", "feature_dim=16", "partition=iid"]


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Models and files of one test are gone in the next."""
    before = dict(MODELS)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    MODELS.clear()
    MODELS.update(before)
    plugins.FILES.clear()
    zoo.forget_models()


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    file = tmp_path / "mine.py"
    drop = CODE[0].replace("nn.ReLU()", "nn.Dropout(0.5)").replace("mlp", "drop").replace("Perceptron", "Drop")
    file.write_text("\n\n".join((*CODE[:2], drop)), encoding="utf-8")
    return file


def test_the_table_is_what_the_code_says() -> None:
    """After a change: asfedbridge list models --markdown"""
    assert models_table() in PAGE
    assert not [name for name in MODELS if name not in UNNAMED and f"`{name}`" not in PAGE]


def test_the_wraps_are_short() -> None:
    for code, name in zip(CODE[:2], ("Perceptron", "Jelly"), strict=True):
        body = code.partition(f"class {name}")[2]
        assert len([line for line in body.splitlines()[1:] if line.strip()]) <= 13


@pytest.mark.parametrize(("name", "kind", "T"), [("mlp", "ann", 1), ("jelly", "snn", 3)])
def test_the_wraps_learn(mine: Path, name: str, kind: Any, T: int) -> None:
    load_plugin(str(mine))
    info = ClientInfo(0, kind, name, 1.0, T)
    zoo.check_backbone(TASK, info)
    before = torch.get_rng_state()
    model, again, other = (zoo.build_backbone(replace(TASK, seed=s), info) for s in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    tensors = [dict(m.named_parameters()) for m in (model, again, other)]
    assert all(torch.equal(t, tensors[1][n]) for n, t in tensors[0].items())
    assert not all(torch.equal(t, tensors[2][n]) for n, t in tensors[0].items())
    outline = zoo.outline_backbone(TASK, info)
    assert {n: p.shape for n, p in outline.named_parameters()} == {n: p.shape for n, p in tensors[0].items()}
    assert all(p.is_meta for p in outline.parameters())
    y = torch.arange(16) % 4
    x = torch.randn(16, 3, 8, 8, generator=torch.Generator().manual_seed(0)) + y.view(-1, 1, 1, 1)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(30):
        out = model(x)
        assert isinstance(out, Output)
        loss = torch.nn.functional.cross_entropy(out.logits, y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


def run(words: list[str], out: Path) -> dict[str, bytes]:
    """Every client's state at the end."""
    keys, options = ([w for w in words if ("=" in w) is here] for here in (True, False))
    assert cli.main(["run", *keys, *SMALL, *options, "--out", str(out), "--json"]) == 0
    return {p.name: p.read_bytes() for p in sorted((out / "checkpoint" / "clients").iterdir())}


def test_the_documented_command_runs_alike_in_workers(mine: Path, tmp_path: Path, capsys: Any) -> None:
    (line,) = (line for line in PAGE.splitlines() if line.startswith("asfedbridge run --import"))
    words = [str(mine) if w == "mine.py" else w for w in shlex.split(line)[2:]]
    words = [f"{w},drop:ann" if w.startswith("fleet=") else w for w in words]  # dropout repeats itself, too
    in_workers = run([*words, "--workers", "2"], tmp_path / "pool")
    local = run([w for w in words if w not in ("--engine", "pool")], tmp_path / "local")
    assert len(local) == 9
    assert local == in_workers
    assert cli.main(["list", "models", "--import", str(mine)]) == 0
    assert "a small SpikingJelly network" in capsys.readouterr().out


def test_the_documented_script_runs(tmp_path: Path) -> None:
    """Its workers read it again."""
    words = [*SMALL, "--out", str(tmp_path / "run")]
    script = "\n\n".join((CODE[0], CODE[2])).replace(
        '"--engine"', f'"method=standalone", *{words!r}, "--workers", "1", "--engine"'
    )
    (tmp_path / "script.py").write_text(script, encoding="utf-8")
    env = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "summary.json").is_file()


BROKEN = [
    (
        "[None], feature_BD[None])",
        ", feature_BD[None])",
        r"logits_TBC of 2 images has shape \(2, 4\).*\(1, 2, 4\) for ann",
    ),
    ("feature_BD[None])", "x_BCHW.flatten(1)[None])", r"feature_TBD of 2 images has shape \(1, 2, 192\)"),
    (
        "feature_BD = self.body",
        "self.n = getattr(self, 'n', 0) + 1\n        feature_BD = self.n * self.body",
        "second call",
    ),
]


@pytest.mark.parametrize(("old", "new", "message"), BROKEN)
def test_a_wrong_wrap_is_refused_in_one_line(mine: Path, old: str, new: str, message: str) -> None:
    assert old in CODE[0]
    mine.write_text(CODE[0].replace(old, new), encoding="utf-8")
    load_plugin(str(mine))
    with pytest.raises(BadInput, match=message) as error:
        zoo.check_backbone(TASK, ClientInfo(0, "ann", "mlp"))
    assert "\n" not in str(error.value)
    assert "'mlp'" in str(error.value)


def test_spikingjelly_without_a_reset_is_refused(mine: Path) -> None:
    mine.write_text(CODE[1].replace("        functional.reset_net(self)\n", ""), encoding="utf-8")
    load_plugin(str(mine))
    with pytest.raises(BadInput, match="reset its state in forward"):
        zoo.check_backbone(replace(TASK, feature_dim=256), ClientInfo(0, "snn", "jelly", T=4))


def test_an_output_is_asked_for(mine: Path) -> None:
    mine.write_text(
        CODE[0].replace("return Output(self.head(feature_BD)[None], feature_BD[None])", "return feature_BD")
    )
    load_plugin(str(mine))
    with pytest.raises(BadInput, match="returns a Tensor; return Output"):
        zoo.check_backbone(TASK, ClientInfo(0, "ann", "mlp"))


def test_a_fleet_knows_what_a_model_can_be(mine: Path) -> None:
    load_plugin(str(mine))
    load_plugin(str(mine))  # a second time is once
    assert len(plugins.FILES) == 1
    assert len(parse_fleet("2*mlp:ann,jelly:snn:T=3", 4)) == 3
    with pytest.raises(BadInput, match=r"entry 1 'mlp:snn': unknown kind 'snn'.*known: ann$"):
        parse_fleet("mlp:snn", 4)
    with pytest.raises(BadInput, match="entry 2 'jelly:ann': unknown kind 'ann'"):
        parse_fleet("mlp:ann,jelly:ann", 4)


@pytest.mark.parametrize("name", ["none.py", "mine.txt", "."])
def test_a_file_that_is_not_there(name: str, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "mine.txt").touch()
    assert cli.main(["list", "models", "--import", str(tmp_path / name)]) == 2
    assert "there is no such Python file" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["", "a b", "a:b", "a@b", "a*b", "a,b", "a=b"])
def test_a_name_that_no_fleet_can_hold(name: str) -> None:
    with pytest.raises(ValueError, match="invalid model name"):
        registry.register_model(name, "")(torch.nn.Identity)


@pytest.mark.parametrize("kinds", ["ann", (), ("ann", "cnn")])
def test_kinds_must_be_known(kinds: Any) -> None:
    with pytest.raises(ValueError, match=r"kinds=.* must be a tuple of some of ann, snn, bnn, qnn"):
        registry.register_model("mine", "", kinds=kinds)


def test_a_model_that_cannot_be_built_is_one_line(mine: Path) -> None:
    mine.write_text(CODE[0].replace("super().__init__()", "super().__init__(); raise OSError('no weights')"))
    load_plugin(str(mine))
    with pytest.raises(BadInput, match=r"^model 'mlp' cannot be built: OSError: no weights$"):
        zoo.check_backbone(TASK, ClientInfo(0, "ann", "mlp"))


def test_one_name_is_one_model() -> None:
    with pytest.raises(ValueError, match="model 'resnet18' is already registered"):
        registry.register_model("resnet18", "")(torch.nn.Identity)


def test_fedfree_refuses_a_global_model_without_a_clients_type_of_layer(mine: Path) -> None:
    """The dense network is the widest, so it would be the server's."""
    load_plugin(str(mine))
    clients = [ClientInfo(0, "ann", "mlp", 2.0), ClientInfo(1, "ann", "vgg9", 0.125)]
    method = METHODS["fedfree"](mismatch="prefix")  # type: ignore[call-arg]
    with pytest.raises(BadInput, match=r"client 1 .* has stem, but the global model has no layer of its type") as error:
        method.check(TASK, clients)
    assert "\n" not in str(error.value)
    method.check(TASK, [*clients, ClientInfo(2, "ann", "resnet18", 0.125)])


def test_a_federation_takes_models_of_ones_own_along(mine: Path, tmp_path: Path) -> None:
    words = ["flower", "init", str(tmp_path / "federation"), "fleet=2*mlp:ann", "--import", str(mine)]
    assert cli.main(words) == 0
    package = tmp_path / "federation" / "app" / "bridge_app"
    (copied,) = (package / "models").iterdir()
    assert copied.read_text() == mine.read_text()
    mine.unlink()  # a node has only the app
    MODELS.pop("mlp")
    plugins.FILES.clear()
    pytest.importorskip("flwr")
    from asfedbridge.deploy.apps import read_specification

    assert read_specification(package / "spec.toml", {"imports": ""}).fleet == "2*mlp:ann"
    assert "mlp" in MODELS
