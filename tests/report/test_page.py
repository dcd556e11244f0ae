"""The page: its numbers are those of the summary, text from files cannot run, and pages of many runs stay small."""

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tests.report.folders import make_analysis, make_run, make_spec

from asfedbridge import cli
from asfedbridge.core.errors import BadInput
from asfedbridge.report.page import Lead, render_page, write_page
from asfedbridge.report.runs import gather, gather_unfinished
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


def test_numbers_are_those_of_the_summary(run: Any) -> None:
    folder, summary = run
    page = read(folder)
    result, clients = page.tables[0], page.tables[1]
    accuracy = [f"{summary['accuracy'][g]:.2f}" for g in ("ann", "snn", "all")]
    assert result[:2] == [["", "ANN", "SNN", "all clients"], ["last round", *accuracy]]
    assert result[2] == ["paper", "91.53", "90.54", "91.12"]  # the cpu recipe on CIFAR-10 is a cell of the main table
    assert result[3][3] == f"{summary['accuracy']['all'] - 91.12:+.2f}"
    assert [row[-1] for row in clients[1:]] == [f"{c['accuracy']:.2f}" for c in summary["clients"]]
    assert f"({summary['uplink_bytes'] / 2**20:,.2f} up, {summary['downlink_bytes'] / 2**20:,.2f} down)" in page.text


def test_curves_end_at_the_values_of_the_summary(run: Any) -> None:
    folder, summary = run
    (found,) = gather([folder])
    for group, points in found.curves.groups.items():
        assert points[-1] == (summary["rounds"], pytest.approx(summary["accuracy"][group]))
    for client in summary["clients"]:
        assert found.curves.clients[client["id"]][-1][1] == client["accuracy"]
    for way in ("up", "down"):
        assert found.curves.traffic[way][-1] == (summary["rounds"], pytest.approx(summary[f"{way}link_bytes"] / 2**20))


def test_every_part_of_the_page_is_present(run: Any) -> None:
    page = read(run[0])
    for caption in ("Groups:", "Clients:", "Shards:", "Communication:", "CKA", "MMD²", "Cosine of gradients", "Firing"):
        assert caption in page.text
    assert "by round, before aggregation" in page.text
    assert f"asfedbridge run {run[0]}/spec.toml --out NEW_FOLDER" in page.text
    assert "asfedbridge run cpu seed=1" in page.text
    assert 'name = "as-fedbridge"' in page.text  # the specification
    assert "torch" in page.text  # the environment
    assert "/own/place" not in page.text  # the installation path is private
    assert "Paper: main: as-fedbridge, cifar10; this run: cpu scale." in page.text


def test_the_page_is_self_contained(run: Any) -> None:
    text = render_page(gather([run[0]]), Lead())
    assert not re.search(r"(src|href)=\"(?!#|data:)", text)
    assert not re.search(r"@import|url\(|@font-face|https?://(?!www\.w3\.org/2000/svg)", text)
    assert text.count("<script>") == 1


def test_the_same_run_gives_the_same_bytes(run: Any) -> None:
    assert render_page(gather([run[0]]), Lead()) == render_page(gather([run[0]]), Lead())


@pytest.mark.parametrize("together", [1, 2])
def test_markup_from_files_is_escaped(tmp_path: Path, together: int) -> None:
    """Every text in a run folder may contain markup; the page shows it as text."""
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


def test_additional_predictors_have_curves(run: Any) -> None:
    labels = [value for name, value in read(run[0]).attributes if name == "data-label"]
    assert labels[labels.index("all clients") + 1] == "Bridge"


def test_losses_are_drawn(run: Any) -> None:
    page = read(run[0])
    assert "Loss on test images after local training: mean by kind" in page.text
    assert "Training: terms of the loss" in page.text
    labels = [value for name, value in page.attributes if name == "data-label"]
    assert "local.ce" in labels


def test_last_and_best_round_and_worst_clients(run: Any) -> None:
    folder, summary = run
    rows = {row[0]: row for row in read(folder).tables[0]}
    best = f"best round ({summary['best']['round'] + 1})"
    assert rows[best][-1] == f"{summary['best']['all']:.2f}"
    assert rows["worst tenth of the clients"][-1] == f"{min(c['accuracy'] for c in summary['clients']):.2f}"


