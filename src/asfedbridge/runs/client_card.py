"""The card stored with the weights of a trained client: what it is and what input it expects."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from asfedbridge.core.errors import BadInput
from asfedbridge.core.task import ClientInfo, Kind, Neuron, Point, Precision, Task
from asfedbridge.runs.json_table import JsonTable

FORMAT = 1
MAX_CLASSES, MAX_CHANNELS = 100_000, 1024
Resize = Literal["square", "enlarged"]


@dataclass(frozen=True)
class Preprocessing:
    """How an 8-bit image becomes the network's input, before (x / 255 - mean) / std."""

    resize: Resize = "square"
    frames_by: Literal["count", "time"] = "count"  # how events of a recording are divided into frames

    def describe(self, image_size: int, frames: int) -> str:
        if frames > 1:
            share = "of equally many events each" if self.frames_by == "count" else "of equal duration"
            return (
                f"{frames} frames {share}, which count the events of each pixel and polarity (at most 255), folded "
                f"into channels 2 t + polarity; (x / 255 - mean) / std"
            )
        square = "the central square, scaled bilinearly and antialiased to"
        if self.resize == "enlarged":
            return f"{square} 8/7 of {image_size} pixels, cropped to the central {image_size}; (x / 255 - mean) / std"
        return f"{square} {image_size} pixels and rounded to 8 bits; (x / 255 - mean) / std"


@dataclass(frozen=True)
class ClientCard:
    """What a client is, how it was trained, and what input it expects."""

    id: int
    kind: Kind
    model: str  # name of a family, or of a user's own model
    width: float
    T: int
    bits: int
    neuron: Neuron
    feature_dim: int
    projector: str
    quantiser: str
    precision: Precision  # precision of forward passes (autocast)
    channels: int
    image_size: int
    frames: int  # event frames, folded into the channels; 1: static images
    mean: tuple[float, ...]  # per channel, of values in [0, 1]
    std: tuple[float, ...]
    classes: tuple[str, ...]  # names
    preprocessing: Preprocessing
    method: str
    method_fields: Mapping[str, Any]  # hyper-parameters of the method; some of them determine networks
    data: str  # the data source in the specification
    accuracy: float | None  # of these weights, in percent, on the client's own test images
    point: Point  # the method's evaluation point
    rounds: int  # played
    train: int  # images
    test: int
    specification: str  # digest
    versions: Mapping[str, str]  # of asfedbridge and torch
    extras: tuple[str, ...] = ()  # other networks in the file
    fused_weight: float | None = None  # weight of the backbone in the fused prediction
    fused_accuracy: float | None = None  # in percent
    factory: str = ""  # "module:qualname" of a function that makes the model, if it is not registered
    plugins: tuple[str, ...] = ()  # files that the run imported; they may register the model or the method
    format: int = FORMAT

    @property
    def info(self) -> ClientInfo:
        return ClientInfo(self.id, self.kind, self.model, self.width, self.T, self.train, self.test, self.bits)

    @property
    def task(self) -> Task:
        return Task(
            classes=len(self.classes),
            channels=self.channels,
            image_size=self.image_size,
            frames=self.frames,
            feature_dim=self.feature_dim,
            projector=self.projector,  # type: ignore[arg-type]
            quantiser=self.quantiser,  # type: ignore[arg-type]
            precision=self.precision,
            neuron=self.neuron,
        )

    @property
    def label(self) -> str:
        return self.info.label


def parse_card(table: JsonTable) -> ClientCard:
    """A card from its entries; BadInput names an invalid entry."""
    preparing = table.table("preprocessing")
    card = ClientCard(
        format=table.whole("format"),
        id=table.within("id", 0, 10**6),
        kind=table.choice("kind", get_args(Kind)),
        model=table.text("model"),
        width=table.number("width"),
        T=table.within("T", 1, 2**16),
        bits=table.within("bits", 1, 32),
        neuron=_parse_neuron(table.table("neuron")),
        feature_dim=table.within("feature_dim", 1, 2**16),
        projector=table.text("projector"),
        quantiser=table.text("quantiser"),
        precision=table.choice("precision", get_args(Precision)),
        channels=table.within("channels", 1, MAX_CHANNELS),
        image_size=table.within("image_size", 1, 2**12),
        frames=table.within("frames", 1, MAX_CHANNELS),
        mean=table.vector("mean"),
        std=table.vector("std"),
        classes=table.texts("classes"),
        preprocessing=Preprocessing(
            preparing.choice("resize", get_args(Resize)), preparing.choice("frames_by", ("count", "time"))
        ),
        method=table.text("method"),
        method_fields=dict(table.table("method_fields").entries),
        data=table.text("data"),
        accuracy=table.optional_number("accuracy"),
        point=table.choice("point", get_args(Point)),
        rounds=table.within("rounds", 0, 10**9),
        train=table.within("train", 0, 2**53),
        test=table.within("test", 0, 2**53),
        specification=table.text("specification"),
        versions={name: str(value) for name, value in table.table("versions").entries.items()},
        extras=table.texts("extras"),
        fused_weight=table.optional_number("fused_weight"),
        fused_accuracy=table.optional_number("fused_accuracy"),
        factory=table.text("factory", ""),
        plugins=table.texts("plugins"),
    )
    for name, values in (("mean", card.mean), ("std", card.std)):
        if len(values) != card.channels:
            raise table.wrong(name, f"a list of {card.channels} numbers, one for each channel")
    if any(value <= 0 for value in card.std):
        raise table.wrong("std", "above 0 in every channel")
    if not 1 <= len(card.classes) <= MAX_CLASSES:
        raise table.wrong("classes", f"a list of 1 to {MAX_CLASSES} names")
    if card.channels % card.frames or (card.frames > 1 and card.kind == "snn" and card.frames != card.T):
        raise table.wrong("frames", "a divisor of the channels, and equal to T for an SNN")
    if card.fused_weight is not None and not 0 <= card.fused_weight <= 1:
        raise table.wrong("fused_weight", "from 0 to 1")
    return card


def _parse_neuron(table: JsonTable) -> Neuron:
    names = [entry.name for entry in dataclasses.fields(Neuron)]
    if sorted(table.entries) != sorted(names):
        raise BadInput(f"{table.file}: neuron must have {', '.join(names)}; restore the file")
    return Neuron(
        decay=table.number("decay"),
        threshold=table.number("threshold"),
        surrogate=table.text("surrogate"),  # type: ignore[arg-type]
        sharpness=table.number("sharpness"),
        detach_reset=table.flag("detach_reset"),
    )
