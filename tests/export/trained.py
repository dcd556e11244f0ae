"""Clients that were really trained, a little, on the digits of scikit-learn."""

from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from asfedbridge.core.task import ClientInfo, Kind, Task
from asfedbridge.core.training import Bounded
from asfedbridge.data.loader import Shard
from asfedbridge.export.writer import Subject
from asfedbridge.models.zoo import build_backbone

FAMILIES = ("resnet18", "resnet18-sew", "resnet18-ms", "vgg9", "vgg11", "mobilenet")
KINDS: tuple[Kind, ...] = ("ann", "snn", "bnn", "qnn")
BITS = {"bnn": 1, "qnn": 4}
MEAN, STD = 0.305, 0.376
STEPS = 30  # of training
LARGE = 128  # pixels: such images are slow, so fewer are trained on


class Trained(NamedTuple):
    subject: Subject
    images: Tensor  # uint8, not seen in training
    labels: Tensor

    def logits(self) -> Tensor:
        """Of the network itself."""
        with torch.no_grad():
            out = self.subject.network(normalised(self.images, self.subject))
        return getattr(out, "logits", out)


def make_shard(images: Tensor, labels: Tensor, subject: Subject) -> Shard:
    return Shard(images, labels, images, labels, subject.mean, subject.std, "none")


def normalised(images: Tensor, subject: Subject) -> Tensor:
    """As the data loader does it."""
    shard = make_shard(images, torch.zeros(len(images), dtype=torch.int64), subject)
    return next(shard.test_batches(len(images)))[0]


@cache
def digits(frames: int = 1, size: int = 8) -> tuple[Tensor, Tensor]:
    """Images of ``size`` pixels; further frames are mirror images."""
    found = load_digits()
    images = torch.tensor(found.images / 16 * 255).round().unsqueeze(1).float()
    images = F.interpolate(images, (size, size), mode="nearest").to(torch.uint8)
    return torch.cat([images, images.flip(3), images.flip(2)][:frames], dim=1), torch.tensor(found.target)


@cache
def trained(
    kind: Kind,
    model: str,
    frames: int = 1,
    size: int = 8,
    quantiser: str = "lsq",
    width: float = 0.125,
    steps: int = STEPS,
) -> Trained:
    task = Task(10, frames, size, frames, feature_dim=32, quantiser=quantiser)
    info = ClientInfo(0, kind, model, width, {"snn": max(frames, 3)}.get(kind, 1), bits=BITS.get(kind, 32))
    network = build_backbone(task, info)
    if (kind, model) == ("snn", "mobilenet"):
        wake(network)
    subject = Subject(network, info, task, (MEAN,) * frames, (STD,) * frames, facts())
    images, labels = digits(frames, size)
    count = 48 if size >= LARGE else 192
    train(network, normalised(images[:count], subject), labels[:count], steps)
    found = Trained(subject, images[200:216], labels[200:216])
    assert found.logits().std(dim=0).max() > 1e-3  # a network that does not look at its images would agree anywhere
    return found


@torch.no_grad()
def wake(network: nn.Module) -> None:
    """Lift the currents of all neurons: fourteen in a row without a shortcut would take long to begin to fire."""
    for norm in network.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.bias.fill_(0.5)


@torch.enable_grad()
def train(network: nn.Module, x: Tensor, y: Tensor, steps: int) -> None:
    """In three batches, again and again."""
    batches = list(zip(x.chunk(3), y.chunk(3), strict=True))
    optimiser = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    network.train()
    for step in range(steps):
        images, labels = batches[step % 3]
        optimiser.zero_grad()
        F.cross_entropy(network(images).logits, labels).backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimiser.step()
        with torch.no_grad():
            for layer in network.modules():
                if isinstance(layer, Bounded):
                    layer.bound()
    network.eval()


def facts() -> dict[str, object]:
    classes = [str(k) for k in range(10)]
    return {
        "client": {"label": "client 0", "T": 3},
        "input": {"images": "uint8 [N, 1, 8, 8]"},
        "training": {"method": "none"},
        "classes": classes,
        "data": "digits",
        "limits": ["It knows ten digits."],
    }
