"""Clients of a run that has not ended, or that kept no files."""

from pathlib import Path

import pytest
from tests.runs.small_run import make_spec, play

import asfedbridge as afb
from asfedbridge.core.errors import BadInput
from asfedbridge.runs.callback import Run
from asfedbridge.runs.result import Result
from asfedbridge.runs.run import execute
from asfedbridge.runs.toml import write_toml

PAIR = "resnet18@0.0625:ann,resnet18@0.0625:snn"


class After(afb.Callback):
    """Ends a run after its second round: politely, or not."""

    def __init__(self, politely: bool) -> None:
        self.politely = politely

    def on_round_end(self, run: Run, rnd: afb.Round, records: object) -> None:
        if rnd.index == 1:
            if not self.politely:
                raise KeyboardInterrupt
            run.stop("enough")


def assert_same_clients(one: Result, other: Result) -> None:
    assert len(one.clients) == len(other.clients) == 2
    for mine, theirs in zip(one.clients, other.clients, strict=True):
        assert mine.card == theirs.card
        for network in ("module", "bridge"):
            a, b = getattr(mine, network), getattr(theirs, network)
            assert (a is None) == (b is None)
            if a is not None:
                assert all(t.equal(b.state_dict()[name]) for name, t in a.state_dict().items())


@pytest.mark.long
@pytest.mark.parametrize("method", ["fedavg", "as-fedbridge"])
def test_the_last_checkpoint_offers_its_clients(tmp_path: Path, method: str) -> None:
    spec = make_spec(method, fleet=PAIR, rounds=4)
    with pytest.raises(KeyboardInterrupt):
        execute(spec, tmp_path / "killed", tmp_path, [After(politely=False)])
    with pytest.raises(BadInput, match=r"is not finished; finish it with resume=True, or .* checkpoint=True"):
        afb.load(tmp_path / "killed")
    found = afb.load(tmp_path / "killed", checkpoint=True)
    assert "is not finished" in found.summary["stopped_early"]["reason"]
    execute(spec, tmp_path / "stopped", tmp_path, [After(politely=True)])
    assert_same_clients(found, afb.load(tmp_path / "stopped"))
    assert [client.card.rounds for client in found.clients] == [2, 2]


@pytest.mark.long
def test_a_run_without_files_offers_the_clients_of_its_end(tmp_path: Path) -> None:
    play(tmp_path / "with", fleet=PAIR)
    play(tmp_path / "without", fleet=PAIR, client_files="none")
    assert_same_clients(afb.load(tmp_path / "with"), afb.load(tmp_path / "without", checkpoint=True))


def test_there_must_be_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is not a run folder"):
        afb.load(tmp_path, checkpoint=True)
    (tmp_path / "spec.toml").write_text(write_toml(make_spec()))
    with pytest.raises(BadInput, match="no checkpoint yet"):
        afb.load(tmp_path, checkpoint=True)
