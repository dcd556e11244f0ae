"""Callbacks observe a run and can stop it; their failures do not harm it."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from asfedbridge import cli
from asfedbridge.core.errors import BadInput, CallbackFailed
from asfedbridge.core.task import ClientInfo, Round
from asfedbridge.engines import checkpoint
from asfedbridge.runs.analyze import analyse
from asfedbridge.runs.callback import CALLBACKS, Callback, Run, make_callback, register_callback
from asfedbridge.runs.callbacks import EarlyStopping
from asfedbridge.runs.folder import read_summary
from asfedbridge.runs.record_files import read_rounds
from asfedbridge.runs.records import Record
from asfedbridge.runs.run import execute

Make = Callable[..., Any]


class Diary(Callback):
    """Records every call, and the files on disk at that moment."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def on_run_begin(self, run: Run) -> None:
        self.calls.append(("begin", run.next_round, len(run.records)))

    def on_epoch_end(
        self, run: Run, client: ClientInfo, stage: str, epoch: int, epochs: int, losses: Mapping[str, float]
    ) -> None:
        self.calls.append(("epoch", client.id))

    def on_round_end(self, run: Run, rnd: Round, records: Sequence[Record]) -> None:
        assert read_rounds(run.path) == run.records
        assert list(records) == run.records[-len(records) :]
        assert sorted(run.uploads) == [c.id for c in run.participants]
        self.calls.append(("round", rnd.index, rnd.closing, run.played, newest(run.path)))

    def on_run_end(self, run: Run, summary: Mapping[str, Any]) -> None:
        assert read_summary(run.path) == summary
        self.calls.append("end")

    def on_failure(self, run: Run, error: BaseException) -> None:
        self.calls.append(type(error).__name__)


class Fails(Callback):
    """Raises in one of its methods; in ``on_round_end``, after the round of this index."""

    def __init__(self, method: str, index: int = 0) -> None:
        def fail(run: Run, *args: Any) -> None:
            if method != "on_round_end" or args[0].index == index:
                raise ZeroDivisionError("my own\nmistake")

        setattr(self, method, fail)


class Stops(Callback):
    def __init__(self, index: int) -> None:
        self.index = index

    def on_round_end(self, run: Run, rnd: Round, records: Sequence[Record]) -> None:
        if rnd.index == self.index:
            run.stop("enough")
            run.stop("a second reason")


def newest(out: Path) -> int:
    """The next round of the last checkpoint."""
    folders = checkpoint.list_folders(out / "checkpoint")
    return int(folders[-1].name.removeprefix("round-")) if folders else 0


