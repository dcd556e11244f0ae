"""Every experiment from the command line at smoke scale: two rows of it, played for real."""

import csv
import json
from pathlib import Path

import pytest

from asfedbridge import cli
from asfedbridge.paper.experiments import EXPERIMENTS
from asfedbridge.paper.grid import Bench

ROWS = {
    "composition": ["as-fedbridge"],
    "necessity": ["snn:T=2"],
    "lowbit": ["qnn:b=2"],
    "rates": ["as-fedbridge"],
    "motivation": ["mixed"],
}
# Four clients do, except where the fleet is what an experiment varies.
SMALL = "fleet=2*resnet18@0.0625:ann,2*resnet18@0.0625:snn"
OWN_FLEETS = {"scale", "architecture", "composition", "necessity", "lowbit"}
# One experiment of each kind: accuracies with costs, round by round, between clients, firing rates, counted alone.
ALWAYS = {"necessity", "motivation", "cka", "rates", "computation"}


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all: cells that experiments share are played once."""
    return tmp_path_factory.mktemp("smoke")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in ALWAYS else pytest.mark.long) for name in sorted(EXPERIMENTS)]
)
def test_an_experiment_gives_its_table(name: str, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = EXPERIMENTS[name].cells(Bench("smoke"))
    rows = ROWS.get(name) or list(dict.fromkeys(c.row for c in cells))[-2:]
    columns = list(dict.fromkeys(c.column for c in cells))[:2]
    # Counted tables do not rely on a folder that runs have made; only motivation shows several rounds.
    out = out if cells and name != "motivation" else out / name
    rounds = 2 if name == "motivation" else 1
    words = ["--only", ",".join(rows), "--columns", ",".join(columns), "--set", f"rounds={rounds}"] if cells else []
    words += [] if name in OWN_FLEETS or not cells else ["--set", SMALL]
    assert cli.main(["reproduce", name, "--scale", "smoke", *words, "--out", str(out)]) == 0
    page = capsys.readouterr().out
    assert page.startswith(f"# {EXPERIMENTS[name].title}\n")
    assert "failed" not in page
    for row in rows if cells else ["ann+ann"]:
        assert f"\n| {row} |" in page
    for suffix in ("md", "csv", "tex"):
        assert (out / f"{name}.{suffix}").read_text(encoding="utf-8")
    found = {json.loads(file.read_text())["rounds"] for file in out.glob("cells/*/summary.json")}
    assert found == ({rounds} if cells else set())
    if EXPERIMENTS[name].costs and cells:
        written = csv.DictReader((out / f"{name}-analysis.csv").read_text(encoding="utf-8").splitlines())
        measured = [line for line in written if line["n"] == "1"]
        assert {line["row"] for line in measured} == set(rows)
        assert not any(line["note"] for line in measured)
        sops = [float(line.get("MSOPs") or line["SNN GSOPs"]) for line in measured]
        assert all(value > 0 for value in sops) == (name != "lowbit")  # a quantised network has no spikes
    if EXPERIMENTS[name].analysis:
        assert any(word in page for word in ("pairs", "round by round", "shares of firing rates"))
        assert len((out / f"{name}-analysis.csv").read_text(encoding="utf-8").splitlines()) > 1
    if name == "motivation":
        check_rounds(out)


def check_rounds(out: Path) -> None:
    """Both rounds, with accuracies and the three measures, on the page, too."""
    with (out / "motivation-analysis.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["table"].startswith("digits (in place of cifar10),")]
    assert [(row["row"], row["round"]) for row in rows] == [("mixed", "1"), ("mixed", "2")]
    for row in rows:
        assert all(float(row[name]) >= 0 for name in ("accuracy", "trained"))
        for measure in ("CKA", "MMD^2", "cos"):
            assert row[f"{measure} ANN"] != "-"
            assert f"{measure} cross" in row  # SNNs of this size may be silent
    assert "by round, before aggregation" in (out / "motivation.html").read_text()
