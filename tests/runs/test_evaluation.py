"""All clients of a run on one data set, and on each other's test images."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.runs.small_run import play

import asfedbridge as afb
from asfedbridge.cli import main
from asfedbridge.core.errors import BadInput
from asfedbridge.report.page import Lead, render_page
from asfedbridge.report.runs import gather
from asfedbridge.runs.evaluation import evaluate_run, read_evaluation
from asfedbridge.runs.setting import prepare

PAIR = "resnet18@0.0625:ann,resnet18@0.0625:snn"


def silent(line: str) -> None:
    pass


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("evaluated") / "run"
    play(out, fleet=PAIR)
    return out


def test_each_client_on_the_test_images_of_all(run: Path) -> None:
    found = evaluate_run(run, silent, data_root=run.parent)
    clients = afb.load(run).clients
    setting = prepare(afb.recipe(run / "spec.toml"), run.parent)
    assert [row[n] for n, row in enumerate(found.matrix)] == [client.accuracy for client in clients]
    other = setting.shards[1]
    assert found.matrix[0][1] == clients[0].evaluate((other.x_test.movedim(1, -1), other.y_test)).accuracy
    assert found.shards == (0, 1)
    assert found.file == run / "evaluation.json"
    again = read_evaluation(run)
    assert again is not None
    assert (again.matrix, again.clients, again.data) == (found.matrix, found.clients, "own test images")
    page = render_page(gather([run]), Lead())
    assert "Generalisation: accuracy of each client" in page


def test_on_other_data_and_one_client(run: Path, tmp_path: Path) -> None:
    found = evaluate_run(run, silent, data="digits", data_root=tmp_path)
    assert [client.images for client in found.clients] == [359, 359]
    assert found.matrix == ()
    before = (run / "evaluation.json").read_bytes()
    one = evaluate_run(run, silent, data="digits", client=1, fused=True, data_root=tmp_path)
    assert [client.id for client in one.clients] == [1]
    assert (run / "evaluation.json").read_bytes() == before  # of all clients
    with pytest.raises(BadInput, match=r"client=5: .* it has 0 to 1"):
        evaluate_run(run, silent, data="digits", client=5, data_root=tmp_path)


def test_client_files_alone_need_data(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run / "clients", tmp_path / "node")
    with pytest.raises(BadInput, match=r"is not a run folder, .* data=SOURCE"):
        evaluate_run(tmp_path / "node", silent, data_root=tmp_path)
    found = evaluate_run(tmp_path / "node", silent, data="digits", data_root=tmp_path)
    assert [client.id for client in found.clients] == [0, 1]
    assert found.file is None
    assert not (tmp_path / "node" / "evaluation.json").exists()
    one = evaluate_run(tmp_path / "node" / "client-0001.json", silent, data="digits", data_root=tmp_path)
    assert one.clients[0].accuracy == found.clients[1].accuracy


def test_other_data_than_trained_on_are_refused(tmp_path: Path) -> None:
    play(tmp_path / "run", "standalone", fleet=PAIR, rounds=1)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    (tmp_path / "run" / "summary.json").write_text(json.dumps(summary | {"data_fingerprint": "0" * 64}))
    with pytest.raises(BadInput, match="differs from the data that the run was trained on"):
        evaluate_run(tmp_path / "run", silent, data_root=tmp_path)


@pytest.mark.parametrize(
    "content", ["[]", '{"format": 9}', '{"clients": 3}', '{"clients": [], "matrix": [[1]], "shards": [1]}']
)
def test_a_damaged_evaluation_is_said(tmp_path: Path, content: str) -> None:
    (tmp_path / "evaluation.json").write_text(content)
    with pytest.raises(BadInput, match=r"evaluation\.json"):
        read_evaluation(tmp_path)


def test_the_command_evaluates(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(run), "--json"]) == 0
    said = capsys.readouterr()
    printed = json.loads(said.out)
    assert printed["clients"][1]["sops"] > 0
    assert printed["matrix"][0][0] == afb.load(run).clients[0].accuracy
    assert "Generalisation" in said.err
    assert f"written: {run / 'evaluation.json'}" in said.err


def test_the_command_predicts(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(tmp_path / "a.png")
    expected = afb.load(run).clients[1].predict(tmp_path / "a.png")
    assert main(["predict", str(run), "--client", "1", str(tmp_path), "--json"]) == 0
    (printed,) = json.loads(capsys.readouterr().out)
    assert printed["image"] == str(tmp_path / "a.png")
    assert printed["class"] == expected.names[0]
    assert printed["probabilities"] == pytest.approx(expected.probabilities[0].tolist())
    words = [str(run / "clients" / "client-0001.json"), str(tmp_path / "a.png"), "--top", "99", "--fused"]
    assert main(["predict", *words]) == 0
    table = capsys.readouterr().out
    assert "choice 10" in table
    assert "choice 11" not in table


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["predict", "RUN", "--client", "7", "x.png"], "--client 7: RUN has no such client; it has 0 to 1"),
        (["predict", "RUN", "x.png"], "choose a client with --client ID; it has 0 to 1"),
        (["predict", "RUN", "--client", "0", "x.png"], "x.png: no such file"),
        (["predict", "nowhere", "x.png"], "nowhere: no such file or folder"),
        (["evaluate", "nowhere", "--data", "digits"], "nowhere: no such file or folder"),
        (["evaluate", "RUN", "--data", "digitz"], "digitz"),
        (["evaluate", "RUN", "--client", "7"], "--client 7"),
        (["predict", "RUN", "--client", "x", "x.png"], "invalid client id 'x'"),
        (["predict", "UNFINISHED", "--client", "0", "x.png"], "--resume, or use the clients .* with --checkpoint"),
        (["evaluate", "UNFINISHED"], "is not finished; finish it with --resume, or .* --checkpoint"),
        (["predict", "UNFINISHED", "--client", "0", "--checkpoint", "x.png"], "has no checkpoint yet"),
    ],
)
def test_wrong_words_are_told_in_one_line(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:

    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    shutil.copy(run / "spec.toml", unfinished)
    places = {"RUN": str(run), "UNFINISHED": str(unfinished)}
    assert main([places.get(word, word) for word in words]) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert re.search(says.replace("RUN", re.escape(str(run))), error)
