"""What the README promises, taken from its text."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import torch

from asfedbridge import cli
from asfedbridge.core.method import METHODS
from asfedbridge.core.task import ClientInfo, Round, Upload
from asfedbridge.methods.fedavg import FedAvg

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_the_lines_of_python_run(tmp_path: Path) -> None:
    (source,) = (block for block in BLOCKS if "afb.run(" in block)
    assert len(source.strip().splitlines()) <= 10
    (tmp_path / "lines.py").write_text(source)
    done = subprocess.run([sys.executable, "lines.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("runs/*/summary.json"))) == 1
    assert "closing visit" in done.stderr
    assert "9 snn" in done.stdout
    assert "Result(as-fedbridge" in done.stdout


def test_the_method_in_one_file_works() -> None:
    (source,) = (block for block in BLOCKS if "register_method" in block)
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
