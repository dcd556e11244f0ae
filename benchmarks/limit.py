"""Claim: a training step takes little longer than its convolutions and linear layers alone.

    python benchmarks/limit.py [--model NAME,...] [--kind KIND,...] [--width W,...] [--batch B,...] [--size S,...]
                               [--quick] [--repeats N] [--threads N] [--json]

Compared, for the ANN and the SNN (T = 4) of every family:

- the training step, as ``core.training.fit`` runs it: loading and augmenting a batch, forward, cross-entropy, backward,
  SGD with momentum and weight decay;
- its layers alone: forward pass, weight gradient and input gradient (none for the stem) of every convolution and linear
  layer, on random numbers. Each of these passes uses the fastest of four ways for its shapes, found in isolation before
  the timing: channels-last or default layout, with oneDNN or without. Layers of an SNN are dense and have T * B images,
  except the stem, which a static image enters once;
- sgemm: the time that a large matrix product takes for the same number of FLOPs. It is the peak of the machine.

The ratio is the time relative to the layers alone; the time of a step relative to sgemm is derived. An SNN may be
faster than its layers alone, because it processes only spikes.

Equal: nothing is compared, because the contenders compute different things.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from asfedbridge.analysis.operations import macs_of, watch
from asfedbridge.core.client import Client
from asfedbridge.core.task import ClientInfo, Round, Task
from asfedbridge.core.training import Step, fit, supervise
from asfedbridge.engines.process import prepare_process
from asfedbridge.models.layers import TYPES
from asfedbridge.models.registry import MODELS
from asfedbridge.models.zoo import build_backbone, outline_backbone
from federation import make_images, make_shard, make_task
from sidebyside import Benchmark, Case, Contender, Work, main, paired_ratios

T = 4
SECONDS = 0.3  # minimum duration of a repeat
SGEMM = 1536  # rows and columns of the matrices
STEP = Step(lr=1e-4, weight_decay=5e-4)  # a low rate, so that firing rates stay those of the initial weights
Pass = Callable[[], object]


def describe(case: Case) -> tuple[Task, ClientInfo]:
    task = make_task(case["size"], rounds=1, epochs=1, batch_size=case["batch"])
    return task, ClientInfo(0, case["kind"], case["model"], case["width"], T if case["kind"] == "snn" else 1)


def seconds_of(work: Pass) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def enough(step: Pass) -> int:
    """The number of steps that take ``SECONDS``."""
    step()
    return max(1, round(SECONDS / seconds_of(step)))


def training_step(case: Case) -> Work:
    prepare_process()  # as every engine does
    task, info = describe(case)
    backbone = build_backbone(task, info)

    def make_client(steps: int) -> Client:
        x, y = make_images(steps * case["batch"], case["size"])
        return Client(info, task, backbone, make_shard(x, y, len(x)))

    def train(client: Client) -> None:
        fit(client, Round(0, 1), "train", {"backbone": STEP}, lambda x, y: {"ce": loss(client, x, y)}, epochs=1)

    def loss(client: Client, x: Tensor, y: Tensor) -> Tensor:
        return supervise(client, client.backbone(x), y)

    steps = enough(partial(train, make_client(1)))
    return Work(partial(train, make_client(steps)), scale=1 / steps)


class Layer(NamedTuple):
    """A convolution or linear layer, with the shapes of a step."""

    layer: nn.Module
    input: torch.Size
    output: torch.Size
    first: bool  # needs no input gradient
    macs: int

    @property
    def flops(self) -> int:
        return 2 * self.macs * (2 if self.first else 3)


def layers_of(case: Case) -> list[Layer]:
    task, info = describe(case)
    found: list[Layer] = []

    def note(name: str, layer: nn.Module, x: Tensor, out: Tensor) -> None:
        found.append(Layer(layer, x.shape, out.shape, not found, macs_of(layer, out) * len(out)))

    with watch(model := outline_backbone(task, info), TYPES, note):
        model(torch.empty(case["batch"], task.channels, task.image_size, task.image_size, device="meta"))
    return found


def convolution_passes(layer: Layer, layout: torch.memory_format, onednn: bool) -> list[Pass]:
    """Forward, weight gradient and, unless it is the first layer, input gradient."""
    conv = layer.layer
    assert isinstance(conv, nn.Conv2d)
    x, weight, grad = (
        torch.randn(shape).contiguous(memory_format=layout) for shape in (layer.input, conv.weight.shape, layer.output)
    )
    shape = conv.stride, conv.padding, conv.dilation, False, (0, 0), conv.groups
    forward = partial(torch.ops.aten.convolution, x, weight, None, *shape)
    backward = partial(torch.ops.aten.convolution_backward, grad, x, weight, None, *shape)
    passes = [forward, partial(backward, (False, True, False)), partial(backward, (True, False, False))]
    return [partial(_without_onednn, run) if not onednn else run for run in passes[: 2 if layer.first else 3]]


def _without_onednn(run: Pass) -> None:
    with torch.backends.mkldnn.flags(enabled=False):
        run()


def linear_passes(layer: Layer) -> list[Pass]:
    linear = layer.layer
    assert isinstance(linear, nn.Linear)
    x, grad = torch.randn(layer.input), torch.randn(layer.output)
    weight, bias = torch.randn(linear.weight.shape), torch.randn(linear.out_features)
    return [
        lambda: torch.addmm(bias, x, weight.t()),
        lambda: (grad.t() @ x, grad.sum(0)),
        lambda: grad @ weight,
    ]


def fastest(ways: Iterable[Pass]) -> Pass:
    """The implementation with the shortest of three calls after a warm-up; much slower ones are called only once."""
    best, limit = None, float("inf")
    for way in ways:
        if seconds_of(way) > 3 * limit:
            continue
        seconds = min(seconds_of(way) for _ in range(3))
        if seconds < limit:
            best, limit = way, seconds
    assert best is not None
    return best


def fastest_passes(layer: Layer) -> list[Pass]:
    if isinstance(layer.layer, nn.Linear):
        return linear_passes(layer)
    layouts = torch.channels_last, torch.contiguous_format
    ways = [convolution_passes(layer, layout, onednn) for onednn in (True, False) for layout in layouts]
    return [fastest(same) for same in zip(*ways, strict=True)]


def layers_alone(case: Case) -> Work:
    prepare_process()
    forward: list[Pass] = []
    backward: list[Pass] = []
    for layer in layers_of(case):
        first, *rest = fastest_passes(layer)
        forward.append(first)
        backward[:0] = rest[::-1]

    @torch.no_grad()
    def step() -> None:
        for run in (*forward, *backward):
            run()

    return Work(step, inner=enough(step))


def sgemm(case: Case) -> Work:
    a, b, out = (torch.randn(SGEMM, SGEMM) for _ in range(3))
    step = partial(torch.mm, a, b, out=out)
    flops = sum(layer.flops for layer in layers_of(case))
    share = flops / (2 * SGEMM**3)
    return Work(
        step,
        inner=enough(step),
        scale=share,
        facts=lambda: {"GFLOPs": round(flops / 1e9, 3), "GFLOPs per second": round(2e-9 * SGEMM**3 / seconds_of(step))},
    )


def cases(args: argparse.Namespace) -> list[Case]:
    if args.quick:
        return [{"model": "vgg9", "kind": kind, "width": 0.125, "batch": 2, "size": 8} for kind in ("ann", "snn")]
    return [
        {"model": model, "kind": kind, "width": width, "batch": batch, "size": size}
        for model in args.model
        for kind in args.kind
        for width in args.width
        for batch in args.batch
        for size in args.size
    ]


def options(parser: argparse.ArgumentParser) -> None:
    families = sorted(name for name, model in MODELS.items() if model.family)

    def add(
        name: str, what: str, parse: Callable[[str], Any], valid: Callable[[Any], bool], default: list[Any]
    ) -> None:
        def listed(text: str) -> list[Any]:
            values = [parse(word) for word in text.split(",")]
            if bad := [value for value in values if not valid(value)]:
                raise argparse.ArgumentTypeError(f"unknown {name} '{bad[0]}'; expected {what}, separated by commas")
            return values

        parser.add_argument(f"--{name}", type=listed, metavar="X,...", default=default, help=what)

    add("model", f"of {', '.join(families)}", str, families.__contains__, families)
    add("kind", "ann or snn", str, ("ann", "snn").__contains__, ["ann", "snn"])
    add("width", "0.05 to 4", float, lambda w: 0.05 <= w <= 4, [0.125, 0.25, 1.0])
    add("batch", "1 to 1024", int, lambda b: 1 <= b <= 1024, [16, 32, 64])
    add("size", "pixels of an image's side, 4 to 256", int, lambda s: 4 <= s <= 256, [16, 32])


def contenders(case: Case) -> list[Contender]:
    return [
        Contender("layers alone", layers_alone),
        Contender("step", training_step),
        Contender("sgemm", sgemm),
    ]


def against_peak(rows: dict[str, dict[str, Any]]) -> dict[str, float]:
    step, peak = (rows[name].get("seconds", []) for name in ("step", "sgemm"))
    ratios = paired_ratios(step, peak) if step and peak else []
    named: dict[str, Callable[[list[float]], float]] = {"median": statistics.median, "lowest": min, "highest": max}
    return {f"step / sgemm, {name}": summary(ratios) for name, summary in named.items()} if ratios else {}


BENCHMARK = Benchmark(
    script=os.path.abspath(__file__),
    claim="a training step, its convolutions and linear layers alone, and the machine's peak; one thread by default",
    baseline="layers alone",
    cases=cases,
    contenders=contenders,
    options=options,
    threads=1,
    derive=lambda case, rows: against_peak(rows),
)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
