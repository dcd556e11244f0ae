"""Client files as runs write them, and that they are what the summary judges."""

import hashlib
import json
from pathlib import Path

import pytest
from tests.runs.small_run import make_spec, play

import asfedbridge as afb
from asfedbridge.core.errors import BadInput
from asfedbridge.core.method import METHODS
from asfedbridge.runs.callback import Run
from asfedbridge.runs.client_file import read_client
from asfedbridge.runs.run import execute
from asfedbridge.runs.setting import prepare

PAIR = "resnet18@0.0625:ann,resnet18@0.0625:snn"


def contents(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.iterdir())}


@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_file_has_the_accuracy_of_the_summary(tmp_path: Path, method: str) -> None:
    fleet = PAIR.replace("0.0625", "0.125")  # as narrow as every method takes it
    spec = play(tmp_path / "run", method, fleet=fleet, rounds=1)
    setting = prepare(spec, tmp_path)
    run = afb.load(tmp_path / "run")
    assert len(run.clients) == len(setting.clients)
    for client, shard in zip(run.clients, setting.shards, strict=True):
        found = client.evaluate((shard.x_test.movedim(1, -1), shard.y_test))
        assert found.accuracy == client.accuracy == client.card.accuracy
        assert client.card.point == run.summary["point"] == METHODS[method].reports
        if METHODS[method].fused_with:
            fused = client.evaluate((shard.x_test.movedim(1, -1), shard.y_test), fused=True)
            assert fused.accuracy == client.card.fused_accuracy
    if METHODS[method].fused_with:
        cards = [client.card for client in run.clients]
        mean = sum(card.fused_accuracy or 0 for card in cards) / len(cards)
        assert run.summary["fused"]["all"] == pytest.approx(mean)


@pytest.mark.long
def test_engines_write_the_same_files(tmp_path: Path) -> None:
    play(tmp_path / "local")
    play(tmp_path / "pool", engine="pool")
    assert len(contents(tmp_path / "local" / "clients")) == 8
    assert contents(tmp_path / "local" / "clients") == contents(tmp_path / "pool" / "clients")


def test_who_did_not_work_in_the_last_round_has_a_file_too(tmp_path: Path) -> None:
    play(tmp_path / "run", fleet=f"{PAIR},{PAIR}", participation=0.5, rounds=2)
    run = afb.load(tmp_path / "run")
    drawn = [client for client in run.clients if client.accuracy is not None]
    assert drawn
    assert all(client.card.accuracy == client.accuracy for client in drawn)


def test_the_weight_of_a_fitted_fusion_is_kept(tmp_path: Path) -> None:
    play(tmp_path / "run", fleet=PAIR, **{"method.fused_holdout": 0.3})
    run = afb.load(tmp_path / "run")
    last = {record["client"]: record for record in run.rounds if record["round"] == 2}
    assert [c.card.fused_weight for c in run.clients] == [last[c.id]["received.fused_weight"] for c in run.clients]
    assert any(c.card.fused_weight != 0.5 for c in run.clients)


def test_what_is_written_can_be_chosen(tmp_path: Path) -> None:
    spec = play(tmp_path / "backbone", fleet=PAIR, rounds=1, client_files="backbone")
    card, tensors = read_client(tmp_path / "backbone" / "clients" / "client-0001.json")
    assert card.extras == ()
    assert {name.partition("/")[0] for name in tensors} == {"backbone"}
    client = afb.load(tmp_path / "backbone").clients[1]
    assert client.bridge is None
    with pytest.raises(BadInput, match=r"fused: client 1 .* does not contain it"):
        client.predict(prepare(spec, tmp_path).shards[0].x_test.movedim(1, -1), fused=True)
    none = play(tmp_path / "none", fleet=PAIR, rounds=1, client_files="none")
    assert not (tmp_path / "none" / "clients").exists()
    assert none.digest() == spec.digest()
    with pytest.raises(BadInput, match=r"has no client files .* checkpoint=True"):
        _ = afb.load(tmp_path / "none").clients[0].module


def test_a_run_that_goes_back_has_no_trained_clients_until_it_ends(tmp_path: Path) -> None:
    out = tmp_path / "run"
    spec = play(out, fleet=PAIR, rounds=2, client_files="backbone")
    before = contents(out / "clients")
    (out / "clients" / "mine.txt").write_text("stays")

    class Stop(afb.Callback):
        def on_run_begin(self, run: object) -> None:
            assert sorted(file.name for file in (out / "clients").iterdir()) == ["mine.txt"]

    execute(spec, out, tmp_path, [Stop()], resume=True, from_round=1)
    (out / "clients" / "mine.txt").unlink()
    assert contents(out / "clients") == before


def test_a_stopped_run_has_its_clients(tmp_path: Path) -> None:
    class Stop(afb.Callback):
        def on_round_end(self, run: Run, rnd: afb.Round, records: object) -> None:
            run.stop("enough")

    execute(make_spec(fleet=PAIR, rounds=3), tmp_path / "run", tmp_path, [Stop()])
    card = afb.load(tmp_path / "run").clients[0].card
    assert card.rounds == 1
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["clients"][0]["accuracy"] == card.accuracy
