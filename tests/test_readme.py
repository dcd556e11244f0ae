"""The README is short, and its Python and that of the page on methods do what the text says."""

import re
import subprocess
import sys
from pathlib import Path

import torch

from asfedbridge.core.method import METHODS
from asfedbridge.core.task import ClientInfo, Round, Upload
from asfedbridge.methods.fedavg import FedAvg

ROOT = Path(__file__).parents[1]


def python_of(page: str) -> str:
    """The only block of Python in a page."""
    (source,) = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    return str(source)


def test_it_fits_on_two_screens() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 80


def test_the_lines_of_python_run(tmp_path: Path) -> None:
    source = python_of("README.md")
    assert len(source.strip().splitlines()) <= 10
    (tmp_path / "lines.py").write_text(source)
    done = subprocess.run([sys.executable, "lines.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("runs/*/summary.json"))) == 1
    assert "closing visit" in done.stderr
    assert "9 snn" in done.stdout
    assert "Result(as-fedbridge" in done.stdout


def test_the_method_in_one_file_works() -> None:
    source = python_of("docs/how-to/own-method.md")
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
