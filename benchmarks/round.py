"""Claim: two workers halve a round without changing a bit of it, and clients that stay in memory beat saved ones.

    python benchmarks/round.py [--epochs N] [--quick] [--repeats N] [--json]

Compared: one AS-FedBridge round of ten clients (5 ResNet-18 and 5 Spiking ResNet-18 with T = 4, width 0.25), 256
synthetic CIFAR-shaped images each and 64 to be tested on, batch 64, one private epoch (the method's own five with
--epochs 5) and one injection epoch. The local engine with one and with two threads, the pool with two workers of one
thread each, and the style of HtFLlib: a plain loop with two threads in which everything lives on disk between two
uses. That loop is ours, written from one sentence ("per client and round: load the models with torch.load, train, save
them with torch.save"); like HtFLlib it keeps no optimiser state, and its files stay in the page cache.

Equal: the server's state after round 0 (the warm-up). Pool = local with one thread, and on disk = local with two,
bit for bit; two threads against one only to rounding, because sums are split differently.

--threads does not apply: the number of threads is what is compared.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import torch

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
from federation import fingerprint, make_images, make_infos, make_shard, make_task
from sidebyside import Benchmark, Case, Contender, Work, main

Setting = tuple[Method, Task, Sequence[ClientInfo], Sequence[Shard]]  # what every engine is made from
ALIVE = ExitStack()  # what a child keeps until it is ended
ROUNDS = 1000  # of which a few are played: the learning rate hardly moves


def setting(case: Case) -> Setting:
    task = make_task(case["size"], ROUNDS, case["epochs"], case["batch"])
    infos = make_infos(case["clients"], case["width"], case["T"], case["images"], case["tested"])
    shards = [
        make_shard(*make_images(case["images"] + case["tested"], case["size"], i.id), i.train_size) for i in infos
    ]
    return ASFedBridge(bridge_width=case["bridge"]), task, infos, shards


class Rounds:
    """Plays one round after the other and remembers the server's state after the first."""

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
    """Every model is loaded before it is used and saved after it, as whole pickled modules."""

    def __init__(
        self, method: Method, task: Task, infos: Sequence[ClientInfo], shards: Sequence[Shard], folder: str
    ) -> None:
        """Only what ``play_round`` asks of an engine."""
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
    done = work(engine, made_from)
    done.facts = lambda: {"file_bytes": engine.moved}  # of the last round
    return done


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--epochs", type=int, default=1, metavar="N", help="private epochs per round (default: 1)")


def cases(args: argparse.Namespace) -> list[Case]:
    sizes: Case = {"clients": 10, "images": 256, "tested": 64, "batch": 64, "size": 32, "width": 0.25, "bridge": 1.0}
    if args.quick:
        sizes = {"clients": 2, "images": 8, "tested": 4, "batch": 8, "size": 8, "width": 0.125, "bridge": 0.2}
    return [sizes | {"T": 4, "epochs": args.epochs}]


ONE, TWO = "local, 1 thread", "local, 2 threads"


def contenders(case: Case) -> list[Contender]:
    return [
        Contender(ONE, local, threads=1),
        Contender(TWO, local, threads=2, differs="float sums are split over two threads"),
        Contender("pool, 2 workers", pool, threads=1),
        Contender("on disk between uses, 2 threads", on_disk, threads=2, like=TWO),
    ]


BENCHMARK = Benchmark(
    script=os.path.abspath(__file__),
    claim="one AS-FedBridge round of ten clients: engines, and models on disk between uses",
    baseline=ONE,
    cases=cases,
    contenders=contenders,
    options=options,
)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
