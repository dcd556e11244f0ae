"""Progress: one line per round and, on a terminal, a status line for every epoch."""

import io
from pathlib import Path
from typing import Any

import pytest

from asfedbridge.core.task import ClientInfo, Round, Task
from asfedbridge.report.listings import download_bar, list_topic
from asfedbridge.report.progress import Progress
from asfedbridge.runs.callback import Run
from asfedbridge.runs.recipes import quickstart
from asfedbridge.runs.setting import Setting
from asfedbridge.runs.spec import apply_overrides


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


SPEC = apply_overrides(quickstart(), {"rounds": 2, "fleet": "resnet18:ann,resnet18:snn"})
CLIENTS = [ClientInfo(0, "ann", "resnet18", train_size=30), ClientInfo(1, "snn", "resnet18", train_size=12)]
SETTING = Setting(Task(10, 1, 8), CLIENTS, [], "", "", None)


def records(index: int, point: str, *accuracies: float) -> list[dict[str, Any]]:
    return [
        {"round": index, "client": c.id, "kind": c.kind, f"{point}.accuracy": a, "received.bridge_accuracy": 5.0}
        for c, a in zip(CLIENTS, accuracies, strict=True)
    ]


def play(stream: io.StringIO, start: int = 0) -> str:
    progress = Progress(stream)
    run = Run(SPEC, SETTING, Path("run"), start)
    progress.on_run_begin(run)
    for index in range(start, 2):
        progress.on_epoch_end(run, CLIENTS[0], "extract", 0, 1, {"ce": 2.25})
        progress.on_round_end(run, Round(index, 2), records(index, "trained", 10.0, 30.0))
        run.played = index + 1
    progress.on_round_end(run, Round(2, 2), records(2, "received", 20.0, 50.0))
    return stream.getvalue()


def test_a_log_has_one_plain_line_per_round() -> None:
    text = play(io.StringIO())
    lines = text.splitlines()
    assert len(lines) == 4
    assert "\x1b" not in text
    assert "\r" not in text
    assert "42 training images, 8x8, Dirichlet(0.5), 2 clients" in lines[0]
    assert lines[1].startswith("round 1/2  accuracy ann  10.00  snn  30.00  all  20.00  Bridge   5.00")
    assert lines[2].startswith("round 2/2")
    assert lines[3].startswith("closing visit  accuracy ann  20.00  snn  50.00  all  35.00")


def test_a_resumed_run_says_so() -> None:
    lines = play(io.StringIO(), start=1).splitlines()
    assert "resumed after round 1" in lines[1]
    assert lines[2].startswith("round 2/2")


def test_a_log_leaves_out_rounds_that_follow_at_once() -> None:
    stream = io.StringIO()
    progress, total = Progress(stream), 50
    run = Run(apply_overrides(SPEC, {"rounds": total}), SETTING, Path("run"), 0)
    progress.on_run_begin(run)
    for index in range(total):
        progress.on_round_end(run, Round(index, total), records(index, "trained", 10.0, 30.0))
        if index == 20:
            progress.printed -= 60  # as if a minute had passed
    shown = [line.split("/")[0] for line in stream.getvalue().splitlines()[1:]]
    assert shown == ["round  1", "round 22", "round 50"]


def test_a_terminal_has_a_status_line_for_every_epoch() -> None:
    text = play(Terminal())
    assert "round 1/2 [..........] 0 %  0/2 clients, now 0 ann extract 1/1  ce 2.250" in text
    assert "round 2/2 [##########] 100 %" in text  # as many epochs as in the round before
    assert text.count("\n") == 4


def test_a_terminal_shows_every_client_at_work() -> None:
    """With worker processes, turns of clients overlap."""
    stream = Terminal()
    progress, run = Progress(stream), Run(SPEC, SETTING, Path("run"), 0)
    progress.on_run_begin(run)

    def status() -> str:
        return stream.getvalue().rpartition("\r\x1b[2K")[2]

    progress.on_turn_begin(run, CLIENTS[0])
    progress.on_turn_begin(run, CLIENTS[1])
    progress.on_epoch_end(run, CLIENTS[1], "extract", 0, 2, {"ce": 2.25})
    assert status() == "round 1/2 [..........] 0 %  0/2 clients, now 0 ann, 1 snn extract 1/2"
    progress.on_turn_end(run, CLIENTS[0])
    assert status() == "round 1/2 [##........] 25 %  1/2 clients, now 1 snn extract 1/2"
    progress.on_turn_end(run, CLIENTS[1])
    progress.on_round_end(run, Round(0, 2), records(0, "trained", 10.0, 30.0))
    run.stop("enough")
    progress.on_turn_begin(run, CLIENTS[0])
    assert status().startswith("closing visit")
    assert status().endswith("0/2 clients, now 0 ann")


def test_turns_write_nothing_to_a_log() -> None:
    stream = io.StringIO()
    progress, run = Progress(stream), Run(SPEC, SETTING, Path("run"), 0)
    progress.on_turn_begin(run, CLIENTS[0])
    progress.on_turn_end(run, CLIENTS[0])
    assert stream.getvalue() == ""


@pytest.mark.parametrize("topic", ["methods", "models", "data", "recipes"])
def test_every_topic_lists_something(topic: str, tmp_path: Path) -> None:
    text = list_topic(topic, str(tmp_path))
    expected = {"methods": "as-fedbridge", "models": "resnet18", "data": "digits", "recipes": "quickstart"}[topic]
    assert any(line.startswith(expected) for line in text.splitlines())


def test_methods_are_listed_with_their_fields() -> None:
    text = list_topic("methods")
    assert "mu=0.01" in text
    assert "alpha_teach=0.16,0.05" in text
    assert "no hyper-parameters" in text


def test_a_download_is_one_line_in_a_log_and_a_bar_on_a_terminal() -> None:
    log, terminal = io.StringIO(), Terminal()
    for stream in (log, terminal):
        show = download_bar(stream)
        for done in (0, 2**19, 2**20):
            show("a.tar.gz", done, 2**20)
        show("b", 5, None)
    assert log.getvalue() == "a.tar.gz\nb\n"
    assert terminal.getvalue().count("\n") == 1
    assert "1.0 MB of 1.0 MB" in terminal.getvalue()
