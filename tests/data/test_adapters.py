from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import TensorDataset

from asfedbridge.core.errors import BadInput
from asfedbridge.data.adapters import as_arrays, as_dataset
from asfedbridge.data.dataset import Dataset, assemble
from asfedbridge.data.event_frames import Framing

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (12, 10, 10, 3), dtype=np.uint8)  # [N, H, W, C]
LABELS = np.arange(12) % 3
EXPECTED = torch.from_numpy(PIXELS).permute(0, 3, 1, 2)
LABELS_T = torch.from_numpy(LABELS)


class Pairs(TorchDataset[tuple[Any, Any]]):
    """A map-style dataset of torch."""

    def __init__(self, images: Any, labels: Any, classes: list[str] | None = None) -> None:
        self.images, self.labels = images, labels
        if classes:
            self.classes = classes

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, number: int) -> tuple[Any, Any]:
        return self.images[number], self.labels[number]


class Names:
    """Like ``ClassLabel`` of Hugging Face."""

    names = ["ant", "bee", "cow"]  # noqa: RUF012


class Rows:
    """The interface of a Hugging Face dataset: a length, rows as dicts, and ``features``."""

    def __init__(self, **columns: Any) -> None:
        self.columns = columns
        self.features = {name: Names() if name == "label" else object() for name in columns}

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {name: column[number] for name, column in self.columns.items()}


def pictures(pixels: np.ndarray = PIXELS) -> list[Image.Image]:
    return [Image.fromarray(own) for own in pixels]


@pytest.mark.parametrize(
    "dataset",
    [
        (PIXELS, LABELS),
        (torch.from_numpy(PIXELS), torch.from_numpy(LABELS)),
        (EXPECTED.numpy(), LABELS.astype(np.uint8)),
        (EXPECTED.float() / 255, LABELS),
        (PIXELS.astype(np.float64) / 255, LABELS),
        (PIXELS.astype(np.int32), LABELS),
        TensorDataset(EXPECTED, torch.from_numpy(LABELS)),
        Pairs(EXPECTED.float() / 255, LABELS.tolist()),
        Pairs(PIXELS, LABELS),
        Pairs(pictures(), LABELS.tolist()),
        Rows(image=pictures(), label=LABELS.tolist()),
        Rows(img=PIXELS.tolist(), fine_label=LABELS, coarse_label=LABELS),
        [(image, int(label)) for image, label in zip(pictures(), LABELS, strict=True)],
    ],
    ids=[
        *("NHWC arrays", "NHWC tensors", "NCHW arrays", "floats", "doubles", "integers", "TensorDataset", "ToTensor"),
        *("rows of arrays", "PIL", "Hugging Face, PIL", "Hugging Face, lists", "a list of pairs"),
    ],
)
def test_every_input_type_gives_the_same_arrays(dataset: Any) -> None:
    x, y = as_arrays(dataset)
    assert (x.dtype, y.dtype) == (torch.uint8, torch.int64)
    assert torch.equal(x, EXPECTED)
    assert y.tolist() == LABELS.tolist()


def test_list_of_two_examples_is_not_a_pair_of_arrays() -> None:
    x, y = as_arrays([(PIXELS[0], 0), (PIXELS[1], 1)])
    assert torch.equal(x, EXPECTED[:2])
    assert y.tolist() == [0, 1]


def test_floats_are_rounded() -> None:
    x, _ = as_arrays((np.full((2, 8, 8), [[[0.5]], [[0.999]]]), np.arange(2)))
    assert x[:, 0, 0, 0].tolist() == [128, 255]


def test_grey_images_become_rgb_if_one_is_in_colour() -> None:
    grey = pictures(PIXELS[..., 0])
    assert torch.equal(as_arrays(Pairs(grey, LABELS))[0], EXPECTED[:, :1])
    assert torch.equal(as_arrays((PIXELS[..., 0], LABELS))[0], EXPECTED[:, :1])
    for mixed in ([grey[0], *pictures()[1:]], [*pictures()[:-1], grey[-1]]):
        x, _ = as_arrays(Pairs(mixed, LABELS))
        assert x.shape == (12, 3, 10, 10)
        number = 0 if mixed[0] is grey[0] else 11
        assert torch.equal(x[number], EXPECTED[number, :1].expand(3, -1, -1))


