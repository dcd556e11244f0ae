"""Claim: every model trains on its fast path: depthwise convolutions in channels-last, spiking layers in fused kernels.

    python benchmarks/models.py [--model NAME] [--quick] [--repeats N] [--threads N] [--json]

Compared, for every registered model at width 0.25: a training step (forward, cross-entropy of the mean over time,
backward, SGD with momentum; batch 64, T = 4, 32x32x3, 10 classes) of the SNN; the same on the plain torch path
(ASFEDBRIDGE_NEURON=torch); the ANN twin in channels-last, as engines run it, and in the default layout. The ratio of an
SNN step to T steps of its twin is derived.

Equal: all start from the same weights. The mean logit of each class over the first batch is compared between the paths
of the SNN and between the layouts of the ANN, with a tolerance: in float32, rounding may flip the spike of a membrane
near its threshold. tests/models/test_zoo.py tests that the paths agree.

Not compared: data loading, evaluation.
"""

import argparse
import copy
import os
import statistics
import sys
from typing import Any

import torch
import torch.nn.functional as F

from asfedbridge.core.task import ClientInfo, Task
from asfedbridge.engines.process import prepare_process
from asfedbridge.kernels.dispatch import VARIABLE
from asfedbridge.models.registry import MODELS
from asfedbridge.models.zoo import build_backbone
from sidebyside import Answer, Benchmark, Case, Contender, Work, main, paired_ratios

CLASSES = 10


def work(case: Case, kind: str, layout: torch.memory_format) -> Work:
    prepare_process()  # as every engine does
    size = case["size"]
    task = Task(classes=CLASSES, channels=3, image_size=size)
    info = ClientInfo(0, kind, case["model"], case["width"], case["T"] if kind == "snn" else 1)  # type: ignore[arg-type]
    model = build_backbone(task, info).train().to(memory_format=layout)  # type: ignore[call-overload]
    before = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(case["batch"], 3, size, size, generator=generator).contiguous(memory_format=layout)
    y = torch.randint(CLASSES, (len(x),), generator=generator)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        F.cross_entropy(model(x).logits, y).backward()
        optimiser.step()

    def answer() -> Answer:
        with torch.no_grad():
            return {"mean logit": before(x).logits.mean(0).numpy()}

    return Work(step, answer, case["inner"])


def snn(case: Case) -> Work:
    return work(case, "snn", torch.channels_last)


def ann(case: Case) -> Work:
    return work(case, "ann", torch.channels_last)


def ann_default_layout(case: Case) -> Work:
    return work(case, "ann", torch.contiguous_format)


def cases(args: argparse.Namespace) -> list[Case]:
    names = [args.model] if args.model else ["mobilenet"] if args.quick else sorted(MODELS)
    if args.quick:
        return [{"model": name, "width": 0.125, "batch": 4, "T": 2, "size": 8, "inner": 1} for name in names]
    return [{"model": name, "width": 0.25, "batch": 64, "T": 4, "size": 32, "inner": 1} for name in names]


def contenders(case: Case) -> list[Contender]:
    channels_last = "ANN, channels-last"
    return [
        Contender("SNN", snn),
        Contender("SNN, torch path", snn, env={VARIABLE: "torch"}),
        Contender(channels_last, ann, differs="no spikes"),
        Contender("ANN, default layout", ann_default_layout, like=channels_last),
    ]


def against_twin(rows: dict[str, dict[str, Any]], T: int) -> dict[str, float]:
    own, twin, plain = (rows[n].get("seconds", []) for n in ("SNN", "ANN, channels-last", "ANN, default layout"))
    found = {f"SNN / ({T} x ANN)": (own, twin, T), "ANN, default layout / channels-last": (plain, twin, 1)}
    return {name: statistics.median(paired_ratios(a, b)) / k for name, (a, b, k) in found.items() if a and b}


BENCHMARK = Benchmark(
    script=os.path.abspath(__file__),
    claim="every model, one training step: fused path, torch path, and layouts of the ANN twin",
    baseline="SNN",
    cases=cases,
    contenders=contenders,
    tolerance={"mean logit": 0.05},
    options=lambda parser: parser.add_argument("--model", choices=sorted(MODELS), help="one model (default: all)"),
    derive=lambda case, rows: against_twin(rows, case["T"]),
)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
