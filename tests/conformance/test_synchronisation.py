"""What a method does in a training step never has the host wait for the device.

Counted on the CPU, where nothing waits: operations that read a value (``item``, a condition, ``cpu``, ``numpy``), and
those whose result has a size that depends on values (a boolean index). The training loop's own reading of the losses is
left out: it waits for a device once per epoch (core/training.py).
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from asfedbridge.core.method import METHODS
from asfedbridge.core.task import Round
from asfedbridge.data import loader
from asfedbridge.engines.local import LocalEngine
from asfedbridge.engines.loop import play_round
from asfedbridge.runs.recipes import smoke
from asfedbridge.runs.setting import Setting

aten = torch.ops.aten
READS = {aten._local_scalar_dense.default, aten.nonzero.default, aten.masked_select.default, aten.equal.default}
INDEXES = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default}
LOOP = "core/training.py"


def place() -> str | None:
    """The line of the package that asks; None outside of training steps, and in the loop itself."""
    frame: Any = sys._getframe(1)
    found: list[str] = []
    while frame:
        name = Path(frame.f_code.co_filename).as_posix()
        if "/asfedbridge/" in name:
            found.append(f"{name.rpartition('/asfedbridge/')[2]}:{frame.f_lineno} {frame.f_code.co_name}")
        frame = frame.f_back
    steps = [i for i, line in enumerate(found) if line.startswith(LOOP) and line.endswith(" fit")]
    return found[0] if steps and not found[0].startswith(LOOP) else None


class Waits(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.steps = 0

    def note(self, what: str) -> None:
        if where := place():
            self.found.add(f"{what} in {where}")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in READS or (func in INDEXES and any(t is not None and t.dtype == torch.bool for t in args[1])):
            self.note(str(func))
        self.steps += func is aten.cross_entropy_loss.default or func is aten._log_softmax.default
        return func(*args, **(kwargs or {}))


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Waits:
    found = Waits()

    def watched(name: str) -> Callable[..., Any]:
        original = getattr(Tensor, name)

        def ask(self: Tensor, *args: Any, **options: Any) -> Any:
            found.note(name)
            return original(self, *args, **options)

        return ask

    for name in ("cpu", "numpy", "tolist"):
        monkeypatch.setattr(Tensor, name, watched(name))
    monkeypatch.setattr(loader, "installed", lambda _: False)  # augmentation as on a device
    return found


def play(setting: Setting, method: Any, waits: Waits) -> None:
    """Two rounds in bf16, which takes the path of other devices: tensor operations only."""
    task = replace(setting.task, precision="bf16")
    engine = LocalEngine(method, task, setting.clients, setting.shards)
    state = method.server_init(task, setting.clients)
    with waits:
        for index in range(2):
            state, _, _ = play_round(method, task, engine, state, Round(index, 2), setting.clients)
    assert waits.steps


@pytest.mark.parametrize("name", sorted(METHODS))
def test_no_step_waits_for_the_device(setting: Setting, waits: Waits, name: str) -> None:
    play(setting, smoke(name).method, waits)
    assert waits.found == set()


def test_a_step_that_waits_is_found(setting: Setting, waits: Waits, monkeypatch: pytest.MonkeyPatch) -> None:
    from asfedbridge.methods import as_fedbridge

    def distillation(student: Tensor, *_: Any) -> Tensor:
        return student[student > 0].mean() * float(student.detach().mean()) * student.detach().float().numpy().mean()

    monkeypatch.setattr(as_fedbridge.losses, "distillation", distillation)
    play(setting, smoke("as-fedbridge").method, waits)
    assert len(waits.found) >= 3
