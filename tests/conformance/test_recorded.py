"""Short runs of every method give the bits that were recorded before the packages were reorganised.

Bits depend on the processor and on torch. On the recorded pair they are compared exactly; elsewhere the norm of all
trained tensors is compared. ``python -m tests.conformance.test_recorded`` records them again, which is right only
after a deliberate change of behaviour.
"""

import hashlib
import json
import platform
import tempfile
from pathlib import Path

import pytest
import safetensors.torch
import torch

from asfedbridge.cli import main

RECORDED = Path(__file__).with_name("recorded.json")
SMALL = [
    "fleet=resnet18@0.0625:ann,2*vgg9@0.0625:snn,resnet18@0.0625:snn",
    "train_per_class=6",
    "test_per_class=4",
    "partition=iid",
    "T=2",
    "rounds=2",
    "seed=3",
]
ALIKE = ["fleet=2*resnet18@0.0625:ann,2*resnet18@0.0625:snn"]  # for methods that exchange whole backbones
RUNS: dict[str, list[str]] = {
    "as-fedbridge": [],
    "as-fedbridge:ann-to-snn": ["method.direction=ann-to-snn"],
    "as-fedbridge:shared-head": ["method.personal_head=false"],
    "as-fedbridge:gate-twin-fused": ["method.gate=right", "method.fused_holdout=0.2", "twin_rounds=1"],
    "as-fedbridge:int8": ["compress=int8"],
    "centralized": [],
    "standalone": [],
    "standalone:dirichlet": ["partition=dirichlet", "alpha=0.5"],
    "fedavg": ALIKE,
    "fedavg:averaged-bn": [*ALIKE, "method.bn_buffers=averaged"],
    "fedavg:median": [*ALIKE, "method.aggregation=median"],
    "fedprox": ALIKE,
    "isolated-fedavg": ALIKE,
    "isolated-fedprox": ALIKE,
    "fedproto": [],
    "fedtgp": [],
    "fml": [],
    "mh-pflid": [],
    "fedfree": ["method.mismatch=prefix"],
    "sfedhifi": ALIKE,
}


def processor() -> str:
    """What the bits depend on beside the code."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{model or platform.processor()}, {capability}, torch {torch.__version__}"


def play(name: str, out: Path) -> dict[str, object]:
    method = name.partition(":")[0]
    words = [f"method={method}", "keep_checkpoints=1", *SMALL, *RUNS[name]]
    assert main(["run", "smoke", *words, "--out", str(out)]) == 0
    lines, squares = [], 0.0
    for file in (out / "checkpoint").rglob("*.safetensors"):
        for key, tensor in safetensors.torch.load_file(file).items():
            content = tensor.contiguous().numpy().tobytes()
            lines.append(f"{key} {tuple(tensor.shape)} {hashlib.sha256(content).hexdigest()}")
            squares += tensor.double().square().sum().item()
    assert lines
    return {"sha256": hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest(), "norm": squares**0.5}


def test_every_method_is_recorded() -> None:
    from asfedbridge.core.method import METHODS

    builtin = {name for name, cls in METHODS.items() if cls.__module__.startswith("asfedbridge.methods.")}
    assert builtin == {name.partition(":")[0] for name in RUNS}
    assert set(json.loads(RECORDED.read_text())["runs"]) == set(RUNS)


@pytest.mark.parametrize("name", RUNS)
def test_same_bits_as_recorded(name: str, tmp_path: Path) -> None:
    recorded = json.loads(RECORDED.read_text())
    now, then = play(name, tmp_path / "run"), recorded["runs"][name]
    if processor() == recorded["processor"]:
        assert now == then
    else:
        assert now["norm"] == pytest.approx(then["norm"], rel=0.02)


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        runs = {name: play(name, Path(folder) / name) for name in RUNS}
    RECORDED.write_text(json.dumps({"processor": processor(), "runs": runs}, indent=1) + "\n")