def test_channel_axis_is_found_by_the_two_equal_axes() -> None:
    x = RNG.integers(0, 256, (4, 20, 34, 34), dtype=np.uint8)
    assert torch.equal(as_arrays((x, LABELS[:4]))[0], torch.from_numpy(x))
    assert torch.equal(as_arrays((x.transpose(0, 2, 3, 1), LABELS[:4]))[0], torch.from_numpy(x))


def test_images_of_unequal_size_need_image_size() -> None:
    images = [own.resize((10 + n, 12)) for n, own in enumerate(pictures())]
    with pytest.raises(BadInput, match=r"^dataset: item 1: the image is 3x12x11, .* 3x12x10: give image_size=N"):
        as_arrays(Pairs(images, LABELS))
    assert as_arrays(Pairs(images, LABELS), image_size=8)[0].shape == (12, 3, 8, 8)


def test_columns_can_be_named() -> None:
    rows = Rows(photo=pictures(), species=LABELS.tolist())
    with pytest.raises(BadInput, match=r"no column image or .* among photo, species: name .* with image=NAME"):
        as_arrays(rows)
    assert torch.equal(as_arrays(rows, image="photo", label="species")[0], EXPECTED)
    with pytest.raises(BadInput, match="no column kind among photo, species"):
        as_arrays(rows, image="photo", label="kind")


