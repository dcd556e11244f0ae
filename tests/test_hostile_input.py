"""Files, folders and words that somebody made to harm: one clear line, exit code 2, no traceback."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.report.folders import make_analysis, make_run, make_spec

from asfedbridge import cli
from asfedbridge.engines.checkpoint import _seal

pytestmark = pytest.mark.timeout(120)  # a reader that waits for a FIFO waits for ever
DEEP, DIGITS, LONG = "[" * 10_000, "9" * 5000, "x" * 5000
FILES = ("summary.json", "rounds.jsonl", "env.json", "analysis.json", "costs.json", "spec.toml", "diagnostics.jsonl")


def refused(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    """The one line that is told of bad input."""
    capsys.readouterr()
    code = cli.main([str(word) for word in words])
    err = capsys.readouterr().err
    assert code == 2, err
    assert len(err.splitlines()) == 1, err
    assert err.startswith("asfedbridge: ")
    assert err[:-1].isprintable()
    assert len(err) < 2000
    return err


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    make_run(folder, make_spec(rounds=2, fleet="1*resnet18@0.25:ann,1*resnet18@0.25:snn"))
    return folder


def put(content: Callable[[str], str]) -> Callable[[Path], None]:
    return lambda file: (file.write_text(content(file.suffix)), None)[1]


def make_fifo(file: Path) -> None:
    file.unlink(missing_ok=True)
    os.mkfifo(file)


def make_folder(file: Path) -> None:
    file.unlink(missing_ok=True)
    file.mkdir()


def make_unreadable(file: Path) -> None:
    file.unlink(missing_ok=True)
    file.symlink_to("/proc/self/mem")


def make_large(file: Path) -> None:
    with file.open("wb") as opened:
        opened.truncate(2**42)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "make",
    [
        put(lambda suffix: f"x = {DEEP}\n" if suffix == ".toml" else f"{DEEP}\n"),
        put(lambda suffix: f"x = {DIGITS}\n" if suffix == ".toml" else f'{{"round": {DIGITS}}}\n'),
        put(lambda suffix: "x = \x1b[31m\n" if suffix == ".toml" else '"\\u001b[31m"\n'),
        make_fifo,
        make_folder,
        make_unreadable,
        make_large,
    ],
    ids=["deep", "digits", "escapes", "fifo", "folder", "unreadable", "large"],
)
def test_a_file_of_a_run_folder(
    run: Path, name: str, make: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    make(run / name)
    assert str(run / name) in refused(capsys, "report", run, "--out", run / "page.html")


NUMBERS = ["1e999", f"1{'0' * 400}", "NaN", "-Infinity"]


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("summary.json", r'"wall_seconds": \S+'),
        ("summary.json", r'"all": [\d.]+'),
        ("summary.json", r'"uplink_bytes": \d+'),
        ("rounds.jsonl", r'"received.accuracy": [\d.]+'),
        ("rounds.jsonl", r'"uplink_bytes": \d+'),
        ("rounds.jsonl", r'"width": [\d.]+'),
        ("analysis.json", r'"reported": \S+'),
        ("analysis.json", r'"mean": [\d.]+'),
    ],
)
def test_numbers_that_are_none(
    run: Path, name: str, place: str, number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make_analysis(run, json.loads((run / "summary.json").read_text()))
    text = (run / name).read_text()
    key = place.partition(" ")[0]
    changed = re.sub(place, f"{key} {number}{',' if place.endswith('S+') else ''}", text, count=1)
    assert changed != text
    (run / name).write_text(changed)
    assert str(run / name) in refused(capsys, "report", run, "--out", run / "page.html")


@pytest.mark.parametrize(
    "words",
    [
        ["run", f"rounds={DIGITS}"],
        ["run", f"rounds={DEEP}"],
        ["run", f"rounds={{{'.'.join('a' * 20_000)}=1}}"],
        ["run", f"alpha={'9' * 400}"],
        ["run", f"seed={'9' * 400}"],
        ["run", "method=fedprox", f"method.mu={'9' * 400}"],
        ["run", f"fleet={DIGITS}+1"],
        ["run", f"fleet={DIGITS}*resnet18:ann"],
        ["run", f"fleet=1*resnet18:snn:T={DIGITS}"],
        ["run", f"partition=classes:{DIGITS}"],
        ["run", f"partition=quantity:{DIGITS}"],
        ["run", f"partition=flwr:X({'(' * 5000}"],
        ["run", f"partition=flwr:X(a={'-' * 5000}1)"],
        ["run", f"device=cuda:{DIGITS}"],
        ["run", "x\x1b[31m=1"],
        ["run", "method=x\x1b]0;title\x07\x9b"],
        ["run", "data=npz:\udcff.npz"],
        ["run", "smoke", "data=npz:~nobody-of-this-name/x.npz"],
        ["run", "smoke", f"data=npz:{LONG}"],
        ["run", "smoke", f"data=folder:{LONG}"],
        ["run", "--engine", "pool", "--workers", DIGITS],
        ["run", f"{LONG}.toml"],
        ["run", "--out", LONG],
        ["run", "--resume", "--out", LONG],
        ["run", "smoke", "data=cifar10", "--data-root", LONG],
        ["list", "--import", f"{LONG}.py"],
        ["list", "--import", f"{'a/' * 3000}x.py"],
        ["report", LONG],
        ["report", ".", "--out", LONG],
        ["report", ".", "--figures", LONG],
        ["analyze", LONG],
        ["costs", "--run", LONG],
        ["costs", f"classes={DIGITS}"],
        ["costs", f"classes={'9' * 400}"],
        ["costs", f"image_size={'9' * 15}"],
        ["flower", "init", LONG],
        ["reproduce", "main", "--scale", "smoke", "--out", LONG],
        ["reproduce", "main", "--scale", "smoke", "--seeds", DIGITS],
        ["reproduce", "main", "--scale", "smoke", "--seeds", "9" * 300],
        ["reproduce", "main", "--scale", "smoke", "--jobs", DIGITS],
    ],
    ids=lambda words: " ".join(words)[:40].encode("ascii", "replace").decode(),
)
def test_words_of_the_command_line(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(capsys, *words)
    assert not [*tmp_path.rglob("rounds.jsonl")]


@pytest.mark.parametrize("text", ["npz:a\\u0000b", "folder:a\\u0000b", "npz:a\\u001b]0;x\\u0007b", "npz:\\u202e"])
def test_names_in_a_specification(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("spec.toml").write_text(f'data = "{text}"\n')
    refused(capsys, "run", "spec.toml", "--out", "run")


@pytest.mark.parametrize("make", [make_fifo, make_folder, make_unreadable, make_large])
def test_a_specification_that_is_no_file(
    make: Callable[[Path], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path / "spec.toml")
    assert str(tmp_path) in refused(capsys, "run", tmp_path / "spec.toml", "--out", tmp_path / "run")


def test_folders_in_folders(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    handle = os.open(run, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("a", dir_fd=handle)
        inner = os.open("a", os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = inner
    os.close(handle)
    (run / "loop").symlink_to(".")
    try:
        refused(capsys, "report", run)
    finally:
        subprocess.run(["rm", "-rf", run / "a"], check=True)  # shutil's, too, has no end
    assert cli.main(["report", str(run)]) == 0


TINY = [
    *("smoke", "method=standalone", "fleet=1*resnet18@0.125:ann", "rounds=2", "diagnose_every=1", "partition=iid"),
    *("train_per_class=4", "test_per_class=2", "feature_dim=16"),
]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"next_round": 10**9}, "its index is for round 1000000000"),
        ({"next_round": -1}, "its index is for round -1"),
        ({"next_round": 10**400}, "damaged"),
        ({"seconds": float("inf")}, "damaged"),
        ({"clients": DEEP}, "damaged"),
    ],
)
def test_a_checkpoint_with_a_checksum_of_its_own(
    change: dict[str, Any], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever can write it can make the checksum, too."""
    out = tmp_path / "run"
    assert cli.main(["run", *TINY, "--out", str(out)]) == 0
    (out / "summary.json").unlink()
    *_, index = sorted(out.glob("checkpoint/*/checkpoint.json"))
    content = json.loads(index.read_text()) | change
    del content["sha256"]
    text = json.dumps(content | {"sha256": _seal(content)})
    index.write_text(text.replace(f'"{DEEP}"', DEEP))
    assert words in refused(capsys, "run", "--resume", "--out", out)


