from pathlib import Path

import pytest

import asfedbridge.methods  # noqa: F401  registers every method
from asfedbridge import cli
from asfedbridge.core.method import METHODS
from asfedbridge.report.listings import PARTS, TOPICS, describe_method, list_topic, methods_page
from asfedbridge.runs.recipes import RECIPES

PAGE = Path(__file__).parents[2] / "docs" / "methods.md"


def test_the_page_of_methods_is_up_to_date() -> None:
    """After a change: asfedbridge list methods --markdown > docs/methods.md"""
    assert PAGE.read_text(encoding="utf-8") == methods_page() + "\n"


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_describes_all_parts(name: str) -> None:
    about = describe_method(METHODS[name])
    assert set(about) == {"Title", *PARTS}
    assert all(about.values())
    assert len(about["Title"].splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("fedavg", "43.20 | 43.20"),
        ("fedprox", "43.20 | 43.20"),
        ("fedfree", "18.00 | 9.00"),
        ("fedproto", "0.10 | 0.10"),
        ("fedtgp", "0.10 | 0.10"),
        ("fml", "3.93 | 3.93"),
        ("mh-pflid", "3.93 | 3.93"),
        ("as-fedbridge", "3.93 | 3.93"),
        ("standalone", "0.00 | 0.00"),
    ],
)
def test_sizes_are_those_of_the_papers_cost_table(name: str, sizes: str) -> None:
    (row,) = (line for line in methods_page().splitlines() if line.startswith(f"| `{name}` |"))
    assert f" | {sizes} | " in row


def test_methods_and_models_have_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "methods", "--markdown"]) == 0
    assert capsys.readouterr().out == PAGE.read_text(encoding="utf-8")
    assert cli.main(["list", "models", "--markdown"]) == 0
    assert "| 11,325,860, 1111.15 |" in capsys.readouterr().out
    assert cli.main(["list", "data", "--markdown"]) == 2
    assert "only methods and models have a Markdown page" in capsys.readouterr().err


def test_callbacks_and_their_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "callbacks"]) == 0
    out = capsys.readouterr().out
    assert "early-stopping\n    Stops when ``metric``" in out
    assert "metric=accuracy, patience=10, min_delta=0" in out
    assert {"mlflow", "wandb"} <= set(out.split())


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_lists_fit_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for topic in (*TOPICS, "all"):
        assert max(map(len, list_topic(topic).splitlines())) <= columns, topic
    first = [line.split()[0] for line in list_topic("recipes").splitlines() if not line.startswith(" ")]
    assert first == list(RECIPES)  # long texts stay in their column
    assert "stops improving. All test images" in " ".join(list_topic("recipes").split())
