"""Claim: a run's time is its training steps; two workers halve it and give the same bits; clients stay in memory.

    python benchmarks/round.py [--epochs N] [--case K] [--quick] [--repeats N] [--json]

Case 1: ten rounds of recipe `cpu` with the training images of CIFAR-10 at 16x16 replaced by noise (ten clients with 150
images each, VGG-9 of width 0.125, 1,000 test images each, evaluated every tenth round, that is twice as often as in the
recipe), in a run folder with records, TensorBoard events and a checkpoint of every round: the local engine with one
thread, and the pool with two workers. The share of training is the time that clients spend in their training steps,
which they measure, relative to the time of all processes. Equal: the server's state after the first ten rounds.

Case 2: rounds without any training (`latency.py`), without and with a run folder.

Case 3: one AS-FedBridge round of ten clients (5 ResNet-18 and 5 Spiking ResNet-18 with T = 4, width 0.25), 256
synthetic CIFAR-shaped training images and 64 test images each, batch 64, one private epoch (--epochs 5 for the method's
five) and one injection epoch. Contenders: the local engine with one and with two threads, the pool with two workers of
one thread each, and the style of HtFLlib: a plain loop with two threads that keeps everything on disk between uses. We
wrote that loop from one sentence ("per client and round: load the models with torch.load, train, save them with
torch.save"); like HtFLlib it keeps no optimiser state, and its files stay in the page cache.

Equal in case 3: the server's state after round 0 (the warm-up). Pool equals local with one thread, and on disk equals
local with two, bit for bit. Two threads equal one only up to rounding, because sums are split differently.

--threads does not apply: the number of threads is what is compared.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, cast

import torch

import latency
from asfedbridge.core.client import Client
from asfedbridge.core.method import Method
from asfedbridge.core.payload import Payload
from asfedbridge.core.task import ClientInfo, Round, Task, Upload
from asfedbridge.data.loader import Shard
from asfedbridge.engines.local import LocalEngine
from asfedbridge.engines.loop import Engine, play_round
from asfedbridge.engines.pool import PoolEngine
from asfedbridge.engines.process import prepare_process
from asfedbridge.engines.turn import build_client, take_turn
from asfedbridge.methods.as_fedbridge import ASFedBridge
from asfedbridge.runs.fleet import parse_fleet
from asfedbridge.runs.recipes import cpu
from asfedbridge.runs.setting import make_task as task_of
from federation import Recorded, fingerprint, make_images, make_infos, make_shard, make_task
from sidebyside import Answer, Benchmark, Case, Contender, Work, main

Setting = tuple[Method, Task, Sequence[ClientInfo], Sequence[Shard]]  # the arguments of every engine
PERIOD = 10  # rounds of recipe `cpu`, of which the last one is evaluated
SPENT = "spent_seconds"  # a metric: the duration of a client's training steps
ALIVE = ExitStack()  # resources that a child holds until it is killed
ROUNDS = 1000  # only a few are played: the learning rate hardly changes


def setting(case: Case) -> Setting:
    task = make_task(case["size"], ROUNDS, case["epochs"], case["batch"])
    infos = make_infos(case["clients"], case["width"], case["T"], case["images"], case["tested"])
    shards = [
        make_shard(*make_images(case["images"] + case["tested"], case["size"], i.id), i.train_size) for i in infos
    ]
    return ASFedBridge(bridge_width=case["bridge"]), task, infos, shards


class Rounds:
    """Plays rounds and keeps the server's state after the first one."""

    def __init__(self, engine: Engine, method: Method, task: Task) -> None:
        self.engine, self.method, self.task = engine, method, task
        self.infos = sorted(engine.clients(), key=lambda c: c.id)
        self.state = method.server_init(task, self.infos)
        self.first: Payload = {}
        self.played = 0

    def step(self) -> None:
        rnd = Round(self.played, self.task.rounds)
        self.state, _, _ = play_round(self.method, self.task, self.engine, self.state, rnd, self.infos)
        self.first = self.first or self.state
        self.played += 1


def work(engine: Engine, made_from: Setting, **facts: Any) -> Work:
    rounds = Rounds(engine, *made_from[:2])
    return Work(rounds.step, lambda: fingerprint(rounds.first), facts=lambda: facts)


def local(case: Case) -> Work:
    prepare_process()
    made_from = setting(case)
    return work(LocalEngine(*made_from), made_from)


def pool(case: Case) -> Work:
    made_from = setting(case)
    engine = ALIVE.enter_context(closing(PoolEngine(*made_from, workers=2, threads=1)))
    return work(engine, made_from, workers=2)


class OnDisk:
    """Loads every model before its use and saves it afterwards, as whole pickled modules."""

    def __init__(
        self, method: Method, task: Task, infos: Sequence[ClientInfo], shards: Sequence[Shard], folder: str
    ) -> None:
        """Implements only the part of an engine that ``play_round`` needs."""
        self.method, self.task, self.folder = method, task, Path(folder)
        self.infos = {info.id: info for info in infos}
        self.shards = dict(zip(self.infos, shards, strict=True))
        self.moved = 0
        for info, shard in zip(infos, shards, strict=True):
            self._save(build_client(method, task, info, shard).modules, f"client-{info.id}.pt")

    def clients(self) -> Sequence[ClientInfo]:
        return list(self.infos.values())

    def train(self, rnd: Round, downs: Mapping[int, Payload]) -> dict[int, Upload]:
        self.moved = 0
        replies = {}
        for i in downs:
            self._save(downs[i], "global.pt")
            modules = self._load(f"client-{i}.pt")
            client = Client(self.infos[i], self.task, modules["backbone"], self.shards[i])
            for name, module in modules.items():
                client.add(name, module)
            up = take_turn(self.method, client, self._load("global.pt"), rnd)
            self._save(client.modules, f"client-{i}.pt")
            self._save(up.payload, f"upload-{i}.pt")
            replies[i] = up
        return {i: Upload(self._load(f"upload-{i}.pt"), up.metrics) for i, up in replies.items()}

    def _save(self, item: Any, name: str) -> None:
        torch.save(item, self.folder / name)
        self.moved += (self.folder / name).stat().st_size

    def _load(self, name: str) -> Any:
        self.moved += (self.folder / name).stat().st_size
        return torch.load(self.folder / name, weights_only=False)


