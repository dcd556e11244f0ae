"""Targets: what is read from the disk when a run goes on or is looked at."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
from tests.fuzz.harness import Attempt, Target, Verdict, judge
from tests.fuzz.mutations import Steps, mutate_bytes, mutate_lines, mutate_plain
from tests.fuzz.wire import IDENTITY, RUN, small_setting
from tests.report.folders import make_analysis, make_run, make_spec
from tests.runs.test_client_file import CARD, reseal, tensors_of

from asfedbridge.core.errors import BadInput
from asfedbridge.core.payload import Payload
from asfedbridge.core.task import Round
from asfedbridge.engines import checkpoint
from asfedbridge.engines.host import ClientHost, state_name
from asfedbridge.engines.local import LocalEngine
from asfedbridge.methods.fedproto import FedProto
from asfedbridge.report.analysis_figures import analyses
from asfedbridge.report.comparison import Entry, compare
from asfedbridge.report.runs import gather
from asfedbridge.report.tables import client_rows, run_rows
from asfedbridge.runs.analysis_record import read_analysis
from asfedbridge.runs.client_builder import method_of, rebuild_client
from asfedbridge.runs.client_file import read_client, write_client
from asfedbridge.runs.folder import RunFolder, read_spec, read_summary
from asfedbridge.runs.record_files import read_releases
from asfedbridge.runs.trained import TrainedClient

REFUSALS = (BadInput,)


class Shelf:
    """A folder that is as it was before every attempt, but for one mutated file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.contents = {file: file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}

    def reset(self) -> None:
        for file in self.folder.rglob("*"):
            if file.is_file() and file not in self.contents:
                file.unlink()
        for file, content in self.contents.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            if not file.exists() or file.read_bytes() != content:
                file.write_bytes(content)

    def damage(self, file: Path, steps: Steps) -> None:
        self.reset()
        file.write_bytes(mutated_text(self.contents[file], steps, file.suffix))


