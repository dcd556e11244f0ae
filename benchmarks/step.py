"""Claim: a training step of Spiking ResNet-18 takes less time and memory than with SpikingJelly's own layers.

    python benchmarks/step.py [--quick] [--repeats N] [--threads N] [--json]

Compared: forward, cross-entropy of the mean over time, backward, one SGD step with momentum; batch 64, T = 4, 32x32x3,
10 classes, widths 0.25 and 1.0. Contenders: ours; the same network built from SpikingJelly's layers and neurons as in
its documentation (multi-step mode, the static image repeated T times, `reset_net` after each step); the same in
channels-last layout, also with our setting of malloc; the same in single-step mode; the network without any spiking
library (peers.py) in plain torch, eager and compiled as a whole by torch.compile, and in JAX, jitted. The ANN twin
shows how the time of an SNN step compares with that of T ANN steps.

Equal: all start from the same weights. Logits, loss and every gradient are compared in float64, where rounding does not
make a membrane cross its threshold. The float32 logits are shown too, but there a single flipped spike in the first
layer propagates through the whole network. Single-step mode cannot be equal in training, because BatchNorm then
normalises each time step by its own statistics. Compilation happens in the warm-up and is not timed.

Not compared: data loading, evaluation, mixed precision.
"""

import argparse
import os
import statistics
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asfedbridge.core.task import ClientInfo, Task
from asfedbridge.engines.process import prepare_process
from asfedbridge.models.resnet import STAGES
from asfedbridge.models.zoo import build_backbone
from peers import PlainTorch, jax_work
from sidebyside import Answer, Benchmark, Case, Contender, Work, main, paired_ratios

CLASSES, FEATURES, CHECKED = 10, 256, 4  # the float64 check runs on the first images only
Predict = Callable[[nn.Module, Tensor], Tensor]  # logits, mean over time


def images(case: Case) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(case["batch"], 3, case["size"], case["size"], generator=generator)
    return x, torch.randint(CLASSES, (len(x),), generator=generator)


def backbone(case: Case, kind: str) -> nn.Module:
    task = Task(classes=CLASSES, channels=3, image_size=case["size"], feature_dim=FEATURES)
    T = case["T"] if kind == "snn" else 1
    return build_backbone(task, ClientInfo(0, kind, "resnet18", case["width"], T))  # type: ignore[arg-type]


def work(make: Callable[[], nn.Module], predict: Predict, case: Case, channels_last: bool, check: bool = True) -> Work:
    model = make().train()
    x, y = images(case)
    if channels_last:
        model, x = model.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        F.cross_entropy(predict(model, x), y).backward()
        optimiser.step()

    def answer() -> Answer:
        single = predict(make().train(), x[:CHECKED]).detach()
        exact = make().train().double()
        logits = predict(exact, x[:CHECKED].double())
        loss = F.cross_entropy(logits, y[:CHECKED])
        loss.backward()
        return {
            "logits": logits.detach().numpy(),
            "loss": loss.detach().numpy(),
            "gradient": flatten(p.grad for _, p in sorted(exact.named_parameters())).numpy(),
            "float32 logits": single.numpy(),
        }

    return Work(step, answer if check else None, case["inner"])


def flatten(tensors: Iterable[Tensor | None]) -> Tensor:
    return torch.cat([t.contiguous().view(-1) for t in tensors if t is not None])


def ours(case: Case) -> Work:
    prepare_process()  # as every engine does
    return work(lambda: backbone(case, "snn"), lambda net, x: net(x).logits, case, channels_last=True)


def ann(case: Case) -> Work:
    prepare_process()
    return work(lambda: backbone(case, "ann"), lambda net, x: net(x).logits, case, channels_last=True, check=False)