def on_disk(case: Case) -> Work:
    prepare_process()
    made_from = setting(case)
    engine = OnDisk(*made_from, folder=tempfile.mkdtemp())
    done = work(cast(Engine, engine), made_from)
    done.facts = lambda: {"file_bytes": engine.moved}  # of the last round
    return done


@dataclass(frozen=True)
class Timed(ASFedBridge):
    """AS-FedBridge whose clients report how long they trained. It is not registered."""

    name: ClassVar[str] = "timed"

    def client_round(self, client: Client, rnd: Round) -> Upload:
        begin = time.perf_counter()
        upload = super().client_round(client, rnd)
        return replace(upload, metrics=upload.metrics | {SPENT: time.perf_counter() - begin})


def recipe(case: Case, workers: int) -> Work:
    """Ten rounds of recipe `cpu` per step, on the local engine (no workers) or on the pool."""
    prepare_process(1)
    spec = cpu()
    infos = [replace(c, train_size=case["images"], test_size=case["tested"]) for c in parse_fleet(spec.fleet, spec.T)]
    infos = infos[: case["clients"] // 2] + infos[-(case["clients"] // 2) :]
    size = spec.image_size
    shards = [make_shard(*make_images(i.train_size + i.test_size, size, i.id), i.train_size) for i in infos]
    method = Timed(**vars(spec.method))
    task = replace(task_of(spec, 10, 3, size, 1, infos), rounds=ROUNDS, evaluate_every=PERIOD)
    recorded = Recorded(replace(spec, method=method))
    made_from: Setting = (method, task, infos, shards)
    engine: Engine = LocalEngine(*made_from, folder=recorded.states)
    if workers:
        pool = PoolEngine(*made_from, workers=workers, threads=1, folder=recorded.states)
        engine = ALIVE.enter_context(closing(pool))
    watch = recorded.watch(engine, task, infos, shards)
    state, played, spent, took = method.server_init(task, infos), 0, 0.0, 0.0
    first: Payload = {}

    def step() -> None:
        nonlocal state, played, spent, took, first
        begin = time.perf_counter()
        for _ in range(PERIOD):
            rnd = Round(played, ROUNDS)
            state, sent, ups = play_round(method, task, engine, state, rnd, infos)
            watch(rnd, infos, sent, ups, state)
            spent += sum(up.metrics[SPENT] for up in ups.values())
            played += 1
        took += time.perf_counter() - begin
        first = first or state

    def answer() -> Answer:
        nonlocal spent, took
        spent = took = 0.0  # discards the warm-up
        return fingerprint(first)

    return Work(step, answer, facts=lambda: {"share of training": round(spent / took / max(1, workers), 4)})


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--epochs", type=int, default=1, metavar="N", help="private epochs per round (default: 1)")


def cases(args: argparse.Namespace) -> list[Case]:
    whole: Case = {"recipe": "cpu", "clients": 10, "images": 150, "tested": 1000}
    empty: Case = {"empty": True, "clients": 10, "rounds": 50}
    sizes: Case = {"clients": 10, "images": 256, "tested": 64, "batch": 64, "size": 32, "width": 0.25, "bridge": 1.0}
    if args.quick:
        whole |= {"clients": 2, "images": 16, "tested": 4}
        empty |= {"clients": 2, "rounds": 3}
        sizes = {"clients": 2, "images": 8, "tested": 4, "batch": 8, "size": 8, "width": 0.125, "bridge": 0.2}
    return [whole, empty, sizes | {"T": 4, "epochs": args.epochs}]


ONE, TWO, POOL, FOLDER = "local, 1 thread", "local, 2 threads", "pool, 2 workers", "local, run folder"


def contenders(case: Case) -> list[Contender]:
    if "recipe" in case:
        return [
            Contender(ONE, lambda case: recipe(case, 0), threads=1),
            Contender(POOL, lambda case: recipe(case, 2), threads=1),
        ]
    if "empty" in case:
        return [Contender(ONE, latency.local, threads=1), Contender(FOLDER, latency.with_folder, threads=1)]
    return [
        Contender(ONE, local, threads=1),
        Contender(TWO, local, threads=2, differs="float sums are split over two threads"),
        Contender(POOL, pool, threads=1),
        Contender("on disk between uses, 2 threads", on_disk, threads=2, like=TWO),
    ]


def derive(case: Case, rows: dict[str, dict[str, Any]]) -> dict[str, float]:
    finished = {name: row for name, row in rows.items() if "median" in row}
    if "empty" in case:
        return {f"ms per empty round, {name}": 1e3 * row["median"] / case["rounds"] for name, row in finished.items()}
    if "recipe" not in case:
        return {}
    shares = {f"share of training, {name}": row["facts"]["share of training"] for name, row in finished.items()}
    return shares | ({"local / pool": 1 / finished[POOL]["ratio"]["median"]} if POOL in finished else {})


BENCHMARK = Benchmark(
    script=os.path.abspath(__file__),
    claim="rounds of ten clients: the share of training, empty rounds, engines, and models on disk between uses",
    baseline=ONE,
    cases=cases,
    contenders=contenders,
    options=options,
    derive=derive,
)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
