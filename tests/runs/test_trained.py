"""Trained clients in use: from the run folder alone, moved elsewhere, without the data."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from tests.runs.small_run import FLEET, make_spec, play
from torch import nn

import asfedbridge as afb
from asfedbridge.analysis.firing import firing_rates
from asfedbridge.core import ensemble
from asfedbridge.core.errors import BadInput
from asfedbridge.data.sources.registry import load as load_data
from asfedbridge.models.bridge import Bridge
from asfedbridge.models.registry import register_unnamed
from asfedbridge.runs.setting import Setting, prepare


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that ended, in another place."""
    root = tmp_path_factory.mktemp("trained")
    play(root / "run")
    shutil.move(root / "run", root / "elsewhere")
    return root / "elsewhere"


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    return prepare(make_spec(), tmp_path_factory.mktemp("data"))


@pytest.fixture
def no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that reads a data set may be called."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("data were read")

    for place in (
        "asfedbridge.runs.setting.load",
        "asfedbridge.runs.labelled.load",
        "asfedbridge.data.sources.digits.read_digits",
    ):
        monkeypatch.setattr(place, refuse)


def test_every_kind_predicts_from_the_folder_alone(moved: Path, setting: Setting, no_data: None) -> None:
    run = afb.load(moved)
    assert [c.kind for c in run.clients] == ["ann", "snn", "qnn", "bnn"]
    for client, shard in zip(run.clients, setting.shards, strict=True):
        images = shard.x_test.movedim(1, -1).numpy()
        found = client.predict(images)
        mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (client.card.mean, client.card.std))
        with torch.no_grad():
            logits = client.module((shard.x_test / 255 - mean) / std).logits
        assert np.allclose(found.probabilities, F.softmax(logits, dim=1), atol=1e-4)
        assert found.labels.tolist() == found.probabilities.argmax(1).tolist()
        assert found.names == [str(k) for k in found.labels]
        assert 100 * float(np.mean(found.labels == shard.y_test.numpy())) == pytest.approx(client.accuracy)
        assert len(found) == len(images)
        assert not client.module.training


def test_fused_prediction_weighs_backbone_and_bridge(moved: Path, setting: Setting) -> None:
    client, shard = afb.load(moved).clients[1], setting.shards[1]
    assert isinstance(client.bridge, Bridge)
    x, _ = next(shard.test_batches(256))
    with torch.no_grad():
        own, other = client.module(x).logits, client.bridge(x)
    expected = ensemble.mix(own, other, client.card.fused_weight or 0).softmax(1)
    fused = client.predict(shard.x_test.movedim(1, -1), fused=True).probabilities
    assert np.allclose(fused, expected, atol=1e-5)
    assert not np.allclose(fused, client.predict(shard.x_test.movedim(1, -1)).probabilities, atol=1e-5)


def test_files_and_arrays_give_one_answer(moved: Path, setting: Setting, tmp_path: Path) -> None:
    client, pixels = afb.load(moved).clients[0], setting.shards[0].x_test[:3, 0].numpy()
    for number, image in enumerate(pixels):
        Image.fromarray(image).save(tmp_path / f"{number}.png")
    expected = client.predict(pixels[..., None])
    for given in (tmp_path, sorted(tmp_path.iterdir()), [Image.fromarray(image) for image in pixels]):
        assert np.array_equal(client.predict(given).probabilities, expected.probabilities)
    assert client.predict(str(tmp_path)).inputs == [str(tmp_path / f"{n}.png") for n in range(3)]


def test_many_images_are_answered_in_batches(moved: Path) -> None:
    client = afb.load(moved).clients[0].trained
    told: list[int] = []
    images = [np.full((9, 9, 1), n % 256, np.uint8) for n in range(300)]
    found = client.predict(images, tell=told.append)
    assert told == [256, 300]
    assert np.allclose(found.probabilities[:44], found.probabilities[256:300], atol=1e-5)


def test_an_evaluation_says_more_than_accuracy(moved: Path, setting: Setting) -> None:
    client, shard = afb.load(moved).clients[1], setting.shards[1]
    found = client.evaluate((shard.x_test.movedim(1, -1), shard.y_test))
    assert found.accuracy == client.accuracy
    assert sum(map(sum, found.confusion)) == found.images == client.test
    assert sum(found.confusion[k][k] for k in range(10)) == round(found.accuracy * found.images / 100)
    assert set(found.per_class) == {str(k) for k in range(10)}
    assert 0 <= found.ece <= 100
    assert found.latency_ms > 0
    layers = firing_rates(client.trained._client, shard.test_batches(256)).values()
    spiking = [layer for layer in layers if layer.spiking]
    assert found.sops == sum(layer.synops for layer in spiking) / shard.test_size
    assert found.spikes == sum(int(layer.spikes_T.sum()) for layer in spiking) / shard.test_size > 0
    ann = afb.load(moved).clients[0].evaluate((shard.x_test.movedim(1, -1), [str(k) for k in shard.y_test.tolist()]))
    assert (ann.spikes, ann.sops) == (None, None)