NAME = "=\x1b[31mx|`y`<b>[z](u)\u202e\n$\\frac{"


def spoil(folder: Path, **entries: Any) -> None:
    summary = json.loads((folder / "summary.json").read_text())
    summary["clients"][0]["model"] = summary["clients"][0]["kind"] = NAME
    (folder / "summary.json").write_text(json.dumps(summary | {"method": NAME, "data": NAME} | entries))


def test_names_in_tables_figures_and_pages(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = run.parent / "other"
    make_run(other, make_spec(rounds=2, seed=7, fleet="1*resnet18@0.25:ann,1*resnet18@0.25:snn"))
    spoil(run)
    spoil(other)
    for words in ([], ["--markdown"], ["--compare"], ["--compare", "--markdown"]):
        assert cli.main(["report", str(run), str(other), *words]) == 0
        out, _ = capsys.readouterr()
        assert out.replace("\n", "").isprintable()
        if "--markdown" in words:
            rows = [line for line in out.splitlines() if line.startswith("|")]
            assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows[:4]}) == 1
            assert "<b>" not in out
            assert "](u)" not in out
            assert not re.search(r"(?<!\\)`", out)
    pytest.importorskip("matplotlib")
    words = ["--out", str(run / "page.html"), "--figures", str(run / "figures")]
    assert cli.main(["report", str(run), str(other), *words]) == 0
    assert "<b>" not in (run / "page.html").read_text()


def test_a_page_of_60_000_classes_stays_small(run: Path) -> None:
    clients = json.loads((run / "summary.json").read_text())["clients"]
    for client in clients:
        client["labels"] = [1] * 60_000
    spoil(run, clients=clients)
    assert cli.main(["report", str(run), "--out", str(run / "page.html")]) == 0
    assert (run / "page.html").stat().st_size < 500_000
    spoil(run, clients=[clients[0], clients[1] | {"labels": [1]}])
    assert cli.main(["report", str(run), "--out", str(run / "page.html")]) == 2


@pytest.mark.parametrize("words", ["list methods", "show paper", "list all"])
@pytest.mark.parametrize("reader", ["head -1", "true"])
def test_a_reader_that_leaves(words: str, reader: str) -> None:
    """`asfedbridge ... | head` is quiet, also where all of the text fits into one buffer."""
    command = f"{sys.executable} -m asfedbridge {words} | {reader}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, env=os.environ, timeout=100)
    assert done.stderr == ""
