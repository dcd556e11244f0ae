"""Claim: a round costs next to nothing beside the training in it.

    python benchmarks/latency.py [--quick] [--repeats N] [--threads N] [--json]
    python benchmarks/latency.py --network [4,10,4x4] [--repeats N] [--case K] [--only NAME,...] [--markdown]

Compared: milliseconds per round of a method that does nothing, with 10 clients over 50 rounds and the closing visit:
the local engine, the pool with two workers, and the local engine with a run folder (records, TensorBoard events and a
checkpoint of every client each round, flushed to the disk). What is left is the engine's own work: payload checks, the
question whether a model has changed since its last evaluation (a checksum of its weights), messages, files. Backbones
are the narrowest there are (width 0.0625) with two test images each: the checksum and the checkpoint grow with the
backbone, the rest does not.

Equal: nothing is computed; the number of turns taken is compared.

With --network: seconds per round of AS-FedBridge with a Bridge of real size and few images (network.py), in whole runs:
local, pool, Flower on loopback with forked tasks, Flower as shipped and Flower's own simulation (Ray), with 4 and 10
clients; and the memory of the server's process, with private models of the same and of four times the width. What
Flower costs is the difference to local, which trains the same. Equal: every bit of the server's last state.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

import network
from asfedbridge.core.client import Client
from asfedbridge.core.method import Method
from asfedbridge.core.payload import Payload, Shapes
from asfedbridge.core.task import ClientInfo, Round, Task, Upload
from asfedbridge.data.loader import Shard
from asfedbridge.engines import checkpoint
from asfedbridge.engines.local import LocalEngine
from asfedbridge.engines.loop import AfterRound, Engine, federate
from asfedbridge.engines.pool import PoolEngine
from asfedbridge.runs.folder import RunFolder
from asfedbridge.runs.recipes import quickstart
from asfedbridge.runs.records import make_records
from federation import make_images, make_infos, make_shard, make_task
from sidebyside import Benchmark, Case, Contender, Work, main


@dataclass(frozen=True)
class Nothing(Method):
    """Exchanges nothing, learns nothing. Not registered: it exists here only."""

    name: ClassVar[str] = "nothing"

    def uploads(self, task: Task, client: ClientInfo) -> Shapes:
        return {}

    def downloads(self, task: Task, client: ClientInfo) -> Shapes:
        return {}

    def client_round(self, client: Client, rnd: Round) -> Upload:
        return Upload()


ALIVE = ExitStack()  # what a child keeps until it is ended
Setting = tuple[Method, Task, Sequence[ClientInfo], Sequence[Shard]]


def setting(case: Case) -> Setting:
    infos = make_infos(case["clients"], width=0.0625, T=2, train=2, test=2)
    shards = [make_shard(*make_images(4, 8, info.id), 2) for info in infos]
    return Nothing(), make_task(8, case["rounds"], 1, 2), infos, shards


def work(engine: Engine, made_from: Setting, watch: AfterRound | None = None) -> Work:
    method, task = made_from[:2]
    taken = 0

    def count(
        rnd: Round,
        clients: Sequence[ClientInfo],
        sent: Mapping[int, int],
        ups: Mapping[int, Upload],
        state: Payload,
    ) -> None:
        nonlocal taken
        taken += len(ups)
        if watch:
            watch(rnd, clients, sent, ups, state)

    def step() -> None:
        nonlocal taken
        taken = 0
        federate(method, task, engine, count)

    return Work(step, lambda: {"turns": np.array(taken)})


def local(case: Case) -> Work:
    made_from = setting(case)
    return work(LocalEngine(*made_from), made_from)


def pool(case: Case) -> Work:
    made_from = setting(case)
    return work(ALIVE.enter_context(closing(PoolEngine(*made_from, workers=2, threads=1))), made_from)


def with_folder(case: Case) -> Work:
    made_from = setting(case)
    folder = RunFolder(Path(tempfile.mkdtemp()), replace(quickstart(), method=made_from[0]), resume=False)
    folder.begin(0)
    engine = LocalEngine(*made_from, folder=folder.checkpoints / checkpoint.CLIENTS)

    def keep(
        rnd: Round,
        clients: Sequence[ClientInfo],
        sent: Mapping[int, int],
        ups: Mapping[int, Upload],
        state: Payload,
    ) -> None:
        folder.add_records(make_records(rnd, clients, sent, ups))
        if not rnd.closing:
            checkpoint.save(folder.checkpoints, rnd.index + 1, state, engine, {})

    return work(engine, made_from, keep)


def cases(args: argparse.Namespace) -> list[Case]:
    if args.network:
        return [case | {"only": args.only} for case in network.cases(args.network, args.quick)]
    return [{"clients": 2, "rounds": 3} if args.quick else {"clients": 10, "rounds": 50}]


def contenders(case: Case) -> list[Contender]:
    if "only" in case:
        return [
            c for c in network.contenders(case) if not case["only"] or c.name in ("local", *case["only"].split(","))
        ]
    return [
        Contender("local", local),
        Contender("pool, 2 workers", pool, threads=1),
        Contender("local, run folder", with_folder),
    ]


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--network", nargs="?", const="4,10,4x4", type=network.check, metavar="CASES", help="numbers of clients, xWIDER"
    )
    parser.add_argument("--only", default="", metavar="NAME,...", help=f"beside local: {', '.join(network.NAMES[1:])}")


def derive(case: Case, rows: dict[str, dict[str, Any]]) -> dict[str, float]:
    finished = {name: row for name, row in rows.items() if "median" in row}
    if "only" not in case:
        return {f"ms per round, {name}": 1e3 * row["median"] / case["rounds"] for name, row in finished.items()}
    seconds = {name: row["facts"]["seconds a round"] for name, row in finished.items()}
    return {f"s per round above local, {name}": s - seconds["local"] for name, s in seconds.items() if name != "local"}


BENCHMARK = Benchmark(
    script=os.path.abspath(__file__),
    claim="what a round costs by itself: nothing is learned, or (--network) little",
    baseline="local",
    cases=cases,
    contenders=contenders,
    options=options,
    derive=derive,
)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