def test_evaluation_on_a_source_matches_classes_by_name(moved: Path, tmp_path: Path) -> None:
    client = afb.load(moved).clients[0]
    digits = load_data("digits", tmp_path)
    expected = client.evaluate((digits.x_test.movedim(1, -1), digits.y_test))
    assert client.evaluate("digits").confusion == expected.confusion
    assert client.evaluate(digits).confusion == expected.confusion
    arrays = {"x_train": digits.x_train[:20, 0].numpy(), "y_train": np.arange(20) % 10}
    order = np.array([3, 1, 4, 0, 5, 9, 2, 6, 8, 7])
    names = np.array([str(k) for k in order])
    mixed = {"x_test": digits.x_test[:, 0].numpy(), "y_test": np.argsort(order)[digits.y_test.numpy()]}
    np.savez(tmp_path / "mixed.npz", **arrays, **mixed, classes=names)
    assert client.evaluate(f"npz:{tmp_path / 'mixed.npz'}").confusion == expected.confusion
    larger = mixed["x_test"].repeat(2, 1).repeat(2, 2)
    np.savez(tmp_path / "large.npz", **arrays | {"x_train": larger[:20]}, **mixed | {"x_test": larger}, classes=names)
    assert client.evaluate(f"npz:{tmp_path / 'large.npz'}").images == len(larger)


def test_data_that_do_not_fit_are_refused(moved: Path, tmp_path: Path) -> None:
    client = afb.load(moved).clients[0]
    images = np.zeros((2, 8, 8, 1), np.uint8)
    for data, says in (
        ((images, [0]), "2 images and 1 labels"),
        ((images, [0, 10]), "the label 10 is not a class; give 0 to 9"),
        ((images, ["0", "cat"]), "the label 'cat' is not a class"),
        ((images, np.array([0.0, 1.0])), "the label 0.0 is not a class"),
        (images, "data=ndarray: give the name"),
        ("cifar11", "cifar11"),
    ):
        with pytest.raises(BadInput, match=says):
            client.evaluate(data)
    x, y = np.zeros((4, 8, 8), np.uint8), np.arange(4) % 2
    np.savez(tmp_path / "o.npz", x_train=x, y_train=y, x_test=x, y_test=y, classes=np.array(["cat", "dog"]))
    with pytest.raises(BadInput, match="its class 'cat' is not one of this client's"):
        client.evaluate(f"npz:{tmp_path / 'o.npz'}")
    with pytest.raises(BadInput, match="no images were given; give at least one"):
        client.predict([])


def test_large_images_are_scaled_as_they_were_evaluated(tmp_path: Path) -> None:
    spec = play(
        tmp_path / "run", "standalone", rounds=1, fleet="resnet18@0.0625:ann", augment="resized-crop+flip",
        image_size=14,
    )  # fmt: skip
    (shard,) = prepare(spec, tmp_path).shards
    (client,) = afb.load(tmp_path / "run").clients
    assert client.card.preprocessing.resize == "enlarged"
    assert shard.x_test.shape[-1] == 8
    assert client.evaluate((shard.x_test.movedim(1, -1), shard.y_test)).accuracy == client.accuracy
    assert client.evaluate("digits").images == 359
    mixed = client.predict([np.zeros((8, 8, 1), np.uint8), np.zeros((20, 30, 1), np.uint8)])
    assert np.allclose(mixed.probabilities[0], mixed.probabilities[1], atol=1e-6)


class Network(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 2))


def test_clients_of_a_federation_are_used_with_their_own_statistics(tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    sets = [(draw.integers(0, 100 + 100 * n, (12, 8, 8, 1), np.uint8), np.arange(12) % 2) for n in range(2)]
    clients = [afb.Participant(Network, data, test=data) for data in sets]
    federation = afb.Federation("fedavg", clients, epochs=1, batch_size=8, threads=1)
    run = afb.federate(federation, rounds=2, out=tmp_path / "run")
    register_unnamed({})
    with pytest.raises(BadInput, match=r"made by .*test_trained:Network"):
        _ = afb.load(tmp_path / "run").clients[0].module
    for options in ({"trust": True}, {"models": {"Network": Network}}):
        register_unnamed({})
        run = afb.load(tmp_path / "run", **options)  # type: ignore[arg-type]
        assert run.clients[0].card.mean != run.clients[1].card.mean
        assert run.clients[0].card.classes == ("0", "1")
        for client, data in zip(run.clients, sets, strict=True):
            assert client.evaluate(data).accuracy == client.accuracy
    register_unnamed({})


def test_event_clients_take_recordings(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    count = 30
    recordings = [
        {
            "x": draw.integers(0, 5, count) + 7 * (label % 2),
            "y": draw.integers(0, 12, count),
            "p": draw.integers(0, 2, count),
            "t": np.sort(draw.integers(0, 1000, count)),
        }
        for label in range(24)
    ]
    arrays = {key: np.concatenate([one[key] for one in recordings]) for key in ("x", "y", "p", "t")}
    labels, split = np.arange(24) % 2, np.array(["train"] * 12 + ["test"] * 12)
    offsets = np.arange(25) * count
    path = tmp_path / "set.npz"
    np.savez(path, **arrays, offsets=offsets, labels=labels, split=split, sensor_size=np.array([12, 12]))
    play(
        tmp_path / "run", "standalone", data=f"npz:{path}", train_per_class=0, test_per_class=0, T=3, rounds=1,
        fleet="resnet18@0.0625:ann,resnet18@0.0625:snn",
    )  # fmt: skip
    path.unlink()
    folder = tmp_path / "single"
    folder.mkdir()
    for number, one in enumerate(recordings[12:]):
        np.savez(folder / f"{number:02d}.npz", **one, sensor_size=np.array([12, 12]))
    for client in afb.load(tmp_path / "run").clients:
        assert (client.card.frames, client.card.channels, client.card.image_size) == (3, 6, 12)
        found = client.predict(folder)
        assert len(found) == 12
        single = client.predict(recordings[12] | {"x": recordings[12]["x"]}) if client.id == 0 else None
        assert single is None or single.labels.shape == (1,)
        assert client.evaluate((folder, labels[12:])).images == 12


def test_fleet_of_the_fixture_has_all_kinds() -> None:
    assert all(f":{kind}" in FLEET for kind in ("ann", "snn", "qnn", "bnn"))
