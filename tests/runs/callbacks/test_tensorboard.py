"""TensorBoard: means, every client's numbers and the specification, rewritten when a run is resumed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from asfedbridge.core.task import ClientInfo, Round, Task
from asfedbridge.runs.callback import Run
from asfedbridge.runs.callbacks import TensorBoard
from asfedbridge.runs.callbacks.scalars import MAX_CLIENTS, flat_spec
from asfedbridge.runs.records import RoundRecord, parse_record
from asfedbridge.runs.setting import Setting

Make = Callable[..., Any]


def entry(index: int, client: int, **numbers: float) -> RoundRecord:
    about = {"round": index, "client": client, "kind": ("ann", "snn")[client % 2], "width": 0.5, "model": "m"}
    return parse_record(about | numbers)


def begin(make_spec: Make, out: Path, clients: int = 2, next_round: int = 0) -> Run:
    infos = [ClientInfo(i, "ann", "resnet18") for i in range(clients)]
    return Run(make_spec(), Setting(Task(10, 1, 8), infos, [], "", "", None), out, next_round)  # type: ignore[arg-type]


def read(out: Path) -> EventAccumulator:
    found = EventAccumulator(str(out / "tensorboard"))
    found.Reload()
    return found


def test_means_and_clients(make_spec: Make, out: Path) -> None:
    run, board = begin(make_spec, out), TensorBoard()
    board.on_run_begin(run)
    for index in range(2):  # the second one is the closing visit
        board.on_round_end(run, Round(index, 1), [entry(index, 0, loss=1.0 + index), entry(index, 1, loss=4.0)])
    found = read(out)
    assert set(found.Tags()["scalars"]) == {"loss/ann", "loss/snn", "loss/all", "client/0/loss", "client/1/loss"}
    assert [(e.step, e.value) for e in found.Scalars("loss/all")] == [(0, 2.5), (1, 3.0)]
    assert [(e.step, e.value) for e in found.Scalars("client/0/loss")] == [(0, 1.0), (1, 2.0)]
    assert len(found.PluginTagToContent("hparams")) == 2


def test_a_resumed_run_has_every_round_once(make_spec: Make, out: Path) -> None:
    run, board = begin(make_spec, out), TensorBoard()
    board.on_run_begin(run)
    for index in range(3):
        board.on_round_end(run, Round(index, 3), [entry(index, 0, loss=5.0)])
    again, board = begin(make_spec, out, next_round=1), TensorBoard()
    again.records = [entry(0, 0, loss=5.0)]
    board.on_run_begin(again)
    board.on_round_end(again, Round(1, 3), [entry(1, 0, loss=77.0)])
    assert [(e.step, e.value) for e in read(out).Scalars("loss/all")] == [(0, 5.0), (1, 77.0)]


@pytest.mark.parametrize("clients", [MAX_CLIENTS, MAX_CLIENTS + 1])
def test_large_fleets_have_only_means(make_spec: Make, out: Path, clients: int) -> None:
    run, board = begin(make_spec, out, clients), TensorBoard()
    board.on_run_begin(run)
    board.on_round_end(run, Round(0, 1), [entry(0, i, loss=1.0) for i in range(clients)])  # type: ignore[misc]
    own = [tag for tag in read(out).Tags()["scalars"] if tag.startswith("client/")]
    assert len(own) == (clients if clients <= MAX_CLIENTS else 0)


def test_hyper_parameters_have_the_names_of_the_command_line(make_spec: Make) -> None:
    found = flat_spec(make_spec("as-fedbridge", **{"method.bridge_lr": 0.25}))
    assert (found["method.name"], found["method.bridge_lr"], found["rounds"]) == ("as-fedbridge", 0.25, 4)
    assert all(isinstance(value, str | int | float) for value in found.values())