def test_every_client_has_a_chart_on_the_same_axes(run: Any) -> None:
    text = render_page(gather([run[0]]), Lead())
    charts = text.partition('<div class="multiples">')[2].partition("</figure>")[0]
    assert charts.count("<svg") == 10
    assert len(set(re.findall(r'data-y="[^"]*"', charts))) == 1


def test_evaluated_clients_have_confusion_matrices(tmp_path: Path) -> None:
    make_run(tmp_path / "run", make_spec(rounds=2))
    client = {"id": 0, "kind": "ann", "model": "vgg9", "accuracy": 50.0, "ece": 1.0, "latency_ms": 1.0, "images": 4}
    client |= {"per_class": {"cat": 75.0, "dog": None}, "confusion": [[3, 1], [0, 0]]}
    content = {"format": 1, "data": "digits", "fused": False, "clients": [client], "matrix": [], "shards": []}
    (tmp_path / "run" / "evaluation.json").write_text(json.dumps(content))
    text = render_page(gather([tmp_path]), Lead())
    assert "Accuracy in % of each client (rows) on each class (columns)" in text
    matrix = text.partition("confusion matrix of client 0")[2].partition("</svg>")[0]
    assert re.findall(r"<text class=\"cell [^>]*>(\d+)<", matrix) == ["75", "25"]
    client["confusion"] = [[3, 1]]
    (tmp_path / "run" / "evaluation.json").write_text(json.dumps(content))
    with pytest.raises(BadInput, match=r"evaluation\.json.*clients\[0\]\.confusion=.*must be a square matrix"):
        gather([tmp_path])


def test_a_run_without_optional_files(tmp_path: Path) -> None:
    summary = make_run(tmp_path / "bare", make_spec(rounds=3))
    for name in ("rounds.jsonl", "spec.toml", "env.json"):
        (tmp_path / "bare" / name).unlink()
    for client in summary["clients"]:
        del client["labels"]  # a run of an earlier version
    (tmp_path / "bare" / "summary.json").write_text(json.dumps(summary))
    page = read(tmp_path)
    assert "svg" not in page.tags
    assert "Reproduce this run" in page.text
    assert page.tables[0][1][-1] == f"{summary['accuracy']['all']:.2f}"


def test_a_run_that_was_stopped_early_is_marked(tmp_path: Path) -> None:
    for name in ("stopped", "whole"):
        summary = make_run(tmp_path / name, make_spec(rounds=3, seed=len(name)))
    stop = {"stopped_early": {"rounds": 2, "reason": "accuracy did not rise"}}
    (tmp_path / "stopped" / "summary.json").write_text(json.dumps(summary | stop))
    page = read(tmp_path)
    assert page.text.count("2 of 3 rounds") == 2  # in the head of its section, and the note below
    assert "stopped early after 2 of 3 rounds" in page.text
    assert "Stopped early, after 2 of 3 rounds: accuracy did not rise" in page.text
    assert [row[page.tables[0][0].index("rounds")] for row in page.tables[0][1:]] == ["2 of 3, stopped early", "3"]


def test_many_runs_are_compared(tmp_path: Path) -> None:
    for method in ("fedavg", "standalone"):
        for seed in (0, 1):
            make_run(tmp_path / f"{method}{seed}", make_spec(method, seed=seed), 50.0 + seed)
    make_run(tmp_path / "wider", make_spec("standalone", epochs=9), 55.0)
    page = read(tmp_path)
    means, rows = page.tables[0], page.tables[1]
    assert [row[:2] for row in rows[1:]] == [
        ["fedavg", ""], ["fedavg", ""], ["standalone", ""], ["standalone", ""], ["standalone", "epochs=9"],
    ]  # fmt: skip
    assert rows[0][:11] == [
        "method", "setting", "data", "split", "seed", "ANN", "SNN", "all", "paper all", "difference", "worst tenth",
    ]  # fmt: skip
    assert [row[8] for row in rows[1:]] == [
        "28.12",
        "28.12",
        "86.74",
        "86.74",
        "-",
    ]  # not nine epochs
    assert rows[1][9] == f"{float(rows[1][7]) - 28.12:+.2f}"
    assert means[0][:5] == ["method", "ANN", "SNN", "all", "ANN vs standalone"]
    assert [(row[0], row[-2], row[-1]) for row in means[1:]] == [("fedavg", "2 seeds", "2"), ("standalone", "", "2")]
    assert " ± " in means[1][1]
    gain = float(means[1][means[0].index("all vs standalone")].split()[0])
    assert f"fedavg is {-gain:.2f} percentage points below standalone on cifar10" in page.text  # the headline
    assert "An asterisk (*) marks an interval that excludes zero." in page.text
    assert len(page.tables[2][0]) < len(rows[0])  # nine epochs are another protocol, with a single run
    assert page.text.count("80 rounds, epochs=9") == 1  # the heading of that run


