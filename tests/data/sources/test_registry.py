import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from asfedbridge.core.errors import BadInput
from asfedbridge.data.memory_map import read
from asfedbridge.data.partition_names import split
from asfedbridge.data.sources.registry import (
    SOURCES,
    check,
    data_root,
    describe,
    fetch,
    find_source,
    load,
    register_data,
)
from asfedbridge.runs.recipes import demands, quickstart
from asfedbridge.runs.setting import prepare
from asfedbridge.runs.spec import apply_overrides


def test_digits_are_split_80_20_in_every_class(tmp_path: Path) -> None:
    data = load("digits", tmp_path)
    assert (data.channels, data.height, data.width, data.augment) == (1, 8, 8, "crop")
    assert len(data.classes) == 10
    train, test = torch.bincount(data.y_train), torch.bincount(data.y_test)
    assert (train + test).tolist() == np.bincount(load_digits().target).tolist()
    assert ((test / (train + test) - 0.2).abs() < 0.005).all()


def test_digits_contain_every_image_once(tmp_path: Path) -> None:
    data = load("digits", tmp_path)
    ours = torch.cat([read(data.x_train), read(data.x_test)]).flatten(1).numpy()
    theirs = np.rint(load_digits().data * 255 / 16).astype(np.uint8)
    assert sorted(map(bytes, ours)) == sorted(map(bytes, theirs))
    assert ours.max() == 255


def test_digits_fingerprint(tmp_path: Path) -> None:
    assert load("digits", tmp_path).fingerprint() == (
        "ff5a32a9630fa296c4c297e96c5881030286d7b4e5cf7261956edac7b053365f"
    )


def test_image_size_resizes_and_is_checked(tmp_path: Path) -> None:
    assert load("digits", tmp_path, image_size=16).x_test.shape == (359, 1, 16, 16)
    with pytest.raises(BadInput, match="image_size=4"):
        load("digits", tmp_path, image_size=4)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("cifar-10", "did you mean cifar10?"),
        ("CIFAR100", "did you mean cifar100?"),
        ("digit", "did you mean digits?"),
        ("npz", "did you mean npz:PATH?"),
        ("npz:", "did you mean npz:PATH?"),
        ("foldr:x", "did you mean folder:PATH?"),
        ("tiny_imagenet", "did you mean tiny-imagenet?"),
        ("", "choose from digits"),
    ],
)
def test_unknown_name_suggests_the_nearest_and_lists_all(tmp_path: Path, name: str, hint: str) -> None:
    with pytest.raises(BadInput) as caught:
        load(name, tmp_path)
    message = str(caught.value)
    assert repr(name) in message
    assert hint in message
    assert all(source in message for source in SOURCES)


def test_data_root_precedence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.delenv("ASFEDBRIDGE_DATA", raising=False)
    assert data_root(None) == tmp_path / ".cache" / "asfedbridge"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert data_root(None) == tmp_path / "xdg" / "asfedbridge"
    monkeypatch.setenv("ASFEDBRIDGE_DATA", str(tmp_path / "env"))
    assert data_root("") == tmp_path / "env"
    assert data_root("~/given") == tmp_path / "given"


def test_check_reports_counts(tmp_path: Path) -> None:
    assert check("digits", tmp_path) == ["digits: 1438 training and 359 test images, 1x8x8, 10 classes: good"]
    with pytest.raises(BadInput, match="no such file"):
        check(f"npz:{tmp_path / 'x.npz'}", tmp_path)


def test_describe_lists_every_source(tmp_path: Path) -> None:
    rows = describe(tmp_path)
    assert [row[0] for row in rows] == list(SOURCES)
    assert {name: origin for name, _, origin in rows}["cifar10"] == "asfedbridge data fetch cifar10"
    assert describe() == rows


def test_find_source_by_name_or_path_prefix() -> None:
    assert find_source("digits") is SOURCES["digits"]
    assert find_source("npz:some/file.npz") is SOURCES["npz:PATH"]
    with pytest.raises(BadInput, match="did you mean cifar10"):
        find_source("cifar1")


