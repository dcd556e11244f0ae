"""Diagnostics of a round: clients compared on the same images after local training and before aggregation.

Each client computes its features and gradient in its own process (``Reading``); pairs are compared in the parent.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from asfedbridge.analysis.cka import linear_cka
from asfedbridge.analysis.gradients import cosines, probe_gradient
from asfedbridge.analysis.mmd import median_bandwidth, mmd_squared
from asfedbridge.analysis.pairs import block_means
from asfedbridge.core.client import Client, Shard
from asfedbridge.core.payload import Payload
from asfedbridge.core.task import ClientInfo

FEATURES, GRADIENT = "features", "gradient/"
BATCH = 256


@torch.inference_mode()
def read_features(client: Client, probe: Shard) -> Tensor:
    """The input of the classifier for every probe image, averaged over an SNN's time steps: [M, D] on the CPU."""
    backbone = client.backbone.eval()
    return torch.cat([backbone(client.place(x)).feature.cpu() for x, _ in probe.test_batches(BATCH)])


@dataclasses.dataclass(frozen=True)
class Reading:
    """Computes a client's features and gradient. A class, not a closure, because the pool sends it to workers."""

    probe: Shard

    def __call__(self, client: Client) -> Payload:
        gradient = probe_gradient(client, self.probe)
        named = {f"{GRADIENT}{name}": tensor for name, tensor in gradient.items()}
        return {FEATURES: read_features(client, self.probe), **named}


def compare(
    clients: Sequence[ClientInfo], readings: Mapping[int, Payload], bandwidth: float | None = None
) -> dict[str, Any]:
    """Block means of CKA, MMD^2 and gradient cosine, in the layout of ``analysis.json``.

    The default ``bandwidth`` of the MMD kernel is the median distance between these features.
    """
    features = [readings[c.id][FEATURES] for c in clients]
    gradients = [
        {name: tensor for name, tensor in readings[c.id].items() if name.startswith(GRADIENT)} for c in clients
    ]
    if bandwidth is None:
        bandwidth = median_bandwidth(features)
    kinds = [c.kind for c in clients]
    return {
        "cka": _blocks(linear_cka(features), kinds),
        "mmd": _blocks(mmd_squared(features, bandwidth), kinds) | {"bandwidth": bandwidth},
        "gradients": _blocks(cosines(gradients).cosine_NN, kinds),
    }


def _blocks(values_NN: Tensor, kinds: Sequence[str]) -> dict[str, Any]:
    return {"blocks": {name: dataclasses.asdict(block) for name, block in block_means(values_NN, kinds).items()}}