def peer_network(case: Case, step_mode: str, sliced: bool) -> nn.Module:
    """Our Spiking ResNet-18 built from SpikingJelly's layers, with our tensor names and initial weights.

    ``sliced``: subsample pixels before a 1x1 convolution instead of using a stride, as ours does, because oneDNN's
    strided one writes out of bounds in channels-last layout (uxlfoundation/oneDNN#6035).
    """
    from spikingjelly.activation_based import functional, layer, neuron, surrogate

    def lif() -> nn.Module:
        triangle = surrogate.PiecewiseQuadratic(alpha=1.0)
        made: nn.Module = neuron.LIFNode(tau=2.0, decay_input=False, detach_reset=False, surrogate_function=triangle)
        return made

    def conv(inputs: int, outputs: int, stride: int = 1) -> nn.Module:
        made: nn.Module = layer.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        return made

    class Shortcut(nn.Sequential):
        def __init__(self, inputs: int, outputs: int, stride: int) -> None:
            super().__init__()
            self.skip = stride if sliced else 1
            if inputs != outputs or stride != 1:
                self.append(layer.Conv2d(inputs, outputs, 1, 1 if sliced else stride, bias=False))
                self.append(layer.BatchNorm2d(outputs))

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = super().forward(x[..., :: self.skip, :: self.skip] if self.skip > 1 else x)
            return out

    class Block(nn.Module):
        def __init__(self, inputs: int, outputs: int, stride: int) -> None:
            super().__init__()
            self.conv1, self.norm1, self.act1 = conv(inputs, outputs, stride), layer.BatchNorm2d(outputs), lif()
            self.conv2, self.norm2, self.act2 = conv(outputs, outputs), layer.BatchNorm2d(outputs), lif()
            self.shortcut = Shortcut(inputs, outputs, stride)

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.act1(self.norm1(self.conv1(x)))
            out: Tensor = self.act2(self.norm2(self.conv2(hidden)) + self.shortcut(x))
            return out

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            sizes = [max(1, round(stage * case["width"])) for stage in STAGES]
            self.stem, self.norm, self.act = conv(3, sizes[0]), layer.BatchNorm2d(sizes[0]), lif()
            self.stages = nn.ModuleList(
                nn.Sequential(Block(inputs, outputs, 1 if number == 0 else 2), Block(outputs, outputs, 1))
                for number, (inputs, outputs) in enumerate(zip([sizes[0], *sizes], sizes, strict=False))
            )
            self.pool, self.flat = layer.AdaptiveAvgPool2d((1, 1)), layer.Flatten()
            self.projector, self.feature = layer.Linear(sizes[-1], FEATURES), lif()
            self.classifier = layer.Linear(FEATURES, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            x = self.act(self.norm(self.stem(x)))
            for stage in self.stages:
                x = stage(x)
            logits: Tensor = self.classifier(self.feature(self.projector(self.flat(self.pool(x)))))
            return logits

    network = Network()
    functional.set_step_mode(network, step_mode)
    network.load_state_dict(backbone(case, "snn").state_dict())
    return network


def peer(case: Case, step_mode: str, channels_last: bool) -> Work:
    from spikingjelly.activation_based import functional

    def at_once(network: nn.Module, x: Tensor) -> Tensor:
        repeated = x.unsqueeze(0).repeat(case["T"], 1, 1, 1, 1)
        if channels_last:  # repeat() does not keep the layout
            repeated = repeated.flatten(0, 1).contiguous(memory_format=torch.channels_last).unflatten(0, (-1, len(x)))
        logits: Tensor = network(repeated).mean(0)
        return logits

    def step_by_step(network: nn.Module, x: Tensor) -> Tensor:
        logits: Tensor = sum(network(x) for _ in range(case["T"])) / case["T"]
        return logits

    def predict(network: nn.Module, x: Tensor) -> Tensor:
        functional.reset_net(network)
        return (at_once if step_mode == "m" else step_by_step)(network, x)

    return work(lambda: peer_network(case, step_mode, sliced=channels_last), predict, case, channels_last)


def multi_step(case: Case) -> Work:
    return peer(case, "m", channels_last=False)


def multi_step_channels_last(case: Case) -> Work:
    return peer(case, "m", channels_last=True)


def multi_step_channels_last_prepared(case: Case) -> Work:
    prepare_process()
    return peer(case, "m", channels_last=True)


def single_step(case: Case) -> Work:
    return peer(case, "s", channels_last=False)


def plain(case: Case, compiled: bool = False) -> Work:
    def predict(network: nn.Module, x: Tensor) -> Tensor:
        logits: Tensor = (compile_once(network) if compiled else network)(x)
        return logits

    made: dict[int, Any] = {}

    def compile_once(network: nn.Module) -> Any:
        return made.setdefault(id(network), torch.compile(network, dynamic=False))

    return work(lambda: PlainTorch(backbone(case, "snn"), case["T"]), predict, case, channels_last=True)


def plain_compiled(case: Case) -> Work:
    return plain(case, compiled=True)


def in_jax(case: Case) -> Work:
    return jax_work(case, backbone(case, "snn").state_dict(), *images(case), CHECKED)


def cases(args: argparse.Namespace) -> list[Case]:
    if args.quick:
        return [{"width": 0.125, "batch": 4, "T": 2, "size": 8, "inner": 1}]
    return [{"width": width, "batch": 64, "T": 4, "size": 32, "inner": 2 if width < 1 else 1} for width in (0.25, 1.0)]


def contenders(case: Case) -> list[Contender]:
    jelly = ["spikingjelly"]
    compiling = "compiles for minutes; not with --quick" if case.get("quick") else ""
    apart = "BatchNorm sees one time step at a time"
    return [
        Contender("ours", ours),
        Contender("SpikingJelly, multi-step", multi_step, needs=jelly),
        Contender("SpikingJelly, multi-step, channels-last", multi_step_channels_last, needs=jelly),
        Contender("the same, freed memory kept", multi_step_channels_last_prepared, needs=jelly),
        Contender("SpikingJelly, single-step", single_step, needs=jelly, differs=apart),
        Contender("plain torch", plain),
        Contender("plain torch, compiled", plain_compiled, skip=compiling),
        Contender("JAX, jitted", in_jax, needs=["jax", "optax"]),
        Contender("ANN twin", ann),
    ]


def against_twin(rows: dict[str, dict[str, Any]], T: int) -> dict[str, float]:
    own, twin = (rows[name].get("seconds", []) for name in ("ours", "ANN twin"))
    return {f"ours / ({T} x ANN twin)": statistics.median(paired_ratios(own, twin)) / T} if own and twin else {}


BENCHMARK = Benchmark(
    script=os.path.abspath(__file__),
    claim="Spiking ResNet-18, one training step: ours against SpikingJelly's layers",
    baseline="ours",
    cases=cases,
    contenders=contenders,
    tolerance={"logits": 1e-9, "loss": 1e-9, "gradient": 1e-9, "float32 logits": float("inf")},
    memory=True,
    derive=lambda case, rows: against_twin(rows, case["T"]),
)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
