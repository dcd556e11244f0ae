"""Dozens of SuperNodes on one machine, and thousands of rounds: all come, nobody is lost, memory stays."""

import json
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from tests.deploy.test_local_run import await_line, gone, marked, start

pytest.importorskip("flwr")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
MiB = 1 << 20


def memory(process: int) -> int:
    """Bytes that are its own: private memory, and its part of what is shared."""
    with suppress(OSError):
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def handles(process: int) -> int:
    with suppress(OSError):
        return len(list(Path(f"/proc/{process}/fd").iterdir()))
    return 0


@pytest.mark.parametrize(
    "nodes", [pytest.param(12, marks=pytest.mark.long), pytest.param(50, marks=pytest.mark.exhaustive)]
)
@pytest.mark.timeout(3600)
def test_all_nodes_come(tmp_path: Path, nodes: int) -> None:
    begin, out = time.monotonic(), tmp_path / "run"
    words = [f"fleet={nodes}*resnet18@0.125:ann", "train_per_class=12", "test_per_class=12", "rounds=2", "--json"]
    process, mark = start(out, *words)
    peak = [0]
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(2):
            peak[0] = max(peak[0], sum(memory(one) for one in marked(mark)))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        text, errors = process.communicate(timeout=3000)
    finally:
        ended.set()
        watcher.join()
    assert process.returncode == 0, errors
    summary = json.loads(text)
    told = {"nodes": nodes, "seconds": round(time.monotonic() - begin), "peak GiB": round(peak[0] / 2**30, 2)}
    print(json.dumps(told), errors)
    assert len(summary["clients"]) == nodes
    assert summary["events"] == {}
    assert gone(mark)


@pytest.mark.parametrize(
    "rounds", [pytest.param(100, marks=pytest.mark.exhaustive), pytest.param(2000, marks=pytest.mark.exhaustive)]
)
@pytest.mark.timeout(4 * 3600)
def test_memory_and_handles_are_flat(tmp_path: Path, rounds: int) -> None:
    """After the first fifth of the rounds, when caches are filled, no process grows any more."""
    out = tmp_path / "run"
    process, mark = start(out, f"rounds={rounds}", "checkpoint_every=10")
    samples = []
    for done in (rounds // 5, rounds - 1):
        await_line(process, f"round {done}/{rounds}")
        samples.append({one: (memory(one), handles(one)) for one in marked(mark)})
    lasting = samples[0].keys() & samples[1].keys()  # turns are processes of their own, and over
    assert len(lasting) > 7  # the command, fork server, SuperLink, two nodes, their task servers, the server's two
    grown = {one: tuple(b - a for a, b in zip(samples[0][one], samples[1][one], strict=True)) for one in lasting}
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    names = {one: marked(mark).get(one, "") for one in lasting}
    print(json.dumps({"rounds": rounds, "grown MiB and handles": [(round(m / MiB, 1), n) for m, n in grown.values()]}))
    assert max(m for m, _ in grown.values()) < 32 * MiB, (grown, names)
    assert max(n for _, n in grown.values()) <= 8, (grown, names)
