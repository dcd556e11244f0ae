"""Every file in examples/ runs as it is printed."""

import json
from pathlib import Path

import pytest
from tests.scripts import run_script

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def run(script: Path, folder: Path) -> str:
    """In an empty folder."""
    done = run_script(script, folder)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def test_there_are_examples() -> None:
    assert {p.stem for p in SCRIPTS} >= {"run", "own_method", "own_model", "own_data", "use_trained"}
    assert NOTEBOOKS


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_runs(script: Path, tmp_path: Path) -> None:
    if "spikingjelly" in script.read_text():
        pytest.importorskip("spikingjelly")
    assert run(script, tmp_path).strip()
    assert list(tmp_path.glob("runs/*/summary.json"))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_cells_of_a_notebook_run(notebook: Path, tmp_path: Path) -> None:
    cells = json.loads(notebook.read_text())["cells"]
    assert not any(cell.get("outputs") for cell in cells)  # kept without output
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    (tmp_path / "cells.py").write_text("\n\n".join(code))
    run(tmp_path / "cells.py", tmp_path)
    assert len(list(tmp_path.glob("runs/*/summary.json"))) == 2
