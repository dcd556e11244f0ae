"""Clients of a run folder, exported from Python and on the command line."""

import json
import re
from pathlib import Path

import nir
import numpy as np
import pytest
import torch
from tests.runs.small_run import play

import asfedbridge as afb
from asfedbridge.cli import main
from asfedbridge.core.errors import BadInput


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("export") / "run"
    play(place)
    return place


def test_nir_is_verified_on_the_command_line(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "client1.nir"
    words = ["export", str(folder), "--client", "1", "--format", "nir", "--out", str(out), "--verify"]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"written: {out}"
    for simulator in ("spikingjelly", "snntorch", "norse"):
        (line,) = [line for line in lines if line.startswith(f"{simulator}: largest difference in logits ")]
        assert float(line.split(";")[0].split()[-1]) <= 1e-5
    assert "MISMATCH" not in "".join(lines)
    card = json.loads(out.with_name("client1.nir.json").read_text())
    assert card["client"]["kind"] == "snn"
    assert 0 <= card["measured"]["accuracy"] <= 100
    assert json.loads(nir.read(out).metadata["card"])["training"]["method"] == "as-fedbridge"


def test_a_mismatch_is_an_exit_code(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bias is wrong in the file."""
    write = nir.write

    def spoil(path: Path, graph: nir.NIRGraph) -> None:
        graph.nodes["classifier"].bias += 0.01
        write(path, graph)

    monkeypatch.setattr(nir, "write", spoil)
    assert main(["export", str(folder), "--client", "1", "--out", str(tmp_path / "x.nir"), "--verify"]) == 1
    assert capsys.readouterr().out.count("(MISMATCH)") == 3


def test_a_client_exports_itself_and_its_bridge(folder: Path, tmp_path: Path) -> None:
    client = afb.load(folder).clients[3]
    found = client.export(tmp_path / "client3.safetensors", verify=True)
    assert {name: outcome.mismatch for name, outcome in found.outcomes.items()} == {"loader": False}
    bridge = client.export(tmp_path / "bridge3.pt2", bridge=True, verify=True)
    assert bridge.outcomes["torch.export"].difference <= 1e-5
    assert bridge.card["client"]["model"] == "bridge"
    pixels = torch.zeros(1, client.card.channels, 8, 8, dtype=torch.uint8)
    with torch.no_grad():
        logits = torch.export.load(tmp_path / "bridge3.pt2").module()(pixels)
    assert np.isfinite(logits.numpy()).all()


def test_a_card_can_do_without_the_data(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BadInput("data=digits: not here")

    monkeypatch.setattr("asfedbridge.runs.labelled.load", refuse)
    client = afb.load(folder).clients[1]
    assert "measured" not in client.export(tmp_path / "x.safetensors").card
    with pytest.raises(BadInput, match=r"data=digits: not here .*data=SOURCE gives other images"):
        client.export(tmp_path / "x.safetensors", verify=True)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--client", "9", "--out", "x.onnx"], "--client 9: .* has no such client; it has 0 to 3"),
        (
            ["--client", "0", "--out", "x.nir"],
            "cannot be exported to NIR: it has no spiking neuron; use --format onnx or --format torch",
        ),
        (["--client", "0", "--out", "x.tflite"], "--out x.tflite: unknown suffix; use one of .pt2"),
        (["--client", "0", "--out", "x.onnx", "--format", "nir"], "--format nir needs a file name ending in .nir"),
    ],
)
def test_bad_input_is_one_line(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    why: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["export", str(folder), *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(why, line), line
    assert not list(tmp_path.iterdir())
