"""All bytes between a SuperNode and its SuperLink over a whole run, with a Bridge of real size: what is declared is
there, what is private and the images are not, and there is little beside the payload. Then the line is cut."""

import dataclasses
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor

from asfedbridge.runs.recipes import quickstart
from asfedbridge.runs.record_files import read_events, read_rounds
from asfedbridge.runs.run import execute
from asfedbridge.runs.setting import prepare
from asfedbridge.runs.spec import Spec, apply_overrides

pytest.importorskip("flwr")
from tests.deploy.line import Line, bodies
from tests.deploy.traces import count_found, slices, tensor_slices

from asfedbridge.deploy.app_folder import write_app
from asfedbridge.deploy.local_cluster import Loopback
from asfedbridge.deploy.local_run import PRELOAD, follow
from asfedbridge.deploy.sockets import address_of, path_of

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
WATCHED = 1  # the client at the other end of the line
REAL_SIZE = 4116272  # bytes of a Bridge's body: the paper's 3.93 MB
BODY = "module/bridge/body."  # in a state; without it, the name in a payload


@pytest.fixture
def spec(tmp_path: Path) -> Spec:
    """Images of noise: what is found of them is no coincidence."""
    draw = np.random.default_rng(7)
    images = {f"x_{part}": draw.integers(0, 256, (n, 16, 16, 3), np.uint8) for part, n in (("train", 40), ("test", 20))}
    np.savez(tmp_path / "noise.npz", y_train=np.arange(40) % 10, y_test=np.arange(20) % 10, **images)
    changes = {
        "data": f"npz:{tmp_path}/noise.npz", "fleet": "1*resnet18@0.125:ann,1*resnet18@0.125:snn", "T": 2, "rounds": 3,
        "partition": "iid", "batch_size": 10, "method.bridge_width": 1.0, "threads": 1,
    }  # fmt: skip
    return apply_overrides(quickstart(), changes)


class Watched:
    """A federation on loopback, one of its nodes behind a line."""

    def __init__(self, folder: Path, clients: int) -> None:
        self.folder, self.states = folder, {i: folder / "states" / str(i) for i in range(clients)}
        self.flower = Loopback(folder / "flower", {}, PRELOAD)
        way = address_of("line")
        self.line = Line(path_of(self.flower.sockets, way), path_of(self.flower.sockets, self.flower.address))
        for client, states in self.states.items():
            config = {"client-id": client, "state-dir": str(states)}
            self.flower.start_node(client, config, way if client == WATCHED else None)

    def begin(self, spec: Spec, out: Path, **config: Any) -> Path:
        reports = out.with_name("reports")
        reports.mkdir()
        write_app(reports / "app", spec, {"out": str(out), "report-to": str(reports), **config})
        self.flower.submit(reports / "app")
        return reports


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """For both runs; the bytes are counted in the first."""
    made = Watched(tmp_path_factory.mktemp("fleet"), 2)
    yield made
    made.flower.close()
    made.line.close()


def keep_states(states: Path, kept: Path, ended: threading.Event) -> None:
    """Copy each state of a node before it makes room for a later one."""
    kept.mkdir()
    while not ended.wait(0.02):
        for index in states.rglob("states.json"):  # names files that are whole
            with suppress(FileNotFoundError):
                for name in json.loads(index.read_bytes())["states"].keys() - {file.name for file in kept.iterdir()}:
                    shutil.copy(index.with_name(name), kept / "part")
                    (kept / "part").rename(kept / name)


def both_layouts(x: Tensor) -> list[bytes]:
    return [x.contiguous().numpy().tobytes(), x.permute(0, 2, 3, 1).contiguous().numpy().tobytes()]


