"""Every experiment from the command line at smoke scale: two rows of it, played for real."""

import json
from pathlib import Path

import pytest

from asfedbridge import cli
from asfedbridge.experiments.catalogue import EXPERIMENTS, Bench

ROWS = {"composition": ["as-fedbridge"], "necessity": ["bnn"], "lowbit": ["qnn:b=2"], "rates": ["as-fedbridge"]}


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all: cells that experiments share are played once."""
    return tmp_path_factory.mktemp("smoke")


@pytest.mark.parametrize("name", sorted(EXPERIMENTS))
def test_an_experiment_gives_its_table(name: str, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = EXPERIMENTS[name].cells(Bench("smoke"))
    rows = ROWS.get(name) or list(dict.fromkeys(c.row for c in cells))[-2:]
    columns = list(dict.fromkeys(c.column for c in cells))[:2]
    out = out if cells else out / "new"  # counted tables do not rely on a folder that runs have made
    words = ["--only", ",".join(rows), "--columns", ",".join(columns), "--set", "rounds=1"] if cells else []
    assert cli.main(["reproduce", name, "--scale", "smoke", *words, "--out", str(out)]) == 0
    page = capsys.readouterr().out
    assert page.startswith(f"# {EXPERIMENTS[name].title}\n")
    assert "failed" not in page
    for row in rows if cells else ["as-fedbridge" if name == "communication" else "ann+ann"]:
        assert f"\n| {row} |" in page
    for suffix in ("md", "csv", "tex"):
        assert (out / f"{name}.{suffix}").read_text(encoding="utf-8")
    assert {json.loads(file.read_text())["rounds"] for file in out.glob("cells/*/summary.json")} <= {1}
    if EXPERIMENTS[name].analysis:
        assert any(word in page for word in ("pairs", "round by round", "shares of firing rates"))
        assert len((out / f"{name}-analysis.csv").read_text(encoding="utf-8").splitlines()) > 1