@pytest.mark.long
def test_two_hundred_runs_stay_small(tmp_path: Path) -> None:
    first = make_run(tmp_path / "run000", make_spec(rounds=100), classes=100)
    for i in range(1, 200):
        shutil.copytree(tmp_path / "run000", tmp_path / f"run{i:03}")
        labels = [{**c, "labels": [(v * i) % 31 for v in c["labels"]]} for c in first["clients"]]
        (tmp_path / f"run{i:03}" / "summary.json").write_text(json.dumps({**first, "seed": i, "clients": labels}))
    text = render_page(gather([tmp_path]), Lead())
    assert len(text.encode()) < 4_000_000
    page = Reader(text)
    assert len(page.tables[1]) == 201
    assert "the longest run has 100 rounds" in page.text
    assert "are left out to keep the page small" in page.text


def test_runs_on_the_same_shards_share_a_picture(tmp_path: Path) -> None:
    for seed in range(3):
        make_run(tmp_path / str(seed), make_spec(rounds=3, seed=seed))
    text = render_page(gather([tmp_path]), Lead())
    assert text.count('id="shards-0"') == 1
    assert text.count('href="#shards-0"') == 2


def test_only_the_first_clients_of_a_large_fleet_are_shown(tmp_path: Path) -> None:
    make_run(tmp_path / "wide", make_spec(rounds=2, fleet="300*resnet18@0.125:ann"))
    page = read(tmp_path)
    assert len(page.tables[1]) == 41
    assert "The first 40 of 300." in page.text
    assert "40 of 300 clients" in page.text


def unfinish(folder: Path, rounds: int) -> None:
    """Leave of a run what there is of it after some rounds."""
    (folder / "summary.json").unlink()
    lines = (folder / "rounds.jsonl").read_text().splitlines(keepends=True)
    kept = [line for line in lines if json.loads(line)["round"] < rounds]
    (folder / "rounds.jsonl").write_text("".join(kept) + lines[len(kept)][:20])  # a line is being written


def test_an_unfinished_run_is_shown_as_far_as_it_is(tmp_path: Path) -> None:
    make_run(tmp_path / "begun", make_spec(rounds=20))
    unfinish(tmp_path / "begun", 7)
    runs, left_out = gather_unfinished([tmp_path])
    text = render_page(runs, Lead(), left_out)
    page = Reader(text)
    assert left_out == 0
    assert "Not finished: 7 of 20 rounds" in page.text
    assert "0 finished runs, 1 not finished (the page reloads itself every 10 seconds)." in page.text
    assert runs[0].curves.groups["all"][-1] == (7.0, pytest.approx(float(page.tables[0][1][-1]), abs=0.006))
    assert 'data-refresh="10"' in text
    assert "Clients:" in page.text


def test_unfinished_runs_are_beside_finished_ones_but_not_in_means(tmp_path: Path) -> None:
    for method in ("standalone", "fedavg"):
        for seed in range(3):
            make_run(tmp_path / f"{method}-{seed}", make_spec(method, rounds=9, seed=seed))
    unfinish(tmp_path / "fedavg-2", 4)
    finished, (unfinished, _) = gather([tmp_path]), gather_unfinished([tmp_path])
    page = Reader(render_page([*finished, *unfinished], Lead()))
    means, rows = page.tables[:2]
    assert [(row[0], row[-1]) for row in means[1:]] == [("fedavg", "2"), ("standalone", "3")]
    rounds, minutes = rows[0].index("rounds"), rows[0].index("minutes")
    assert (rows[-1][rounds], rows[-1][minutes]) == ("4 of 9 so far", "-")
    labels = {value for name, value in page.attributes if name == "data-label"}
    assert {"fedavg, cifar10, mean over 2 seeds", "fedavg, cifar10, seed 2, so far"} <= labels
    assert "data-refresh" not in render_page(finished, Lead())


