"""A really trained run of seconds, whose clients are used: all kinds, several families."""

from pathlib import Path
from typing import Any

from asfedbridge.runs.recipes import quickstart
from asfedbridge.runs.run import execute
from asfedbridge.runs.spec import Spec, apply_overrides

FLEET = "mobilenet@0.125:ann,vgg9@0.0625:snn,resnet18@0.0625:qnn:b=4,resnet18@0.0625:bnn"
SMALL = {
    "fleet": FLEET,
    "T": 2,
    "rounds": 2,
    "feature_dim": 16,
    "train_per_class": 12,
    "test_per_class": 6,
    "partition": "iid",
    "threads": 1,
}


def make_spec(method: str = "as-fedbridge", **changes: Any) -> Spec:
    return apply_overrides(quickstart(method), SMALL | changes)


def play(out: Path, method: str = "as-fedbridge", engine: str = "local", **changes: Any) -> Spec:
    spec = make_spec(method, **changes)
    execute(spec, out, out.parent, engine=engine, workers=2 if engine == "pool" else 0)
    return spec