# Registered data sets


def squares(count: int = 60) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (count, 12, 12, 3), dtype=np.uint8), np.arange(count) % 3
    return {"x_train": x, "y_train": y, "x_test": x[:30], "y_test": y[:30]}


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registers one more data set."""
    monkeypatch.setattr("asfedbridge.data.sources.registry.SOURCES", before := dict(SOURCES))
    monkeypatch.setattr("asfedbridge.runs.recipes.SOURCES", before)
    register_data("squares", about="60 squares", augment="crop", settings={"cpu": {"train_per_class": 7}})(squares)


@pytest.mark.usefixtures("registered")
def test_registered_data_set_is_listed_and_checked(tmp_path: Path) -> None:
    assert describe(tmp_path)[-1] == ("squares", "60 squares", "registered by test_registry.py")
    assert check("squares", tmp_path) == ["squares: 60 training and 30 test images, 3x12x12, 3 classes: good"]
    with pytest.raises(BadInput, match=r"did you mean squares.*folder:PATH, squares$"):
        load("square", tmp_path)
    with pytest.raises(BadInput, match="data 'squares' cannot be fetched"):
        fetch("squares", tmp_path)
    assert demands("cpu", "squares") == demands("extended", "squares") == {"train_per_class": 7}
    assert demands("paper", "squares") == {}
    register_data("typing", about="", settings={"smoek": {"rounds": 1}})(squares)
    with pytest.raises(BadInput, match=r"data set 'typing' has settings for an unknown recipe 'smoek'.*'smoke'"):
        demands("smoke", "typing")


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    ("image_size", "augment", "expected"),
    [
        (0, "auto", (12, 12, "crop")),
        (8, "auto", (8, 8, "crop")),
        (8, "none", (8, 8, "none")),
        (0, "resized-crop+flip", (12, 12, "resized-crop+flip")),
        (16, "resized-crop+flip", (12, 16, "resized-crop+flip")),
    ],
)
def test_registered_data_set_with_size_and_augmentation(
    tmp_path: Path, image_size: int, augment: str, expected: tuple[int, int, str]
) -> None:
    data = load("squares", tmp_path, image_size, augment)
    assert (data.height, data.image_size, data.augment) == expected


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("partition", ["iid", "dirichlet", "classes:2", "quantity:2"])
def test_run_uses_a_registered_data_set(tmp_path: Path, partition: str) -> None:
    changes = {"data": "squares", "image_size": 8, "train_per_class": 18, "partition": partition, "fleet": "1+1"}
    setting = prepare(apply_overrides(quickstart(), changes), tmp_path)
    assert setting.task.image_size == 8
    assert sum(client.train_size for client in setting.clients) == 54
    assert sum(client.test_size for client in setting.clients) == 30


def test_function_may_take_the_data_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asfedbridge.data.sources.registry.SOURCES", dict(SOURCES))
    np.savez(tmp_path / "mine.npz", **squares())

    @register_data("mine", about="from the data root")
    def read_mine(root: Path) -> Any:
        return dict(np.load(root / "mine.npz", allow_pickle=False))

    data = load("mine", tmp_path)
    assert data.fingerprint() == load(f"npz:{tmp_path / 'mine.npz'}", tmp_path).fingerprint()
    assert data.augment == "crop+flip"


@pytest.mark.usefixtures("registered")
def test_names_are_unique_and_valid(tmp_path: Path) -> None:
    register_data("squares", about="the same function again, as in a worker process")(squares)
    for name, message in (
        ("squares", "'squares' is already registered"),
        ("digits", "'digits' is already registered"),
        ("a b", "'a b'"),
        ("nodes", "'nodes'"),
    ):
        with pytest.raises(ValueError, match=message):
            register_data(name, about="")(test_names_are_unique_and_valid)
    with pytest.raises(ValueError, match="unknown augment 'flip'"):
        register_data("other", about="", augment="flip")


PLUGIN = """
from torch.utils.data import TensorDataset
import torch
from asfedbridge.data.sources.registry import register_data

