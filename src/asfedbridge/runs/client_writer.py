"""Writes a client's files after the closing visit, in the process that holds the client."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import asfedbridge
from asfedbridge.core import plugins
from asfedbridge.core.client import Client
from asfedbridge.core.task import Round
from asfedbridge.data.loader import Shard
from asfedbridge.data.random_crop import RESIZED
from asfedbridge.models.registry import UNNAMED
from asfedbridge.runs.client_builder import name_factory
from asfedbridge.runs.client_card import ClientCard, Preprocessing
from asfedbridge.runs.client_file import BACKBONE, write_client
from asfedbridge.runs.spec import Spec, to_table


@dataclass(frozen=True)
class ClientWriter:
    """Writes the files of a client; holds what all cards of a run have in common. Called by an engine's host, possibly
    in another process."""

    folder: Path
    spec: Spec
    method: Mapping[str, Any]  # name and hyper-parameters
    classes: tuple[str, ...]
    factories: Mapping[str, str]  # model -> "module:qualname", for models that are not registered by name
    plugins: tuple[str, ...]

    def __call__(self, client: Client, rnd: Round, metrics: Mapping[str, float]) -> None:
        names = [BACKBONE] if self.spec.client_files == BACKBONE else list(client.modules)
        tensors = {f"{name}/{key}": t for name in names for key, t in client.modules[name].state_dict().items()}
        write_client(self.folder, self.describe(client, rnd, metrics, names), tensors)

    def describe(self, client: Client, rnd: Round, metrics: Mapping[str, float], names: Iterable[str]) -> ClientCard:
        """The card of a client whose file contains the networks in ``names``."""
        info, task, shard = client.info, client.task, client.shard
        assert isinstance(shard, Shard)
        fields = dict(self.method)
        return ClientCard(
            id=info.id,
            kind=info.kind,
            model=info.model,
            width=info.width,
            T=info.T,
            bits=info.bits,
            neuron=task.neuron,
            feature_dim=task.feature_dim,
            projector=task.projector,
            quantiser=task.quantiser,
            precision=task.precision,
            channels=task.channels,
            image_size=task.image_size,
            frames=task.frames,
            mean=shard.mean,
            std=shard.std,
            classes=self.classes or tuple(map(str, range(task.classes))),
            preprocessing=Preprocessing("enlarged" if shard.augment == RESIZED else "square", self.spec.frames_by),
            method=fields.pop("name"),
            method_fields=fields,
            data=self.spec.data,
            accuracy=metrics.get("received.accuracy"),
            point=self.spec.method.reports,
            rounds=rnd.index,
            train=info.train_size,
            test=info.test_size,
            specification=self.spec.digest(),
            versions={"asfedbridge": asfedbridge.__version__, "torch": torch.__version__},
            extras=tuple(name for name in names if name != BACKBONE),
            fused_weight=metrics.get("received.fused_weight"),
            fused_accuracy=metrics.get("received.fused_accuracy"),
            factory=self.factories.get(info.model, ""),
            plugins=self.plugins,
        )


def make_writer(spec: Spec, classes: tuple[str, ...], folder: Path) -> ClientWriter | None:
    """The writer of a run; None if the specification disables client files. ``classes``: names; empty: use numbers."""
    if spec.client_files == "none":
        return None
    factories = {name: name_factory(model.make) for name, model in UNNAMED.items()}
    loaded = tuple(Path(file).name for file in plugins.FILES)
    return ClientWriter(folder, spec, to_table(spec)["method"], classes, factories, loaded)