def states(out: Path) -> dict[str, str]:
    """Checksums of all tensors in the run folder."""
    files = sorted((out / "checkpoint").rglob("*.safetensors"))
    return {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


def untimed(out: Path) -> list[Record]:
    return [{k: v for k, v in r.items() if k != "seconds"} for r in read_rounds(out)]


def test_the_calls_of_a_run(make_spec: Make, out: Path) -> None:
    diary = Diary()
    execute(make_spec(rounds=2, checkpoint_every=2), out, out, [diary])
    epochs = [("epoch", 0), ("epoch", 1)]
    first, second, closing = ("round", 0, False, 1, 0), ("round", 1, False, 2, 2), ("round", 2, True, 2, 2)
    assert diary.calls == [("begin", 0, 0), *epochs, first, *epochs, second, closing, "end"]


@pytest.mark.parametrize("engine", ["local", "pool"])
def test_every_epoch_is_within_its_clients_turn(make_spec: Make, out: Path, engine: str) -> None:
    class Turns(Callback):
        def __init__(self) -> None:
            self.calls: dict[int, list[str]] = {0: [], 1: []}
            self.at_work: set[int] = set()

        def on_turn_begin(self, run: Run, client: ClientInfo) -> None:
            self.calls[client.id].append("begin")
            self.at_work.add(client.id)
            assert len(self.at_work) == 1  # there is one worker

        def on_epoch_end(self, run: Run, client: ClientInfo, *epoch: Any) -> None:
            self.calls[client.id].append("epoch")

        def on_turn_end(self, run: Run, client: ClientInfo) -> None:
            self.calls[client.id].append("end")
            self.at_work.remove(client.id)

    turns = Turns()
    execute(make_spec(rounds=2), out, out, [turns], engine=engine, workers=1 if engine == "pool" else 0)
    assert turns.calls[0] == turns.calls[1] == [*["begin", "epoch", "end"] * 2, "begin", "end"]  # the closing visit


def test_a_resumed_run_begins_with_its_records(make_spec: Make, out: Path, leaves: Any) -> None:
    diary, spec = Diary(), make_spec(rounds=3)
    with pytest.raises(KeyboardInterrupt):
        execute(spec, out, out, [diary, leaves(1)])
    assert diary.calls[-1] == "KeyboardInterrupt"
    diary.calls.clear()
    execute(spec, out, out, [diary], resume=True)
    assert diary.calls[0] == ("begin", 2, 4)
    diary.calls.clear()
    execute(spec, out, out, [diary], resume=True)  # the run is finished
    assert diary.calls == []


@pytest.mark.parametrize("engine", ["local", "pool"])
def test_a_stopped_run_is_complete(make_spec: Make, out: Path, engine: str) -> None:
    summary = execute(make_spec(checkpoint_every=4), out, out, [Stops(1)], engine=engine, workers=2)
    assert summary == read_summary(out)
    assert summary["stopped_early"] == {"rounds": 2, "reason": "enough"}
    assert summary["rounds"] == 4
    assert [r["round"] for r in read_rounds(out)] == [0, 0, 1, 1, 2, 2]
    closing = read_rounds(out)[-2:]
    assert summary["point"] == "received"  # FedAvg is judged on the last aggregate
    assert summary["accuracy"]["all"] == sum(r["received.accuracy"] for r in closing) / 2
    assert not any("trained.accuracy" in r for r in closing)
    assert newest(out) == 2
    (found,) = analyse([out], out, lambda line: None).runs
    assert found["reproduced"]


def test_a_stop_does_not_change_the_rounds_before_it(make_spec: Make, tmp_path: Path) -> None:
    execute(make_spec(), tmp_path / "stopped", tmp_path, [Stops(1)])
    execute(make_spec(), tmp_path / "whole", tmp_path)
    stopped, whole = untimed(tmp_path / "stopped"), untimed(tmp_path / "whole")
    assert stopped[:4] == whole[:4]
    assert [r["received.accuracy"] for r in stopped[4:]] == [r["received.accuracy"] for r in whole[4:6]]


def test_a_stop_in_the_last_round_has_no_effect(make_spec: Make, out: Path) -> None:
    assert "stopped_early" not in execute(make_spec(rounds=2), out, out, [Stops(1)])


@pytest.mark.parametrize("method", ["on_round_end", "on_epoch_end"])
def test_a_failure_ends_the_run_after_it_is_saved(make_spec: Make, tmp_path: Path, method: str) -> None:
    spec = make_spec(checkpoint_every=4, keep_checkpoints=1)
    out, whole, diary = tmp_path / "run", tmp_path / "whole", Diary()
    with pytest.raises(CallbackFailed) as caught:
        execute(spec, out, out, [Fails(method, index=0), diary])
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    for part in ("Fails", method, "ZeroDivisionError: my own mistake", "test_callback.py, line"):
        assert part in message
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert diary.calls[-2:] == [("round", 0, False, 1, 0), "CallbackFailed"]  # the others are still called
    assert newest(out) == 1  # the round is not lost
    assert read_summary(out) is None
    execute(spec, out, out, resume=True)
    execute(spec, whole, whole)
    assert states(out) == states(whole)
    assert untimed(out) == untimed(whole)


def test_a_failure_at_the_beginning(make_spec: Make, out: Path) -> None:
    with pytest.raises(CallbackFailed, match="on_run_begin"):
        execute(make_spec(), out, out, [Fails("on_run_begin")])
    assert read_rounds(out) == []


@pytest.mark.parametrize("callback", [Fails("on_run_end"), Fails("on_round_end", index=1)])
def test_a_failure_at_the_end_leaves_a_complete_run(make_spec: Make, out: Path, callback: Callback) -> None:
    with pytest.raises(CallbackFailed, match="the run is complete"):
        execute(make_spec(rounds=1), out, out, [callback])
    assert read_summary(out) is not None


def test_an_error_in_on_failure_does_not_hide_the_first(make_spec: Make, out: Path, leaves: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        execute(make_spec(), out, out, [Fails("on_failure"), leaves(0)])


# By name


@pytest.fixture
def registered() -> Any:
    before = dict(CALLBACKS)
    yield
    CALLBACKS.clear()
    CALLBACKS.update(before)


def test_options_have_their_types() -> None:
    made = make_callback("early-stopping:patience=3,min_delta=0.5,metric=trained.loss,mode=min")
    assert isinstance(made, EarlyStopping)
    assert (made.patience, made.min_delta, made.metric, made.mode) == (3, 0.5, "trained.loss", "min")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("early-stoping", "did you mean 'early-stopping'"),
        ("early-stopping:pacience=3", "did you mean 'patience'"),
        ("early-stopping:patience", "is not KEY=VALUE"),
        ("early-stopping:patience=0", "patience=0 must be"),
        ("early-stopping:patience=soon", "patience=soon must be"),
        ("early-stopping:min_delta=-1", "min_delta=-1 must be"),
        ("early-stopping:mode=up", "mode=up must be"),
        ("needy", "missing 1 required"),
    ],
)
def test_invalid_callbacks_are_bad_input(registered: None, text: str, named: str) -> None:
    @register_callback("needy")
    class Needy(Callback):
        def __init__(self, what: str) -> None: ...

    with pytest.raises(BadInput) as caught:
        make_callback(text)
    assert named in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_names_are_unique_and_valid(registered: None) -> None:
    with pytest.raises(ValueError, match="callback 'early-stopping' is already registered"):
        register_callback("early-stopping")(Diary)
    with pytest.raises(ValueError, match="invalid callback name"):
        register_callback("a:b")(Diary)


