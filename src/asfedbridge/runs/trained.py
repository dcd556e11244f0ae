"""Trained clients: prediction, evaluation and export. The training data are not needed."""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asfedbridge.analysis.classification import judge
from asfedbridge.analysis.firing import firing_rates
from asfedbridge.core import ensemble
from asfedbridge.core.client import Client, Predictor
from asfedbridge.core.errors import BadInput
from asfedbridge.core.method import Method
from asfedbridge.data.inputs import Named
from asfedbridge.data.loader import Shard
from asfedbridge.data.memory_map import Images
from asfedbridge.data.random_crop import RESIZED
from asfedbridge.engines.turn import EVALUATION_BATCH, answer
from asfedbridge.models.bridge import Bridge
from asfedbridge.runs.client_builder import Models, method_of, rebuild_client
from asfedbridge.runs.client_card import ClientCard
from asfedbridge.runs.client_file import read_client
from asfedbridge.runs.labelled import read_labelled, reader_for

if TYPE_CHECKING:
    from asfedbridge.export.writer import Export

TIMED, WARM_UP = 20, 3  # single images for the latency
FIRED = 256  # images whose spikes are counted
Tell = Callable[[int], None]  # called with the number of images done


@dataclass(frozen=True)
class Prediction:
    """Predictions for N images."""

    labels: np.ndarray  # int64 [N]
    names: list[str]  # predicted classes
    probabilities: np.ndarray  # float32 [N, classes]
    inputs: list[str]  # for each image, its file or its position

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True)
class Evaluation:
    """Metrics of a client on labelled images. Accuracies and calibration error are in percent."""

    images: int
    accuracy: float
    per_class: dict[str, float | None]  # None: no image of this class
    confusion: list[list[int]]  # rows: the label, columns: the prediction, in the order of the card's classes
    ece: float  # expected calibration error, 15 bins
    latency_ms: float  # of a single image, median, on this machine
    spikes: float | None  # input spikes of all layers with weights, per image; None: not an SNN
    sops: float | None  # synaptic operations caused by these spikes, per image

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class TrainedClient:
    """A trained client. ``card`` describes it; ``module`` is its backbone, ``bridge`` its Bridge or None."""

    def __init__(self, card: ClientCard, client: Client, method: Method) -> None:
        self.card, self._client, self._method = card, client, method
        for module in client.modules.values():
            module.eval()

    @property
    def module(self) -> nn.Module:
        """The backbone, in evaluation mode. Takes normalised images and returns an ``Output`` with ``.logits``."""
        return self._client.backbone

    @property
    def bridge(self) -> nn.Module | None:
        return next((m for m in self._client.modules.values() if isinstance(m, Bridge)), None)

    def predict(self, images: Any, fused: bool = False, tell: Tell | None = None) -> Prediction:
        """Classify images: uint8 arrays [N, H, W, C] or [H, W, C], PIL images, paths of files or folders, event
        recordings (paths, or mappings of x, y, p, t), or a list of these.

        ``fused``: average the class probabilities of the backbone and the client's second network (the Bridge, for
        AS-FedBridge), with the client's own weight.
        """
        predict = self._predictor(fused)
        inputs: list[str] = []
        logits = []
        for names, pixels in self._together(reader_for(self.card).read(images)):
            shard = self._shard(pixels, torch.zeros(len(pixels), dtype=torch.int64))
            logits.append(answer(self._client, predict, shard).logits)
            inputs += names
            if tell:
                tell(len(inputs))
        if not inputs:
            raise BadInput("images: no images were given; give at least one")
        probabilities = F.softmax(torch.cat(logits), dim=1)
        labels = probabilities.argmax(dim=1)
        return Prediction(labels.numpy(), [self.card.classes[k] for k in labels], probabilities.numpy(), inputs)

    def evaluate(self, data: Any, fused: bool = False, data_root: str | Path | None = None) -> Evaluation:
        """Evaluate on labelled images: the name of a data source (its test images; classes are matched by name), a
        ``Dataset``, or a pair (images, labels) with images as for ``predict`` and labels as numbers or names.

        The expected calibration error is sum_b |B_b| / N * |accuracy(B_b) - confidence(B_b)| over 15 equal bins of the
        largest probability. Latency is measured on single images, spikes on the first 256.
        """
        return self.judge(*read_labelled(self.card, reader_for(self.card), data, data_root), fused)

    def export(
        self,
        path: str | Path,
        *,
        format: str | None = None,
        bridge: bool = False,
        verify: bool = False,
        data: Any = None,
        data_root: str | Path | None = None,
    ) -> "Export":
        """Export the backbone, or with ``bridge`` the Bridge, and write a model card next to it.

        The suffix of ``path`` selects the format: ``.pt2`` or ``.safetensors`` (torch), ``.onnx`` or ``.nir``.
        ``verify`` runs the file in other runtimes and records the largest difference in logits for each. ``data``:
        labelled images for ``verify`` and the card, as for ``evaluate`` (default: the test images of the run's data, if
        available).
        """
        from asfedbridge.runs.exporting import export_client  # torch.export and fx are slow to import

        options: Any = {"format": format, "bridge": bridge, "verify": verify, "data": data, "data_root": data_root}
        return export_client(self, path, **options)

    def judge(self, pixels: Images, labels: Tensor, fused: bool = False) -> Evaluation:
        """Like ``evaluate``, on 8-bit images that already have the network's channels and size."""
        own = self._shard(pixels, labels)
        answers = answer(self._client, self._predictor(fused), own)
        found = judge(*answers)
        spikes, sops = self._count_spikes(own)
        return Evaluation(
            images=len(answers.labels),
            accuracy=found.accuracy,
            per_class=dict(zip(self.card.classes, found.per_class, strict=True)),
            confusion=found.confusion,
            ece=found.ece,
            latency_ms=self._time(own, fused),
            spikes=spikes,
            sops=sops,
        )

    def accuracy_on(self, pixels: Images, labels: Tensor) -> float:
        """Accuracy of the backbone in percent."""
        return judge(*answer(self._client, self._predictor(False), self._shard(pixels, labels))).accuracy

    def _shard(self, pixels: Images, labels: Tensor) -> Shard:
        augment = RESIZED if self.card.preprocessing.resize == "enlarged" else "none"
        nothing = torch.zeros(0, self.card.channels, 8, 8, dtype=torch.uint8), labels[:0]
        card = self.card
        return Shard(*nothing, pixels, labels, card.mean, card.std, augment, size=card.image_size)

    def _predictor(self, fused: bool) -> Predictor:
        client, method = self._client, self._method

        def own(x: Tensor) -> Tensor:
            logits: Tensor = client.backbone(x).logits
            return logits

        if not fused:
            return own
        partner = method.client_models(client).get(method.fused_with) if self.card.extras else None
        if partner is None:
            why = "its file does not contain it" if method.fused_with else f"{method.name} has none"
            raise BadInput(f"fused: {self.card.label} has no second network ({why}); leave fused out")
        weight = ensemble.EQUAL if self.card.fused_weight is None else self.card.fused_weight
        return lambda x: ensemble.mix(own(x).float().cpu(), partner(x).float().cpu(), weight)

    def _together(self, named: Iterator[Named]) -> Iterator[Named]:
        """Join images of one size into batches."""
        names: list[str] = []
        pixels: list[Tensor] = []
        for one in named:
            if names and (len(names) >= EVALUATION_BATCH or one.pixels.shape[1:] != pixels[0].shape[1:]):
                yield Named(names, torch.cat(pixels))
                names, pixels = [], []
            names += one.names
            pixels.append(one.pixels)
        if names:
            yield Named(names, torch.cat(pixels))

    @torch.inference_mode()
    def _time(self, shard: Shard, fused: bool) -> float:
        """Median milliseconds for one image."""
        client, predict = self._client, self._predictor(fused)
        images = [client.place(x) for x, _ in islice(shard.test_batches(1), TIMED)]
        taken = []
        with client.autocast():
            for x in [*images[:1] * WARM_UP, *images]:
                begin = time.perf_counter()
                predict(x).cpu()
                taken.append(1000 * (time.perf_counter() - begin))
        return statistics.median(taken[WARM_UP:])

    def _count_spikes(self, shard: Shard) -> tuple[float | None, float | None]:
        if self.card.kind != "snn":
            return None, None
        found = firing_rates(self._client, islice(shard.test_batches(FIRED), 1)).values()
        layers, count = [layer for layer in found if layer.spiking], min(FIRED, shard.test_size)
        spikes = sum(int(layer.spikes_T.sum()) for layer in layers)
        return spikes / count, sum(layer.synops for layer in layers) / count


def open_client(path: Path, models: Models | None = None, trust: bool = False) -> TrainedClient:
    """Open a trained client from either of its two files."""
    card, tensors = read_client(path)
    return TrainedClient(card, rebuild_client(card, tensors, models=models, trust=trust), method_of(card))
