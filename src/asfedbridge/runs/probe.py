"""Estimates the time and memory of a run: `python -m asfedbridge.runs.probe FILE [DATA_ROOT [PLUGIN ...]]`.

One client of each shape trains on a few of its images, for one epoch and for two, and the times are extrapolated. The
probe is a separate process, so that its memory can be measured.
"""

import copy
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from asfedbridge.analysis.diagnostics import Reading
from asfedbridge.analysis.pairs import choose_clients
from asfedbridge.core.client import Client
from asfedbridge.core.errors import BadInput
from asfedbridge.core.plugins import FILES, load_all
from asfedbridge.core.task import ClientInfo, Round, Upload, first_of_each
from asfedbridge.data.loader import Shard
from asfedbridge.data.sources.registry import data_root
from asfedbridge.engines.process import prepare_process
from asfedbridge.engines.turn import build_client, evaluate
from asfedbridge.runs.callbacks.diagnostics import diagnosed_rounds
from asfedbridge.runs.recipes import quickstart
from asfedbridge.runs.setting import pick_device, prepare
from asfedbridge.runs.spec import Spec, from_table
from asfedbridge.runs.toml import read_toml

CPU_IMAGES = 16  # at most, for a probe without a GPU


@dataclass(frozen=True)
class Estimate:
    seconds: float
    megabytes: float


def measure_apart(file: Path, root: str | None) -> Estimate:
    """The estimate for a specification, measured in a separate process."""
    words = [sys.executable, "-m", "asfedbridge.runs.probe", str(file), root or "", *FILES]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BadInput(
            (done.stderr.strip().splitlines() or [f"the probe ended with exit code {done.returncode}"])[
                -1
            ].removeprefix("asfedbridge: ")
        )
    return Estimate(**json.loads(done.stdout))


def measure(spec: Spec, root: Path) -> Estimate:
    device = pick_device(spec.device, spec.precision)
    prepare_process(spec.threads)
    setting = prepare(spec, root)
    few = spec.batch_size if device.type == "cuda" else min(spec.batch_size, CPU_IMAGES)
    method, rnd = spec.method, Round(spec.rounds // 2, spec.rounds)
    shapes = first_of_each(setting.clients)
    state = method.server_init(setting.task, setting.clients)
    seconds, diagnosis, ups = 0.0, 0.0, dict[int, Upload]()
    diagnosed = diagnosed_rounds(spec.diagnose_every, spec.rounds, spec.rounds)
    compared = choose_clients(setting.clients) if diagnosed else []
    some = _cut(setting.probe, few)
    for info in shapes:
        shard = _cut(setting.shards[info.id], few)
        small = replace(info, train_size=shard.train_size, test_size=shard.test_size)

        def turn(epochs: int, small: ClientInfo = small, shard: Shard = shard) -> float:
            """Seconds of a turn with this number of private epochs, without building the client."""
            client = build_client(method, replace(setting.task, epochs=epochs), small, shard, device)
            method.client_receive(client, method.server_send(state, small, rnd), rnd)
            return _timed(lambda: _play(client))

        def _play(client: Client) -> None:
            ups[client.info.id] = method.client_round(client, rnd)

        turn(1)  # warm-up
        once, twice = turn(1), turn(2)
        whole = once + max(0.0, twice - once) * (spec.epochs - 1)
        client = build_client(method, setting.task, small, shard, device)
        look = _timed(lambda client=client: evaluate(client, lambda x: client.backbone(x).logits))  # type: ignore[misc]
        for member in (c for c in setting.clients if c.shape == info.shape):
            seconds += whole * member.train_size / small.train_size + 2 * look * member.test_size / small.test_size
        if diagnosed:
            read = _timed(lambda client=client: Reading(some)(client))  # type: ignore[misc]
            members = sum(c.shape == info.shape for c in compared)
            diagnosis += members * read * setting.probe.test_size / some.test_size
    served = _timed(lambda: method.server_round(state, shapes, ups, rnd)) * len(setting.clients) / len(shapes)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    turns, diagnoses = spec.rounds * seconds, len(diagnosed) * diagnosis
    return Estimate((turns + diagnoses) * spec.participation + spec.rounds * served, peak)


def _cut(shard: Shard, count: int) -> Shard:
    small = copy.copy(shard)
    small.x_train, small.y_train = shard.x_train[:count], shard.y_train[:count]
    small.x_test, small.y_test = shard.x_test[:count], shard.y_test[:count]
    return small


def _timed(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def main(words: list[str]) -> int:
    try:
        file, root, *plugins = [*words, ""][: max(2, len(words))]
        load_all(plugins)
        estimate = measure(from_table(read_toml(Path(file)), quickstart()), data_root(root or None))
    except BadInput as error:
        print(f"asfedbridge: {error}", file=sys.stderr)
        return 2
    print(json.dumps(vars(estimate)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
