"""What clients say of the same images."""

import torch
from torch import Tensor

from asfedbridge.core.client import Client, Shard

BATCH = 256


@torch.inference_mode()
def read_features(client: Client, probe: Shard) -> Tensor:
    """The feature before the classifier, mean over an SNN's time steps, of every probe image: [M, D] on the CPU."""
    backbone = client.backbone.eval()
    return torch.cat([backbone(client.place(x)).feature.cpu() for x, _ in probe.test_batches(BATCH)])
