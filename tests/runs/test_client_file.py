"""The files of a client: written whole, read with checks, rebuilt, refused where they are damaged or hostile."""

import dataclasses
import hashlib
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

from asfedbridge.core.errors import BadInput
from asfedbridge.core.method import METHODS
from asfedbridge.core.payload import Payload, clone
from asfedbridge.core.task import Neuron
from asfedbridge.data.loader import Shard
from asfedbridge.engines.turn import build_client
from asfedbridge.models.adapter import ModuleMaker
from asfedbridge.models.registry import register_unnamed
from asfedbridge.runs import client_file
from asfedbridge.runs.client_builder import build_module, name_factory, rebuild_client
from asfedbridge.runs.client_card import ClientCard, Preprocessing
from asfedbridge.runs.client_file import list_clients, read_card, read_client, remove_clients, write_client

CARD = ClientCard(
    id=5,
    kind="snn",
    model="resnet18",
    width=0.0625,
    T=2,
    bits=32,
    neuron=Neuron(decay=0.25),
    feature_dim=16,
    projector="linear",
    quantiser="lsq",
    precision="fp32",
    channels=1,
    image_size=8,
    frames=1,
    mean=(0.5,),
    std=(0.25,),
    classes=("cat", "dog", "Ünicode"),
    preprocessing=Preprocessing(),
    method="as-fedbridge",
    method_fields={"bridge_width": 0.25},
    data="digits",
    accuracy=50.0,
    point="trained",
    rounds=2,
    train=10,
    test=4,
    specification="0" * 64,
    versions={"asfedbridge": "0", "torch": "0"},
    extras=("bridge",),
    fused_weight=0.35,
)


def tensors_of(card: ClientCard) -> Payload:
    empty = torch.zeros(0, card.channels, 8, 8, dtype=torch.uint8), torch.zeros(0, dtype=torch.int64)
    method = METHODS[card.method](**card.method_fields)
    client = build_client(method, card.task, card.info, Shard(*empty, *empty, card.mean, card.std, "none"))
    modules = {name: module for name, module in client.modules.items() if name == "backbone" or name in card.extras}
    return {f"{name}/{key}": t + 1 for name, module in modules.items() for key, t in module.state_dict().items()}


@pytest.fixture(scope="module")
def tensors() -> Payload:
    return tensors_of(CARD)


@pytest.fixture
def path(tmp_path: Path, tensors: Payload) -> Path:
    write_client(tmp_path / "c", CARD, tensors)
    return tmp_path / "c" / "client-0005.json"


def reseal(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """A card that somebody wrote on purpose: its checksum is right."""
    content = json.loads(path.read_text())
    change(content)
    content.pop("seal", None)
    seal = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps({**content, "seal": seal}))


def replace_weights(path: Path, content: bytes) -> None:
    path.with_suffix(".safetensors").write_bytes(content)
    reseal(path, lambda card: card.update(sha256=hashlib.sha256(content).hexdigest()))


def test_what_is_written_is_read(path: Path, tensors: Payload) -> None:
    for either in (path, path.with_suffix(".safetensors")):
        card, found = read_client(either)
        assert card == CARD
        assert found.keys() == tensors.keys()
        assert all(torch.equal(found[name], tensors[name]) for name in tensors)
    assert sorted(file.name for file in path.parent.iterdir()) == ["client-0005.json", "client-0005.safetensors"]


def test_the_card_tells_in_words_what_an_input_is(path: Path) -> None:
    words = json.loads(path.read_text())["preprocessing"]["words"]
    assert words.startswith("the central square, scaled bilinearly and antialiased to 8 pixels")
    assert "8/7 of 64 pixels" in Preprocessing("enlarged").describe(64, 1)
    assert "4 frames of equal duration" in Preprocessing(frames_by="time").describe(64, 4)


def test_a_module_is_rebuilt_with_its_weights(path: Path, tensors: Payload) -> None:
    module = build_module(*read_client(path))
    assert not module.training
    state = module.state_dict()
    assert all(torch.equal(t, tensors[f"backbone/{name}"]) for name, t in state.items())
    assert module.act.neuron.decay == 0.25  # type: ignore[union-attr]
    assert module(torch.zeros(2, 1, 8, 8)).logits_TBC.shape == (2, 2, 3)


