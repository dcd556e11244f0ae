"""The page: every number is the run's own, nothing from a file can run, and many runs stay small."""

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tests.report.folders import make_analysis, make_run, make_spec

from asfedbridge.core.errors import BadInput
from asfedbridge.report.page import Lead, render_page, write_page
from asfedbridge.report.runs import count_unfinished, gather
from asfedbridge.report.tables import Titled

EVIL = "npz:<script>alert(1)</script>\"'><img src=x onerror=alert(2)>.npz"


class Reader(HTMLParser):
    """Tables as lists of rows, tags in order, and text; every element that is opened must be closed."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tables: list[list[list[str]]] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(page)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in ("meta", "link", "input"):
            self._open.append(tag)
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        if {"td", "th"} & set(self._open):
            self.tables[-1][-1][-1] += data


def read(*folders: Path, lead: Lead | None = None) -> Reader:
    return Reader(render_page(gather(folders), lead or Lead()))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("runs") / "one"
    summary = make_run(folder, make_spec())
    make_analysis(folder, summary)
    return folder, summary


def test_numbers_are_the_summary_s(run: Any) -> None:
    folder, summary = run
    page = read(folder)
    result, clients = page.tables[0], page.tables[1]
    accuracy = [f"{summary['accuracy'][g]:.2f}" for g in ("ann", "snn", "all")]
    assert result[:2] == [["", "ANN", "SNN", "all clients"], ["this run", *accuracy]]
    assert result[2] == ["paper", "91.53", "90.54", "91.12"]  # the cpu recipe on CIFAR-10 is a cell of the main table
    assert result[3][3] == f"{summary['accuracy']['all'] - 91.12:+.2f}"
    assert [row[-1] for row in clients[1:]] == [f"{c['accuracy']:.2f}" for c in summary["clients"]]
    assert f"({summary['uplink_bytes'] / 2**20:,.2f} up, {summary['downlink_bytes'] / 2**20:,.2f} down)" in page.text


def test_the_ends_of_curves_are_the_summary_s(run: Any) -> None:
    folder, summary = run
    (found,) = gather([folder])
    for group, points in found.curves.groups.items():
        assert points[-1] == (summary["rounds"], pytest.approx(summary["accuracy"][group]))
    for client in summary["clients"]:
        assert found.curves.clients[client["id"]][-1][1] == client["accuracy"]
    for way in ("up", "down"):
        assert found.curves.traffic[way][-1] == (summary["rounds"], pytest.approx(summary[f"{way}link_bytes"] / 2**20))


def test_all_that_was_asked_for_is_there(run: Any) -> None:
    page = read(run[0])
    for caption in ("Groups:", "Clients:", "Shards:", "Communication:", "CKA", "MMD²", "Cosine of gradients", "Firing"):
        assert caption in page.text
    assert "by round, before aggregation" in page.text
    assert f"asfedbridge run {run[0]}/spec.toml --out NEW_FOLDER" in page.text
    assert "asfedbridge run cpu seed=1" in page.text
    assert 'name = "as-fedbridge"' in page.text  # the specification
    assert "torch" in page.text  # the environment
    assert "/own/place" not in page.text  # where the program lies is nobody else's business
    assert "Paper: main: as-fedbridge, cifar10; this run: cpu scale." in page.text


def test_the_page_needs_nothing_but_itself(run: Any) -> None:
    text = render_page(gather([run[0]]), Lead())
    assert not re.search(r"(src|href)=\"(?!#|data:)", text)
    assert not re.search(r"@import|url\(|@font-face|https?://(?!www\.w3\.org/2000/svg)", text)
    assert text.count("<script>") == 1


def test_the_same_run_gives_the_same_bytes(run: Any) -> None:
    assert render_page(gather([run[0]]), Lead()) == render_page(gather([run[0]]), Lead())


@pytest.mark.parametrize("together", [1, 2])
def test_nothing_from_a_file_runs(tmp_path: Path, together: int) -> None:
    """Markup in every text that a folder holds comes out as that text."""
    for i in range(together):
        spec = make_spec(rounds=3, data=EVIL, seed=i)
        folder = tmp_path / f"<b>{i}</b>"
        summary = make_run(folder, spec)
        summary |= {"notes": [EVIL], "method": EVIL, "bn_buffers": EVIL}
        for client in summary["clients"]:
            client["model"] = EVIL
        (folder / "summary.json").write_text(json.dumps(summary))
        (folder / "env.json").write_text(json.dumps({EVIL: EVIL, "command": ["x", EVIL]}))
        analysis = make_analysis(folder, summary)
        analysis["clients"][0]["kind"] = analysis["rates"][0]["levels"][0] = EVIL
        analysis["rates"][0]["levels"] = [0.0, 0.25, 0.5, 0.75, 1.0, None]
        (folder / "analysis.json").write_text(json.dumps(analysis))
    page = read(tmp_path, lead=Lead(EVIL, EVIL, EVIL, [Titled(EVIL, [[EVIL], [EVIL]], EVIL)], [EVIL]))
    assert page.tags.count("script") == 1
    assert not {"img", "b"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert page.text.count(EVIL) > 10


def test_predictors_beside_the_backbones_have_curves(run: Any) -> None:
    labels = [value for name, value in read(run[0]).attributes if name == "data-label"]
    assert labels[labels.index("all clients") + 1] == "Bridge"


def test_a_run_without_optional_files(tmp_path: Path) -> None:
    summary = make_run(tmp_path / "bare", make_spec(rounds=3))
    for name in ("rounds.jsonl", "spec.toml", "env.json"):
        (tmp_path / "bare" / name).unlink()
    for client in summary["clients"]:
        del client["labels"]  # a run of an earlier version
    (tmp_path / "bare" / "summary.json").write_text(json.dumps(summary))
    page = read(tmp_path)
    assert "svg" not in page.tags
    assert "Make it again" in page.text
    assert page.tables[0][1][-1] == f"{summary['accuracy']['all']:.2f}"


def test_many_runs_are_compared(tmp_path: Path) -> None:
    for method in ("fedavg", "standalone"):
        for seed in (0, 1):
            make_run(tmp_path / f"{method}{seed}", make_spec(method, seed=seed), 50.0 + seed)
    make_run(tmp_path / "wider", make_spec("standalone", epochs=9), 55.0)
    page = read(tmp_path)
    rows, means = page.tables[0], page.tables[1]
    assert [row[:2] for row in rows[1:]] == [
        ["fedavg", ""], ["fedavg", ""], ["standalone", ""], ["standalone", ""], ["standalone", "epochs=9"],
    ]  # fmt: skip
    assert rows[0][:10] == [
        "method", "setting", "data", "split", "seed", "ANN", "SNN", "all", "paper all", "difference",
    ]  # fmt: skip
    assert [row[8] for row in rows[1:]] == ["28.12", "28.12", "86.74", "86.74", "-"]  # nine epochs are not the paper's
    assert rows[1][9] == f"{float(rows[1][7]) - 28.12:+.2f}"
    assert means[0][:5] == ["method", "ANN", "SNN", "all", "ANN vs standalone"]
    assert [(row[0], row[-2], row[-1]) for row in means[1:]] == [("fedavg", "2 seeds", "2"), ("standalone", "", "2")]
    assert " ± " in means[1][1]
    assert "An asterisk (*) marks an interval that excludes zero." in page.text
    assert len(page.tables[2][0]) < len(rows[0])  # nine epochs are another protocol, and one run is no comparison


def test_two_hundred_runs_stay_small(tmp_path: Path) -> None:
    first = make_run(tmp_path / "run000", make_spec(rounds=100), classes=100)
    for i in range(1, 200):
        shutil.copytree(tmp_path / "run000", tmp_path / f"run{i:03}")
        labels = [{**c, "labels": [(v * i) % 31 for v in c["labels"]]} for c in first["clients"]]
        (tmp_path / f"run{i:03}" / "summary.json").write_text(json.dumps({**first, "seed": i, "clients": labels}))
    text = render_page(gather([tmp_path]), Lead())
    assert len(text.encode()) < 4_000_000
    page = Reader(text)
    assert len(page.tables[0]) == 201
    assert "the longest run has 100 rounds" in page.text
    assert "are left out to keep the page small" in page.text


def test_runs_on_the_same_shards_share_a_picture(tmp_path: Path) -> None:
    for seed in range(3):
        make_run(tmp_path / str(seed), make_spec(rounds=3, seed=seed))
    text = render_page(gather([tmp_path]), Lead())
    assert text.count('id="shards-0"') == 1
    assert text.count('href="#shards-0"') == 2


def test_thousands_of_clients_are_cut(tmp_path: Path) -> None:
    make_run(tmp_path / "wide", make_spec(rounds=2, fleet="300*resnet18@0.125:ann"))
    page = read(tmp_path)
    assert len(page.tables[1]) == 41
    assert "The first 40 of 300." in page.text
    assert "40 of 300 clients" in page.text


def test_unfinished_runs_are_counted(tmp_path: Path) -> None:
    make_run(tmp_path / "done", make_spec(rounds=2))
    make_run(tmp_path / "begun", make_spec(rounds=2))
    (tmp_path / "begun" / "summary.json").unlink()
    assert count_unfinished([tmp_path]) == 1
    write_page(tmp_path / "deep" / "page.html", gather([tmp_path]), Lead(), [tmp_path])
    assert "1 finished run, 1 unfinished left out" in (tmp_path / "deep" / "page.html").read_text()


@pytest.mark.parametrize(
    ("name", "text"),
    [("analysis.json", "{"), ("costs.json", '{"setting": 1}'), ("env.json", "[1]"), ("spec.toml", "= 3")],
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, text: str) -> None:
    make_run(tmp_path / "damaged", make_spec(rounds=2))
    (tmp_path / "damaged" / name).write_text(text)
    with pytest.raises(BadInput, match="damaged"):
        gather([tmp_path])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"client": 99}, "rounds.jsonl has client 99, summary.json has not"),
        (
            {"received.accuracy": float("nan"), "trained.accuracy": float("nan")},
            "trained.accuracy must be a number from 0 to 100",
        ),
        ({"received.bridge_accuracy": "high"}, "received.bridge_accuracy must be a number from 0 to 100"),
    ],
)
def test_records_that_cannot_be_drawn_are_named(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    make_run(tmp_path / "odd", make_spec(rounds=2))
    first, *others = (tmp_path / "odd" / "rounds.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "odd" / "rounds.jsonl").write_text(json.dumps(json.loads(first) | changes) + "\n" + "".join(others))
    with pytest.raises(BadInput, match=reason):
        gather([tmp_path])


def test_an_environment_of_odd_values_is_shown(tmp_path: Path) -> None:
    summary = make_run(tmp_path / "odd", make_spec(rounds=2))
    (tmp_path / "odd" / "env.json").write_text(json.dumps({"imports": 5, "command": 7}))
    (tmp_path / "odd" / "summary.json").write_text(json.dumps(summary | {"notes": [1]}))
    assert "imports" in read(tmp_path).text


def test_an_analysis_that_is_none_is_named(tmp_path: Path) -> None:
    make_run(tmp_path / "odd", make_spec(rounds=2))
    (tmp_path / "odd" / "analysis.json").write_text(json.dumps({"format": 2, "clients": 5}))
    with pytest.raises(BadInput, match=r"analysis\.json: is not the analysis of a run: clients=5 \(must be a list\)"):
        gather([tmp_path])


def test_a_page_that_cannot_be_written(run: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="cannot write"):
        write_page(tmp_path / "file" / "page.html", gather([run[0]]), Lead())
