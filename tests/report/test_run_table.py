"""Tables of runs: what sets runs apart, the terminal's width, CSV and LaTeX."""

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from tests.report.folders import make_run, make_spec

from asfedbridge import cli
from asfedbridge.report.comparison import Entry, compare
from asfedbridge.report.run_table import run_table
from asfedbridge.report.settings import read_fields
from asfedbridge.report.tables import find_runs, render_text


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Two settings of one method, two seeds each."""
    for rounds in (2, 3):
        for seed in (0, 1):
            spec = make_spec("fml", seed=seed, rounds=rounds)
            make_run(tmp_path / "sweep" / f"rounds={rounds},seed={seed}", spec, 50.0 + 3 * rounds + seed)
    return tmp_path / "sweep"


def gain(sweep: Path) -> float:
    """The mean over seeds of the differences between the two settings."""
    found = {folder.name: summary.accuracy["all"] for folder, summary in find_runs([sweep]).items()}
    return sum(found[f"rounds=3,seed={seed}"] - found[f"rounds=2,seed={seed}"] for seed in (0, 1)) / 2


def test_settings_that_differ_are_columns(sweep: Path) -> None:
    _, rows, note = run_table(find_runs([sweep]))
    assert rows[0][:4] == ["method", "rounds", "seed", "folder"]
    assert [row[:4] for row in rows[1:3]] == [
        ["fml", "2", "0", "rounds=2,seed=0"],
        ["fml", "2", "1", "rounds=2,seed=1"],
    ]
    assert "data" not in rows[0]
    assert note.startswith("All runs: cifar10, Dir(0.1), evaluated at `trained`")


def test_fields_of_a_method_are_compared_within_it(tmp_path: Path) -> None:
    for name, spec in {"a": make_spec("fml", rounds=2), "b": make_spec("standalone", rounds=2)}.items():
        make_run(tmp_path / name, spec, 50.0)
    head = run_table(find_runs([tmp_path])).rows[0]
    assert head[:3] == ["method", "folder", "ANN"]


def test_a_sweep_without_standalone_is_compared_with_its_first_row(sweep: Path) -> None:
    (one,) = compare([Entry(summary, read_fields(folder)) for folder, summary in find_runs([sweep]).items()])
    assert list(one.methods) == ["fml (rounds=2)", "fml (rounds=3)"]
    assert one.baseline == "fml (rounds=2)"
    assert one.reference is None  # Standalone
    entry = one.to_table()["methods"]["fml (rounds=3)"]
    assert entry["difference"]["all"]["mean"] == pytest.approx(gain(sweep))
    assert (entry["difference"]["all"]["n"], entry["difference"]["all"]["unit"]) == (2, "seeds")


@pytest.mark.parametrize("width", [40, 80, 120])
def test_tables_fit_the_terminal(width: int, sweep: Path) -> None:
    rows = run_table(find_runs([sweep])).rows
    text = render_text(rows, width)
    assert max(map(len, text.splitlines())) <= width
    assert all(cell in text for row in rows[1:] for cell in row)
    assert all(word in text for title in rows[0] for word in title.split())


def test_csv_has_every_run_and_comparison_unrounded(sweep: Path, capsys: Any) -> None:
    assert cli.main(["report", str(sweep), "--csv"]) == 0
    runs = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(run["rounds"], run["seed"]) for run in runs] == [("2", "0"), ("2", "1"), ("3", "0"), ("3", "1")]
    assert [run["rounds_played"] for run in runs] == ["2", "2", "3", "3"]
    assert float(runs[0]["all"]) == find_runs([sweep])[Path(runs[0]["folder"])].accuracy["all"]
    assert cli.main(["report", str(sweep), "--csv", "--compare"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    (found,) = (row for row in rows if row["clients"] == "all" and row["difference"])
    assert (found["method"], found["baseline"], found["n"]) == ("fml (rounds=3)", "fml (rounds=2)", "2")
    assert float(found["difference"]) == pytest.approx(gain(sweep))


def test_latex(sweep: Path, capsys: Any) -> None:
    assert cli.main(["report", str(sweep), "--latex"]) == 0
    text = capsys.readouterr().out
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 2
    assert r"$\pm$" in text
    assert cli.main(["report", str(sweep), "--latex", "--csv"]) == 2