def mutated_text(content: bytes, steps: Steps, suffix: str) -> bytes:
    """As bytes, as lines, or as the values it holds."""
    ways: list[Callable[[], bytes]] = [lambda: mutate_bytes(content, steps)]
    if suffix in (".toml", ".jsonl", ".json", ".txt"):
        ways.append(lambda: mutate_lines(content, steps))
    if suffix == ".json":
        ways.append(lambda: as_json(mutate_plain(json.loads(content), steps)))
    if suffix == ".jsonl":
        records = [json.loads(text) for text in content.splitlines() if text]
        ways.append(lambda: b"".join(map(line, mutate_plain(records, steps))))
    return ways[steps[0].operation // 16 % len(ways)]()


def as_json(value: Any) -> bytes:
    return json.dumps(value, default=str).encode()


def line(value: Any) -> bytes:
    return as_json(value) + b"\n"


def bits(tensors: Payload) -> dict[str, tuple[str, bytes]]:
    return {name: (f"{t.dtype} {tuple(t.shape)}", t.numpy().tobytes()) for name, t in tensors.items()}


def prepare_checkpoint(folder: Path) -> Attempt:
    """Index, server and client states: all of it is checked, so only what reads the same is harmless."""
    setting, method, root = small_setting(folder), FedProto(), folder / "checkpoint"

    def engine() -> LocalEngine:
        clients = root / checkpoint.CLIENTS
        return LocalEngine(method, setting.task, setting.clients, setting.shards, folder=clients)

    first = engine()
    up = first.train(Round(0, 2), {0: {}})[0]
    checkpoint.save(root, 1, up.payload, first, IDENTITY, seconds=2.5)
    shelf = Shelf(root)
    files = list(shelf.contents)
    reader = engine()

    def read() -> Any:
        found = checkpoint.load(root, reader, IDENTITY)
        assert found
        return found.next_round, bits(found.server), found.seconds, bits(reader.client_state(0)), dict(found.states)

    expected = read()
    index = next(file for file in files if file.suffix == ".json")

    def legitimate(found: Any) -> None:
        assert found == expected
        assert all(file.exists() for file in files)

    def attempt(steps: Steps) -> Verdict:
        chosen = [*files, index, index][steps[0].value % (len(files) + 2)]
        shelf.damage(chosen, steps)
        return judge(read, legitimate, REFUSALS, str(root))

    return attempt


def prepare_states(folder: Path) -> Attempt:
    """A node's folder: the state it goes to is that of the round before, to the last bit."""
    pytest.importorskip("flwr")
    from asfedbridge.deploy.node_states import NodeStates

    setting, method = small_setting(folder), FedProto()

    def host(states: Any) -> ClientHost:
        return ClientHost(method, setting.task, setting.clients, setting.shards, capacity=1, folder=states.folder)

    for index in range(2):
        states = NodeStates(folder / "states", RUN, 0)
        works = host(states)
        states.go_to(works, index, index)
        works.turn(0, {}, Round(index, 9))
        states.keep(works, index, index)
    expected = bits(works.state(0))
    shelf = Shelf(states.folder)
    files = [states.folder / "states.json", states.folder / state_name(0, 2)]

    def read() -> Any:
        fresh = host(states)
        states.go_to(fresh, 2, 2)
        return bits(fresh.state(0))

    assert read() == expected

    def attempt(steps: Steps) -> Verdict:
        shelf.damage(files[steps[0].value % len(files)], steps)
        return judge(read, lambda found: same(found, expected), REFUSALS, str(states.folder))

    return attempt


def same(found: Any, expected: Any) -> None:
    assert found == expected


def finished(folder: Path) -> tuple[Path, Any]:
    spec = make_spec(rounds=2, fleet="1*resnet18@0.25:ann,1*resnet18@0.25:snn")
    make_run(folder / "run", spec)
    return folder / "run", spec


def prepare_spec(folder: Path) -> Attempt:
    """A run folder's specification: it is that of the run, or the folder is not touched."""
    path, spec = finished(folder)
    shelf = Shelf(path)

    def read() -> Any:
        RunFolder(path, spec, resume=True).hand_over()
        found = read_spec(path)
        assert found
        return found.digest()

    def attempt(steps: Steps) -> Verdict:
        shelf.damage(path / "spec.toml", steps)
        return judge(read, lambda found: same(found, spec.digest()), REFUSALS)

    return attempt


def prepare_rounds(folder: Path) -> Attempt:
    """A checkpoint knows their checksum: a run that goes on has the records it had."""
    path, spec = finished(folder)
    run = RunFolder(path, spec, resume=True)
    expected = [dict(record) for record in run.begin(2)]  # the last of its three is played again
    sha256 = run.records_sha256()
    run.hand_over()
    (path / "rounds.jsonl").write_bytes(b"".join(map(line, [*expected, {**expected[0], "round": 2}])))
    shelf = Shelf(path)

    def read() -> Any:
        again = RunFolder(path, spec, resume=True)
        try:
            return [dict(record) for record in again.begin(2, sha256)]
        finally:
            again.hand_over()

    def attempt(steps: Steps) -> Verdict:
        shelf.damage(path / "rounds.jsonl", steps)
        return judge(read, lambda found: same(found, expected), REFUSALS, str(path))

    return attempt


def prepare_releases(folder: Path) -> Attempt:
    """Who was in which release: lists of clients, and no line that says something else is passed over."""
    path, spec = finished(folder)
    run = RunFolder(path, spec, resume=True)
    for clients in ([0, 1], [0], [1], [0, 1]):
        run.add_release(clients)
    run.hand_over()
    shelf = Shelf(path)

    def legitimate(found: Any) -> None:
        assert all(type(client) is int and client >= 0 for clients in found for client in clients)

    def attempt(steps: Steps) -> Verdict:
        shelf.damage(path / "releases.jsonl", steps)
        return judge(lambda: read_releases(path), legitimate, REFUSALS, str(path))

    return attempt


def prepare_report(folder: Path) -> Attempt:
    """All files of a finished run as a report reads them: rows of its tables can be made."""
    path, _ = finished(folder)
    shelf = Shelf(path)
    files = sorted(shelf.contents)

    def read() -> Any:
        (run,) = gather([path])
        compare([Entry(run.summary, run.fields)])
        return run, run_rows([run.summary]), client_rows(run.summary)

    def attempt(steps: Steps) -> Verdict:
        shelf.damage(files[steps[0].value % len(files)], steps)
        return judge(read, lambda found: None, REFUSALS, str(path))

    return attempt


def prepare_summary(folder: Path) -> Attempt:
    """What `run --resume` shows of a run that has ended."""
    path, _ = finished(folder)
    shelf = Shelf(path)

    def read() -> Any:
        summary = read_summary(path)
        assert summary
        return run_rows([summary]), client_rows(summary)

    def attempt(steps: Steps) -> Verdict:
        shelf.damage(path / "summary.json", steps)
        return judge(read, lambda found: None, REFUSALS, str(path))

    return attempt


def prepare_analysis(folder: Path) -> Attempt:
    """Its figures can be drawn: matrices are square, numbers finite."""
    path, _ = finished(folder)
    make_analysis(path, json.loads((path / "summary.json").read_text()))
    shelf = Shelf(path)

    def attempt(steps: Steps) -> Verdict:
        shelf.damage(path / "analysis.json", steps)
        return judge(lambda: analyses(read_analysis(path)), lambda found: None, REFUSALS, str(path))

    return attempt


def prepare_client(folder: Path) -> Attempt:
    """The card and the weights of a client: what is read is what was written, to the last bit."""
    write_client(folder / "clients", CARD, tensors_of(CARD))
    path = folder / "clients" / "client-0005.json"
    shelf = Shelf(path.parent)

    def read() -> Any:
        card, tensors = read_client(path)
        return card, bits(tensors)

    expected = read()

    def attempt(steps: Steps) -> Verdict:
        shelf.damage(path.with_suffix((".json", ".safetensors")[steps[0].value % 2]), steps)
        return judge(read, lambda found: same(found, expected), REFUSALS, str(path.parent))

    return attempt


def prepare_card(folder: Path) -> Attempt:
    """A card that a stranger wrote, with a good checksum: a client is built that answers, or none."""
    write_client(folder / "clients", CARD, tensors_of(CARD))
    path = folder / "clients" / "client-0005.json"
    content = json.loads(path.read_bytes())

    def read() -> Any:
        card, tensors = read_client(path)
        return card, TrainedClient(card, rebuild_client(card, tensors), method_of(card))

    def legitimate(found: Any) -> None:
        card, client = found
        image = numpy.zeros((card.image_size, card.image_size, card.channels), numpy.uint8)
        assert client.predict(image).names[0] in card.classes

    def attempt(steps: Steps) -> Verdict:
        changed = mutate_plain(content, steps)
        path.write_bytes(as_json(changed))
        if isinstance(changed, dict):
            reseal(path, lambda card: None)
        return judge(read, legitimate, REFUSALS)

    return attempt


TARGETS = [
    Target("client file", 1_500, prepare_client),
    Target("client file with a recomputed card checksum", 1_500, prepare_card),
    Target("checkpoint", 3_000, prepare_checkpoint),
    Target("states of a node", 1_500, prepare_states),
    Target("spec.toml", 2_000, prepare_spec),
    Target("rounds.jsonl", 1_500, prepare_rounds),
    Target("releases.jsonl", 1_500, prepare_releases),
    Target("summary.json", 1_500, prepare_summary),
    Target("finished run, for a report", 1_000, prepare_report),
    Target("analysis.json", 1_500, prepare_analysis),
]
