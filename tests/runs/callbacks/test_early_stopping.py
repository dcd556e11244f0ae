"""Early stopping: when it stops, and that a resumed run stops in the same round."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asfedbridge.core.task import Round
from asfedbridge.runs.callback import Callback, Run
from asfedbridge.runs.callbacks import EarlyStopping
from asfedbridge.runs.folder import read_summary
from asfedbridge.runs.record_files import read_rounds
from asfedbridge.runs.run import execute

Make = Callable[..., Any]


def records(index: int, *values: float | None, key: str = "trained.accuracy") -> list[dict[str, Any]]:
    entries = [{"round": index, "client": i, "kind": "ann", key: v} for i, v in enumerate(values)]
    return [{k: v for k, v in entry.items() if v is not None} for entry in entries]


def stopped_after(stopping: EarlyStopping, spec: Any, rounds: list[list[dict[str, Any]]], resumed: int = 0) -> int:
    """The number of rounds played; ``resumed``: how many of them were played by an earlier process."""
    run = Run(spec, None, Path("run"), resumed)  # type: ignore[arg-type]
    run.records = [r for played in rounds[:resumed] for r in played]  # type: ignore[misc]
    stopping.on_run_begin(run)
    for index, played in enumerate(rounds[resumed:], start=resumed):
        if run.stopped:
            return index
        run.records += played
        stopping.on_round_end(run, Round(index, len(rounds)), played)
    return len(rounds)


@pytest.mark.parametrize("resumed", range(8))
@pytest.mark.parametrize(
    ("options", "values", "rounds"),
    [
        ({"patience": 2}, [1, 2, 3, 3, 3, 9, 9, 9], 5),
        ({"patience": 3}, [1, 2, 3, 3, 3, 9, 9, 9], 8),
        ({"patience": 2, "min_delta": 1.0}, [1, 1.5, 2, 9, 9, 9, 9, 9], 3),
        ({"patience": 2, "mode": "min"}, [5, 4, 4, 4, 1, 1, 1, 1], 4),
        ({"patience": 2}, [1, None, None, 1, None, 1, 9, 9], 6),
    ],
)
def test_when_it_stops(make_spec: Make, options: Any, values: list[Any], rounds: int, resumed: int) -> None:
    played = [records(i, v, v) for i, v in enumerate(values)]
    expected = max(rounds, resumed) if rounds < 8 else 8
    found = stopped_after(EarlyStopping(**options), make_spec("as-fedbridge"), played, resumed)
    assert found == expected


def test_the_mean_over_clients_counts(make_spec: Make) -> None:
    rising = [records(i, 10.0 - i, 2.0 * i) for i in range(8)]
    assert stopped_after(EarlyStopping(patience=1), make_spec("as-fedbridge"), rising) == 8
    falling = [records(i, 10.0 - 2.0 * i, float(i)) for i in range(8)]
    assert stopped_after(EarlyStopping(patience=1), make_spec("as-fedbridge"), falling) == 2


def test_accuracy_is_taken_where_the_method_is_judged(make_spec: Make) -> None:
    same = [records(i, 5.0, key="trained.accuracy") for i in range(8)]
    assert stopped_after(EarlyStopping(patience=1), make_spec("fedavg"), same) == 8  # judged at received
    assert stopped_after(EarlyStopping("trained.accuracy", patience=1), make_spec("fedavg"), same) == 2


class LeavesClosing(Callback):
    """Interrupts the run in the closing visit."""

    def on_round_end(self, run: Run, rnd: Round, records: Any) -> None:
        if rnd.closing:
            raise KeyboardInterrupt


def test_a_run_that_is_interrupted_and_resumed_stops_in_the_same_round(
    make_spec: Make, tmp_path: Path, leaves: Any
) -> None:
    """No round can gain ``min_delta``, so the first round is the best, and the run waits for two more."""
    spec = make_spec("standalone", rounds=9)

    def stopping() -> EarlyStopping:
        return EarlyStopping(patience=2, min_delta=1000.0)

    whole = execute(spec, tmp_path / "whole", tmp_path, [stopping()])
    assert whole["stopped_early"]["rounds"] == 3
    assert "accuracy has not improved" in whole["stopped_early"]["reason"]
    for name, leave in (("early", leaves(1)), ("late", LeavesClosing())):
        out = tmp_path / name
        with pytest.raises(KeyboardInterrupt):
            execute(spec, out, tmp_path, [stopping(), leave])
        assert read_summary(out) is None
        again = execute(spec, out, tmp_path, [stopping()], resume=True)
        assert again["stopped_early"] == whole["stopped_early"]
        assert again["clients"] == whole["clients"]
        assert [r["round"] for r in read_rounds(out)] == [r["round"] for r in read_rounds(tmp_path / "whole")]