def test_a_method_that_replaces_the_backbone_rebuilds_it() -> None:
    card = dataclasses.replace(CARD, method="sfedhifi", method_fields={}, extras=(), width=0.25)
    module = build_module(card, tensors_of(card))
    assert type(module).__name__ == "ComposedResNet18"


def test_a_card_is_there_only_with_its_weights(path: Path, tensors: Payload, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> str:
        raise OSError("no room")

    monkeypatch.setattr(client_file.files, "write_tensors", fail)
    with pytest.raises(OSError, match="no room"):
        write_client(path.parent, CARD, tensors)
    assert list_clients(path.parent) == []


def test_files_are_listed_and_removed_by_name(path: Path, tensors: Payload) -> None:
    write_client(path.parent, dataclasses.replace(CARD, id=12345), tensors)
    (path.parent / "client-x.json").write_text("{}")
    assert [file.name for file in list_clients(path.parent)] == ["client-0005.json", "client-12345.json"]
    remove_clients(path.parent)
    assert [file.name for file in path.parent.iterdir()] == ["client-x.json"]
    remove_clients(path.parent / "nowhere")


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("format", 2, "format=2 is not supported"),
        ("id", -1, "must be 0 to"),
        ("kind", "cnn", "must be one of ann, snn"),
        ("T", 3.5, "a whole number"),
        ("mean", [0.5, 0.5], "a list of 1 numbers"),
        ("std", [0.0], "above 0"),
        ("std", [None], "a list of numbers"),
        ("classes", [], "1 to 100000 names"),
        ("classes", ["a", 3], "a list of strings"),
        ("frames", 3, "a divisor of the channels"),
        ("fused_weight", 1.5, "from 0 to 1"),
        ("neuron", {"decay": 0.5}, "neuron must have"),
        ("preprocessing", {"resize": "stretch", "frames_by": "count"}, "one of square, enlarged"),
        ("method_fields", 3, "must be an object"),
        ("precision", "fp8", "one of fp32"),
        ("image_size", 10**9, "must be 1 to 4096"),
    ],
)
def test_a_wrong_card_is_refused(path: Path, name: str, value: Any, says: str) -> None:
    reseal(path, lambda card: card.update({name: value}))
    with pytest.raises(BadInput, match=says) as error:
        read_client(path)
    assert str(path) in str(error.value)
    reseal(path, lambda card: card.pop(name))
    if name not in ("format", "fused_weight", "extras"):
        with pytest.raises(BadInput, match=name):
            read_client(path)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model": "resnet19"}, "unknown model 'resnet19'"),
        ({"model": "../resnet18"}, "unknown model '../resnet18'"),
        ({"method": "fedsomething"}, "unknown method 'fedsomething'"),
        ({"method_fields": {"bridge_width": 10**6}}, "damaged|out of range|cannot be built"),
        ({"method_fields": {"nonsense": 1}}, "unknown key 'method.nonsense'"),
        ({"width": 400.0}, "width 400.0 is out of range"),
        ({"T": 65}, "T 65 is out of range"),
        ({"bits": 7}, "is invalid for a client of kind snn"),
        ({"feature_dim": 2**16, "classes": [str(k) for k in range(10**5)]}, "fewer weights than its card says"),
        ({"feature_dim": 17}, "damaged"),
        ({"neuron": dataclasses.asdict(Neuron(threshold=0))}, "neuron.threshold=0"),
        ({"projector": "cubic"}, "projector=cubic"),
        ({"quantiser": "q"}, "quantiser=q"),
        ({"extras": []}, "does not belong to any network"),
        ({"kind": "ann", "T": 1, "width": 0.125}, "damaged"),
        ({"precision": "fp16", "quantiser": 3}, "quantiser=3"),
    ],
)
def test_a_card_that_does_not_fit_its_weights_is_refused(path: Path, changes: dict[str, Any], says: str) -> None:
    reseal(path, lambda card: card.update(changes))
    with pytest.raises(BadInput, match=says):
        rebuild_client(*read_client(path))


def test_damage_is_noticed(path: Path, tensors: Payload) -> None:
    whole, weights = path.read_bytes(), path.with_suffix(".safetensors")
    path.write_bytes(whole.replace(b'"accuracy": 50.0', b'"accuracy": 90.0'))
    with pytest.raises(BadInput, match="its checksum differs"):
        read_client(path)
    for content, says in ((b"[]", "not a JSON object"), (b"{", "damaged"), (b"[" * 10**5, "damaged"), (b"", "damaged")):
        path.write_bytes(content)
        with pytest.raises(BadInput, match=says):
            read_card(path)
    path.write_bytes(whole)
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(BadInput, match="its checksum differs from the one in the card"):
        read_client(path)
    weights.unlink()
    with pytest.raises(BadInput, match="no such file"):
        read_client(path)
    weights.mkdir()
    with pytest.raises(BadInput, match="is a folder"):
        read_client(path)


