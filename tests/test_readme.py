"""What the README promises, taken from its text."""

import re
import shlex
from pathlib import Path

import torch

from asfedbridge import cli
from asfedbridge.core.protocol import METHODS, ClientInfo, Round, Upload
from asfedbridge.methods.fedavg import FedAvg

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_the_method_in_one_file_works() -> None:
    (source,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    namespace: dict[str, object] = {"__name__": "half"}
    try:
        exec(source, namespace)
        half = METHODS["half"](step=0.25)  # type: ignore[call-arg]
    finally:
        METHODS.pop("half", None)
    clients = [ClientInfo(0, "ann", "resnet18", train_size=1), ClientInfo(1, "snn", "resnet18", train_size=3)]
    ups = {0: Upload({"w": torch.tensor([0.0])}), 1: Upload({"w": torch.tensor([4.0])})}
    state = {"all/w": torch.tensor([1.0])}
    assert FedAvg().server_round(state, clients, ups, Round(0, 1))["all/w"].item() == 3.0
    assert half.server_round(state, clients, ups, Round(0, 1))["all/w"].item() == 1.5


def test_every_command_line_is_one_that_parses() -> None:
    lines = [line.partition("#")[0].strip() for line in README.splitlines() if line.startswith("asfedbridge ")]
    assert len(lines) >= 9
    for line in lines:
        words = shlex.split(line.partition(">")[0])[1:]
        args = cli.build_parser().parse_args(words)
        if args.command in ("run", "show") and not any(w.endswith(".toml") for w in words):
            cli.resolve(args.what)


def test_every_method_is_in_the_table() -> None:
    assert not [name for name in METHODS if f"`{name}`" not in README]
