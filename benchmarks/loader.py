"""Claim: transforming whole batches of resident tensors is faster than a DataLoader with per-sample transforms.

    python benchmarks/loader.py [--quick] [--repeats N] [--threads N] [--json]

Compared: one shuffled epoch of zero padding by 4 and random crop, random flip and normalisation over 5,000 uint8
images of 3x32x32, batch 256. Our ``Shard.batches`` is compared with torch's DataLoader with 0 and with 2 persistent
workers. The DataLoader's per-sample transforms are written in plain torch operations, because torchvision cannot be
imported on the machine this was written on; torchvision's transforms do the same operations.

Equal: with the same permutation, offsets and flips, the same batches up to float rounding. When timed, each contender
draws its own: ours once per epoch, the transforms once per sample.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from asfedbridge.data.loader import Shard
from asfedbridge.engines.process import prepare_process
from federation import MEAN, STD, make_images, make_shard
from sidebyside import Answer, Benchmark, Case, Contender, Work, main

PAD, BATCH, SEED = 4, 256, 7
Draw = Callable[[int], tuple[int, int, bool]]  # top, left and flip of a sample


class Samples(Dataset[tuple[Tensor, Tensor]]):
    """A dataset that transforms one image at a time, as is usual with a DataLoader."""

    def __init__(self, x: Tensor, y: Tensor, draw: Draw) -> None:
        self.x, self.y, self.draw = x, y, draw
        self.mean, self.std = (torch.tensor(v).view(-1, 1, 1) for v in (MEAN, STD))

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image, (top, left, flip) = self.x[index], self.draw(index)
        height, width = image.shape[1:]
        image = F.pad(image, (PAD, PAD, PAD, PAD))[:, top : top + height, left : left + width]
        if flip:
            image = image.flip(2)
        return image.float().div(255).sub(self.mean).div(self.std), self.y[index]


def at_random(index: int) -> tuple[int, int, bool]:
    top, left = torch.randint(0, 2 * PAD + 1, (2,)).tolist()
    return top, left, bool(torch.rand(()) < 0.5)


def as_shard_draws(count: int) -> tuple[list[int], Draw]:
    """The order and the draw by index of ``Shard.batches`` for the same seed."""
    generator = torch.Generator().manual_seed(SEED)
    order = torch.randperm(count, generator=generator).tolist()
    tops, lefts = torch.randint(0, 2 * PAD + 1, (2, count), generator=generator).tolist()
    flips = (torch.rand(count, generator=generator) < 0.5).tolist()
    known = {index: (tops[place], lefts[place], flips[place]) for place, index in enumerate(order)}
    return order, known.__getitem__


def consume(batches: Iterator[tuple[Tensor, Tensor]]) -> int:
    return sum(len(y) for _, y in batches)


def collect(batches: Iterator[tuple[Tensor, Tensor]]) -> Answer:
    pairs = [(x.numpy().copy(), y.numpy().copy()) for x, y in batches]
    return {
        f"{part}": torch.cat([torch.from_numpy(pair[i]) for pair in pairs]).numpy()
        for i, part in enumerate(("images", "labels"))
    }


def ours(case: Case) -> Work:
    prepare_process()  # as every engine does
    x, y = make_images(case["images"] + 1, case["size"])
    shard = make_shard(x, y, case["images"])
    shard = Shard(shard.x_train, shard.y_train, shard.x_test, shard.y_test, MEAN, STD, "crop+flip", PAD)
    drawing = torch.Generator().manual_seed(0)
    return Work(
        lambda: consume(shard.batches(BATCH, drawing, "keep")),
        lambda: collect(shard.batches(BATCH, torch.Generator().manual_seed(SEED), "keep")),
        case["inner"],
    )


def data_loader(case: Case, workers: int) -> Work:
    x, y = (t[: case["images"]] for t in make_images(case["images"] + 1, case["size"]))
    alive: dict[str, Any] = {"num_workers": workers, "persistent_workers": workers > 0}
    loader = DataLoader(Samples(x, y, at_random), BATCH, shuffle=True, **alive)
    order, draw = as_shard_draws(len(y))
    known = DataLoader(Samples(x, y, draw), BATCH, sampler=order, num_workers=workers)
    return Work(lambda: consume(iter(loader)), lambda: collect(iter(known)), case["inner"])


def no_workers(case: Case) -> Work:
    return data_loader(case, 0)


def two_workers(case: Case) -> Work:
    return data_loader(case, 2)


def cases(args: argparse.Namespace) -> list[Case]:
    return [{"images": 300, "size": 16, "inner": 1} if args.quick else {"images": 5000, "size": 32, "inner": 1}]


def contenders(case: Case) -> list[Contender]:
    return [
        Contender("ours", ours),
        Contender("DataLoader, 0 workers", no_workers),
        Contender("DataLoader, 2 workers", two_workers),
    ]


def images_per_second(case: Case, rows: dict[str, dict[str, Any]]) -> dict[str, float]:
    return {f"images per second, {name}": case["images"] / r["median"] for name, r in rows.items() if "median" in r}


BENCHMARK = Benchmark(
    script=os.path.abspath(__file__),
    claim="one epoch of crop, flip and normalise: resident tensors against a DataLoader",
    baseline="ours",
    cases=cases,
    contenders=contenders,
    tolerance={"images": 1e-5},
    derive=images_per_second,
)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