@pytest.mark.parametrize("name", ["backbone/classifier.bias", "bridge/head.weight"])
def test_hostile_weights_are_refused(path: Path, tensors: Payload, name: str) -> None:
    def refused(changed: Payload, says: str) -> None:
        replace_weights(path, safetensors.torch.save(clone(changed)))
        with pytest.raises(BadInput, match=says):
            rebuild_client(*read_client(path))

    refused(tensors | {name: tensors[name] * float("nan")}, "holds NaN or infinity")
    refused(tensors | {name: tensors[name][:-1].clone()}, "of shape")
    refused(tensors | {name: tensors[name].double()}, "float64 of shape")
    refused({key: t for key, t in tensors.items() if key != name}, "is missing")
    refused(tensors | {f"{name}.more": tensors[name]}, "is not in this network")
    refused(tensors | {"stranger/weight": tensors[name]}, "does not belong to any network")
    replace_weights(path, b"\xff" * 100)
    with pytest.raises(BadInput, match="damaged"):
        read_client(path)
    replace_weights(path, b"\x80\x02cos\nsystem\n")  # a pickle is not looked at
    with pytest.raises(BadInput, match="damaged"):
        read_client(path)


class Own(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 3))


OWN = dataclasses.replace(
    CARD, kind="ann", T=1, width=1.0, model="Own", factory=f"{__name__}:Own", method="standalone", method_fields={},
    extras=(), fused_weight=None,
)  # fmt: skip


def own_weights() -> Payload:
    return {f"backbone/module.{name}": t for name, t in Own().state_dict().items()}


def test_models_of_the_users_own_are_given_or_trusted() -> None:
    register_unnamed({})
    weights = own_weights()
    with pytest.raises(BadInput, match=r"made by .*:Own, which .* use trust=True"):
        build_module(OWN, weights)
    with pytest.raises(BadInput, match=r"unknown model 'Own'; pass models="):
        build_module(dataclasses.replace(OWN, factory=""), weights)
    with pytest.raises(BadInput, match=r"the run imported mine.py: load that file"):
        build_module(dataclasses.replace(OWN, factory="", plugins=("mine.py",)), weights)
    for options in ({"trust": True}, {"models": {"Own": Own}}, {"models": {"Own": Own()}}):
        register_unnamed({})
        module = build_module(OWN, weights, **options)  # type: ignore[arg-type]
        assert torch.equal(module.state_dict()["module.1.weight"], weights["backbone/module.1.weight"])
    register_unnamed({})


def test_nothing_is_imported_without_trust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "evil_client_module.py").write_text("raise SystemError('it ran')")
    monkeypatch.syspath_prepend(str(tmp_path))
    card = dataclasses.replace(OWN, factory="evil_client_module:make")
    with pytest.raises(BadInput, match="trust=True"):
        build_module(card, own_weights())
    assert "evil_client_module" not in sys.modules
    with pytest.raises(BadInput, match="cannot be imported: SystemError: it ran"):
        build_module(card, own_weights(), trust=True)
    with pytest.raises(BadInput, match="cannot be imported"):
        build_module(dataclasses.replace(OWN, factory="json:nothing"), own_weights(), trust=True)


def test_only_what_others_can_import_is_named() -> None:
    assert name_factory(ModuleMaker(Own)) == f"{__name__}:Own"
    assert name_factory(ModuleMaker(Own())) == ""
    assert name_factory(ModuleMaker(lambda: Own())) == ""

    class Local(Own):
        pass

    assert name_factory(ModuleMaker(Local)) == ""


def test_the_page_explains_every_field() -> None:
    page = (Path(__file__).parents[2] / "docs" / "trained-clients.md").read_text()
    table = page.partition("| field of the card |")[2].partition("\n\n")[0]
    told = {name for line in table.splitlines() for name in re.findall(r"`(\w+)`", line.split("|")[1])}
    assert told == {entry.name for entry in dataclasses.fields(ClientCard)}