@register_data("noise", about="grey noise", settings={"cpu": {"train_per_class": 3}})
def noise():
    x = torch.rand(40, 1, 9, 9, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, torch.arange(40) % 4), TensorDataset(x, torch.arange(40) % 4)
"""


def test_imported_file_registers_a_data_set_on_the_command_line(tmp_path: Path) -> None:
    """In a separate process, because a file registers for the whole process."""
    (tmp_path / "mine.py").write_text(PLUGIN)
    commands = {
        "list data": "grey noise (registered by mine.py)",
        "data list": "grey noise (registered by mine.py)",
        "data check noise": "noise: 40 training and 40 test images, 1x9x9, 4 classes: good",
        "show cpu data=noise": "train_per_class = 3 ",
        "show cpu data=noise train_per_class=2": "train_per_class = 2 ",
    }
    program = "import sys; from asfedbridge.cli import main; sys.exit(max(main(a.split()) for a in sys.argv[1:]))"
    arguments = [f"{command} --import {tmp_path / 'mine.py'}" for command in commands]
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    for expected in commands.values():
        assert expected in done.stdout


# Clients assigned by the data set


def test_archive_assigns_examples_to_clients(tmp_path: Path) -> None:
    arrays = squares() | {"client_train": np.arange(60) % 2, "client_test": np.arange(30) // 15}
    np.savez(tmp_path / "set.npz", **arrays)
    name = f"npz:{tmp_path / 'set.npz'}"
    data = load(name, tmp_path)
    partition = split("assigned", data.y_train, data.y_test, 2, 0, assigned=data.assigned)
    assert [shard.tolist() for shard in partition.train] == [list(range(0, 60, 2)), list(range(1, 60, 2))]
    assert [shard.tolist() for shard in partition.test] == [list(range(15)), list(range(15, 30))]
    changes = {"data": name, "train_per_class": 10, "partition": "assigned", "fleet": "1+1"}
    setting = prepare(apply_overrides(quickstart(), changes), tmp_path)
    assert [client.train_size for client in setting.clients] == [15, 15]
    with pytest.raises(BadInput, match="client_train has no example for client 2 of 3"):
        prepare(apply_overrides(quickstart(), changes | {"fleet": "1+2"}), tmp_path)
    with pytest.raises(BadInput, match="partition=assigned: the data set assigns no clients"):
        prepare(apply_overrides(quickstart(), changes | {"data": "digits"}), tmp_path)


@pytest.mark.parametrize(
    ("client_train", "message"),
    [
        (np.zeros(59, np.int64), "client_train is int64 of shape"),
        (np.zeros(60), "client_train is float64"),
        (np.full(60, -1), "client_train contains -1 to -1: count clients from 0"),
    ],
)
def test_clients_in_an_archive_are_checked(tmp_path: Path, client_train: np.ndarray, message: str) -> None:
    np.savez(tmp_path / "set.npz", **squares(), client_train=client_train)
    with pytest.raises(BadInput, match=message):
        load(f"npz:{tmp_path / 'set.npz'}", tmp_path)


class Torn:
    """A data set whose third item cannot be read."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, number: int) -> tuple[np.ndarray, int]:
        if number == 2:
            raise OSError("photo 2 is torn\nin two")
        return np.zeros((8, 8), np.uint8), number % 2


def test_failing_function_is_reported_in_one_line(tmp_path: Path) -> None:
    def search() -> Any:
        return {}["no such key"]

    def tear() -> Any:
        return Torn(), Torn()

    failing: tuple[tuple[Any, type[Exception], str], ...] = (
        (search, KeyError, r"^data 'mine': its function fails: line \d+: KeyError: 'no such key'$"),
        (tear, OSError, r"^mine: train: item 2 cannot be read: OSError: photo 2 is torn in two$"),
    )
    for function, cause, message in failing:
        register_data("mine", "fails")(function)
        try:
            with pytest.raises(BadInput, match=message) as caught:
                load("mine", tmp_path)
        finally:
            del SOURCES["mine"]
        assert isinstance(caught.value.__cause__, cause)