def test_only_what_is_declared_leaves_a_node(watched: Watched, spec: Spec, tmp_path: Path) -> None:
    out, kept, ended = tmp_path / "run", tmp_path / "kept", threading.Event()
    watcher = threading.Thread(target=keep_states, args=(watched.states[WATCHED], kept, ended))
    watcher.start()
    try:
        follow(watched.flower, watched.begin(spec, out), print)
    finally:
        ended.set()
        watcher.join()
    assert read_events(out) == []

    calls = watched.line.calls
    sent = [body for call in calls for _, body in bodies(bytes(call.up))]
    got = [body for call in calls for _, body in bodies(bytes(call.down))]
    up = b"".join([bytes(call.up) for call in calls] + sent)
    down = b"".join([bytes(call.down) for call in calls] + got)

    # What is declared is found, all of it: the search can see.
    files = sorted(kept.glob("client-*"))
    assert [f.name[-18:-12] for f in files] == [f"{n:06d}" for n in range(1, spec.rounds + 1)]
    setting = prepare(spec, tmp_path)
    declared = spec.method.uploads(setting.task, setting.clients[WATCHED])
    private: list[Tensor] = []
    for file in files:
        state = safetensors.torch.load_file(file)
        body = {name: t for name, t in state.items() if name.removeprefix(BODY) in declared and name.startswith(BODY)}
        needles = slices(*(t.numpy().tobytes() for t in body.values()))
        assert len(body) == len(declared)
        assert len(needles) > 0.9 * REAL_SIZE / 32
        assert count_found(needles, up) == len(needles)
        private += [t for name, t in state.items() if name not in body]
    final = safetensors.torch.load_file(out / f"checkpoint/round-{spec.rounds:06d}/server.safetensors")
    needles = slices(*(t.numpy().tobytes() for t in final.values()))
    assert count_found(needles, down) == len(needles) > 0.9 * REAL_SIZE / 32

    # What is private is not: backbone, head, momentum, running statistics of every round, in full and half precision.
    needles = tensor_slices(private)
    assert len(needles) > 50_000
    assert count_found(needles, up) == 0

    # Nor are images: as they are stored and as a model sees them, by channels and by pixels.
    shard = setting.shards[WATCHED]
    seen = [x for x, _ in (*shard.train_batches_plain(20), *shard.test_batches(20))]
    stored = [torch.as_tensor(x) for x in (shard.x_train, shard.x_test)]
    assert stored[0].dtype == torch.uint8
    needles = slices(*(layout for x in (*stored, *seen, *(x.half() for x in seen)) for layout in both_layouts(x)))
    assert len(needles) > 5000
    assert count_found(needles, up) == 0

    # And there is little beside the payload.
    mine = [r for r in read_rounds(out) if r["client"] == WATCHED]
    counted = [sum(r[f"{way}link_bytes"] for r in mine) for way in ("up", "down")]
    assert counted == [spec.rounds * REAL_SIZE, (spec.rounds + 1) * REAL_SIZE]
    measured = [sum(map(len, sent)), sum(map(len, got))]
    wire = [sum(len(getattr(call, way)) for call in calls) for way in ("up", "down")]
    print(json.dumps({"payload": counted, "bodies": measured, "with HTTP headers": wire, "messages": len(sent)}))
    for bodies_bytes, payload_bytes in zip(measured, counted, strict=True):
        assert payload_bytes < bodies_bytes < 1.02 * payload_bytes
    assert sum(wire) < 1.02 * sum(counted)


def wait_for(condition: Callable[[], bool], flower: Loopback, seconds: float = 900) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        flower.check()
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_line_that_is_cut_and_mended(watched: Watched, spec: Spec, tmp_path: Path) -> None:
    """For seconds: nobody notices, the bits are those of `local`. For longer than a turn may take: it is named."""
    spec = dataclasses.replace(spec, rounds=12)
    out = tmp_path / "run"
    reports = watched.begin(spec, out, **{"min-clients": 1, "round-timeout": 45.0})

    def played(client: int) -> int:
        return max((r["round"] for r in read_rounds(out) if r["client"] == client), default=-1)

    wait_for(lambda: played(WATCHED) >= 0, watched.flower)
    watched.line.cut()
    time.sleep(8)
    watched.line.mend()
    wait_for(lambda: played(WATCHED) >= 2, watched.flower)
    assert read_events(out) == []
    watched.line.cut()
    wait_for(lambda: read_events(out) != [], watched.flower)
    first = read_events(out)[0]
    assert (first["client"], first["event"]) in [(WATCHED, "timeout"), (WATCHED, "lost"), (WATCHED, "absent")]
    watched.line.mend()
    follow(watched.flower, reports, print)
    events = [(e["client"], e["event"]) for e in read_events(out)]
    assert events[-1] == (WATCHED, "returned")
    assert {client for client, _ in events} == {WATCHED}
    missed = {e["round"] for e in read_events(out) if e["event"] != "returned"}
    assert {r["round"] for r in read_rounds(out) if r["client"] == WATCHED} == set(range(13)) - missed
    assert {r["round"] for r in read_rounds(out) if r["client"] == 0} == set(range(13))

    local = tmp_path / "local"
    execute(spec, local, tmp_path)
    before = [{k: v for k, v in r.items() if k != "seconds"} for r in read_rounds(local) if r["round"] < min(missed)]
    ours = [{k: v for k, v in r.items() if k != "seconds"} for r in read_rounds(out) if r["round"] < min(missed)]
    assert ours == before