def endless() -> Iterator[int]:
    yield 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: endless(), "generator is not a map-style dataset"),
        (lambda: {"x": PIXELS}, "dict is not a map-style dataset"),
        (lambda: Pairs([], []), "is empty"),
        (lambda: [(PIXELS[0], 0, 1)], "item 0 is a tuple of 3: expected .image, label."),
        (lambda: [(PIXELS[0], 0), PIXELS[1]], "item 1 is a ndarray"),
        (lambda: [(PIXELS[0], 0), ("cat.png", 0)], "item 1: the image is a str: give an array"),
        (lambda: [(PIXELS[0], 0), (PIXELS[1], "cat")], "item 1: label: 'cat' is not an integer"),
        (lambda: [(PIXELS[0], 1.0)], "item 0: label: 1.0 is not an integer"),
        (lambda: [(PIXELS[0], True)], "item 0: label: True is not"),
        (lambda: [(PIXELS[0], torch.eye(3))], "item 0: label: .* is not an integer"),
        (lambda: [(PIXELS[0], -1)], "labels contains the negative label -1"),
        (lambda: [(PIXELS[0] / 255 - 0.5, 0)], "item 0: pixels are float64 from -0.5 to .*not normalised"),
        (lambda: [(np.full((8, 8), np.nan), 0)], "item 0: pixels are float64 from nan"),
        (lambda: [(PIXELS[0].astype(np.int64) + 9, 0)], "item 0: pixels are int64 from .* give uint8"),
        (lambda: [(PIXELS[0] > 9, 0)], "item 0: pixels are bool"),
        (lambda: [(np.zeros((1, 1, 8, 8), np.uint8), 0)], r"item 0: the image has shape \(1, 1, 8, 8\)"),
        (lambda: [(Image.new("I;16", (8, 8)), 0)], "item 0: pixels of type I;16 are deeper than 8 bits"),
        (lambda: (PIXELS, LABELS[:-1]), "12 images but 11 labels"),
        (lambda: (PIXELS, LABELS / 2), "y is float64: store labels as integers"),
        (lambda: (PIXELS[None], LABELS), "x: the image has shape .* after N"),
    ],
)
def test_invalid_data_sets_are_rejected_in_one_line(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(BadInput, match=message) as caught:
        as_arrays(make(), where="mine")
    assert str(caught.value).startswith("mine: ")
    assert "\n" not in str(caught.value)


# Return values of a user's function


ARRAYS = {"x_train": PIXELS, "y_train": LABELS, "x_test": PIXELS[:6], "y_test": LABELS[:6]}


@pytest.mark.parametrize(
    "found",
    [
        assemble(
            "x",
            (EXPECTED, torch.from_numpy(LABELS)),
            (EXPECTED[:6], torch.from_numpy(LABELS[:6])),
            tuple("abc"),
            "none",
            0,
        ),
        ARRAYS | {"classes": ["a", "b", "c"]},
        (Pairs(pictures(), LABELS, ["a", "b", "c"]), Pairs(PIXELS[:6], LABELS[:6])),
        {"train": (PIXELS, LABELS), "test": (PIXELS[:6], LABELS[:6])},
        [Rows(image=PIXELS, label=LABELS), Rows(image=PIXELS[:6], label=LABELS[:6])],
    ],
    ids=["Dataset", "arrays", "torch", "halves", "Hugging Face"],
)
def test_every_return_type_becomes_a_dataset(found: Any) -> None:
    data = as_dataset("mine", found, "none")
    assert (data.name, data.augment, len(data.classes)) == ("mine", "none", 3)
    assert torch.equal(torch.as_tensor(data.x_train), EXPECTED)
    assert torch.equal(torch.as_tensor(data.x_test), EXPECTED[:6])
    assert as_dataset("mine", found, "none", 8, 8).image_size == 8


def test_class_names_are_read_from_the_data_set() -> None:
    halves = [Rows(image=PIXELS, label=LABELS), Rows(image=PIXELS[:6], label=LABELS[:6])]
    assert as_dataset("mine", halves, "none").classes == ("ant", "bee", "cow")
    assert as_dataset("mine", ARRAYS, "none").classes == ("0", "1", "2")


def test_clients_are_read_from_arrays_or_a_column() -> None:
    ids = np.arange(12) % 2
    for found in (
        ARRAYS | {"client_train": ids, "client_test": torch.from_numpy(ids[:6])},
        [Rows(image=PIXELS, label=LABELS, client=ids), Rows(image=PIXELS[:6], label=LABELS[:6], client=ids[:6])],
    ):
        data = as_dataset("mine", found, "none")
        assert data.assigned is not None
        assert [part.tolist() for part in data.assigned if part is not None] == [ids.tolist(), ids[:6].tolist()]
    with pytest.raises(BadInput, match=r"mine: client_train is int64 of shape \(5,\): store one integer client id"):
        as_dataset("mine", ARRAYS | {"client_train": ids[:5]}, "none")
    with pytest.raises(BadInput, match="mine: client_test without client_train"):
        as_dataset("mine", ARRAYS | {"client_test": ids[:6]}, "none")


def test_event_recordings_become_frames() -> None:
    events = {key: np.tile(np.array([0, 9, 3, 5]), 12) % (2 if key == "p" else 10) for key in "xypt"}
    halves = {"labels": LABELS, "split": np.array(["train"] * 6 + ["test"] * 6), "offsets": np.arange(0, 49, 4)}
    data = as_dataset("mine", events | halves, "none", framing=Framing(2))
    assert (data.frames, data.x_train.shape) == (2, (6, 4, 10, 10))


GOOD = as_dataset("good", ARRAYS, "none")


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (None, "its function returned NoneType: return a Dataset, a mapping of x_train"),
        ({"x_train": PIXELS}, "its function returned a mapping of x_train: return"),
        (ARRAYS | {"y_train": LABELS * 2}, "class 1 of 5 has no training example"),
        (ARRAYS | {"x_train": PIXELS.astype(np.float32)}, "train: x: pixels are float32 from 0 to 255"),
        (ARRAYS | {"x_train": PIXELS[:, 0, 0]}, r"train: x: the image has shape \(12, 3\)"),
        (ARRAYS | {"classes": ["a", "b"]}, "label 2 is out of range for the 2 names"),
        (replace(GOOD, x_train=EXPECTED.float()), "x_train is torch.float32 of shape .* give uint8"),
        (replace(GOOD, y_train=GOOD.y_train + 1), "label 3 is out of range for the 3 names"),
        (replace(GOOD, y_test=GOOD.y_test[1:]), "x_test has 6 images but y_test has 5 labels"),
        (replace(GOOD, mean=(0.5,)), "mean has 1 values for 3 channels"),
    ],
)
def test_return_value_is_checked(found: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message) as caught:
        as_dataset("mine", found, "none")
    assert str(caught.value).startswith("mine: ")
    assert "\n" not in str(caught.value)


def test_real_hugging_face_dataset() -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["ant", "bee", "cow"])})
    rows = {"image": pictures(), "label": LABELS.tolist()}
    train = datasets.Dataset.from_dict(rows, features=features)
    both = datasets.DatasetDict({"train": train, "test": train.select(range(6))})
    data: Dataset = as_dataset("mine", both, "crop")
    assert torch.equal(torch.as_tensor(data.x_train), EXPECTED)
    assert data.y_test.tolist() == LABELS[:6].tolist()
    assert data.classes == ("ant", "bee", "cow")