def test_watching_ends_with_the_last_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = make_run(tmp_path / "run", make_spec(rounds=3))
    unfinish(tmp_path / "run", 2)
    out, seen = tmp_path / "page.html", []
    assert cli.main(["report", str(tmp_path), "--out", str(out)]) == 0
    assert "1 not finished; --watch updates the page until they are" in capsys.readouterr().err

    def finish(seconds: float) -> None:
        seen.append("data-refresh" in out.read_text())
        (tmp_path / "run" / "summary.json").write_text(json.dumps(summary))

    monkeypatch.setattr("time.sleep", finish)
    assert cli.main(["report", str(tmp_path), "--out", str(out), "--watch"]) == 0
    assert seen == [True]
    assert "data-refresh" not in out.read_text().partition("<body>")[0].partition("<head>")[0]
    assert cli.main(["report", str(tmp_path), "--watch"]) == 2
    assert "--watch updates the page of --out; add --out FILE.html" in capsys.readouterr().err


def test_a_run_without_rounds_or_with_an_unknown_method(tmp_path: Path) -> None:
    for name in ("new", "foreign"):
        make_run(tmp_path / name, make_spec(rounds=3))
        (tmp_path / name / "summary.json").unlink()
    (tmp_path / "new" / "rounds.jsonl").unlink()
    spec = tmp_path / "foreign" / "spec.toml"
    spec.write_text(spec.read_text().replace('"as-fedbridge"', '"mine"'))
    runs, left_out = gather_unfinished([tmp_path])
    page = Reader(render_page(runs, Lead(), left_out))
    assert "Not finished: 0 of 3 rounds" in page.text
    assert "1 not finished and left out" in page.text


@pytest.mark.parametrize(
    ("name", "text"),
    [("analysis.json", "{"), ("costs.json", '{"setting": 1}'), ("env.json", "[1]"), ("spec.toml", "= 3")],
)
def test_the_error_names_a_damaged_file(tmp_path: Path, name: str, text: str) -> None:
    make_run(tmp_path / "damaged", make_spec(rounds=2))
    (tmp_path / "damaged" / name).write_text(text)
    with pytest.raises(BadInput, match=f"damaged/{name}"):
        gather([tmp_path])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"client": 99}, "client 99 is in rounds.jsonl but not in summary.json"),
        (
            {"received.accuracy": 101.0, "trained.accuracy": 101.0},
            "trained.accuracy must be a number from 0 to 100",
        ),
        ({"received.accuracy": float("nan")}, "line 1 is damaged"),
        ({"received.bridge_accuracy": "high"}, "received.bridge_accuracy must be a number from 0 to 100"),
    ],
)
def test_the_error_names_an_invalid_record(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    make_run(tmp_path / "odd", make_spec(rounds=2))
    first, *others = (tmp_path / "odd" / "rounds.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "odd" / "rounds.jsonl").write_text(json.dumps(json.loads(first) | changes) + "\n" + "".join(others))
    with pytest.raises(BadInput, match=reason):
        gather([tmp_path])


def test_an_environment_with_unexpected_types_is_shown(tmp_path: Path) -> None:
    summary = make_run(tmp_path / "odd", make_spec(rounds=2))
    (tmp_path / "odd" / "env.json").write_text(
        json.dumps({"imports": 5, "command": 7, "starts": [1, {"next_round": 2, "time": [3]}]})
    )
    (tmp_path / "odd" / "summary.json").write_text(json.dumps(summary | {"notes": [1]}))
    assert "imports" in read(tmp_path).text
    assert "resumed after round 2" in read(tmp_path).text


def test_the_error_names_an_invalid_analysis(tmp_path: Path) -> None:
    make_run(tmp_path / "odd", make_spec(rounds=2))
    (tmp_path / "odd" / "analysis.json").write_text(json.dumps({"format": 2, "clients": 5}))
    with pytest.raises(BadInput, match=r"analysis\.json: is not the analysis of a run: clients=5 \(must be a list\)"):
        gather([tmp_path])


def test_a_page_that_cannot_be_written_is_bad_input(run: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="cannot write"):
        write_page(tmp_path / "file" / "page.html", gather([run[0]]), Lead())