def test_a_users_callback_on_the_command_line(registered: None, tmp_path: Path, capsys: Any) -> None:
    plugin = tmp_path / "plugin.py"
    plugin.write_text(
        "from asfedbridge.runs.callback import Callback, register_callback\n"
        "@register_callback('after')\n"
        "class After(Callback):\n"
        "    def __init__(self, rounds: int = 1, fail: bool = False):\n"
        "        self.rounds, self.fail = rounds, fail\n"
        "    def on_round_end(self, run, rnd, records):\n"
        "        if rnd.index + 1 == self.rounds:\n"
        "            run.stop('as told') if not self.fail else 1 / 0\n"
    )
    words = ["run", "fleet=1*resnet18@0.0625:ann", "train_per_class=2", "test_per_class=1", "feature_dim=16"]
    words += ["batch_size=8", "partition=iid", "rounds=3", "--import", str(plugin), "--json", "--callback"]
    assert cli.main([*words, "after:rounds=2", "--out", str(tmp_path / "stopped")]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["stopped_early"] == {"rounds": 2, "reason": "as told"}
    assert "stopped after round 2: as told" in err
    assert cli.main([*words, "after:fail=true", "--out", str(tmp_path / "failed")]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("asfedbridge: callback After failed in on_round_end (ZeroDivisionError")
    assert cli.main([*words, "before", "--out", str(tmp_path / "none")]) == 2
    assert not (tmp_path / "none").exists()
